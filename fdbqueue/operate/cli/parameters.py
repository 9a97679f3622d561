"""Types of parameters that refuse values which click accepts."""

import math
import os
import sys
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.visible import told
from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.tasks.unique import QUEUED, UNFINISHED


class Seconds(click.types.FloatParamType):
    """A number of seconds: not nan, and less than a hundred years unless `endless`."""

    name = "seconds"

    def __init__(self, *, endless: bool = False) -> None:
        self._endless = endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds) or (abs(seconds) >= limits.SPAN_MAX_S and not self._endless):
            self.fail(f"{value} is not a number of seconds within a hundred years.", param, ctx)
        return seconds


class Scope(click.types.StringParamType):
    """A scope of a unique key: a name, or a number of seconds."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in (QUEUED, UNFINISHED):
            return str(value)
        try:
            return float(value)
        except ValueError:
            self.fail(f"{told(value)} is neither {QUEUED}, {UNFINISHED} nor a number of seconds.", param, ctx)


class OptionName(click.Choice):  # type: ignore[type-arg]  # it has no parameter before click 8.2
    """The name of an option, with its dashes or without. The choices have none."""

    name = "option"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value.removeprefix("--"), param, ctx)


class SecondsRange(click.FloatRange):
    """Seconds within bounds, which the help text shows."""

    name = "seconds range"

    def __init__(self, *, endless: bool = False, **bounds: Any) -> None:
        super().__init__(**bounds)
        self._seconds = Seconds(endless=endless)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(self._seconds.convert(value, param, ctx), param, ctx)
        return seconds


class Input(click.File):
    """A file to read; - is standard input. Raises CommandError if that is closed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and sys.stdin is None:
            raise CommandError("standard input is closed")
        return super().convert(value, param, ctx)


class UsablePath(click.Path):
    """A path. An impossible one is refused before the first of its directories is made."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "\x00" in value or len(os.fsencode(value)) > limits.URL_BYTES_MAX:
            self.fail(f"{told(value)} is no path of at most {limits.URL_BYTES_MAX} bytes.", param, ctx)
        return super().convert(value, param, ctx)


SPAN = SecondsRange(min=0, min_open=True, endless=True)
RETAIN = SecondsRange(min=0, min_open=True)
WAIT = SecondsRange(min=0, endless=True)
