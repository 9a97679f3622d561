"""Parameters: types that refuse values which click accepts, and the options of a put and of a queue."""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.codec import BUILT_IN
from fdbqueue.core.visible import told
from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.wording import key_of, value_of
from fdbqueue.tasks.options import PUT_OPTIONS, QUEUE_OPTIONS, QUEUED, UNFINISHED, OnConflict, Option


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
NUMBER = click.IntRange(1, limits.PARTITIONS_MAX)
create_option = click.option("--create", is_flag=True, help="make QUEUE if there is none")

PORTS = click.IntRange(0, 65535)
_TYPES: Mapping[str, Any] = {
    "S": SPAN,
    "N": int,
    "delay": Seconds(),
    "retain_s": RETAIN,
    "capacity": click.IntRange(min=1),
    "partitions": NUMBER,
    "scope": Scope(),
    "on_conflict": click.Choice([one.value for one in OnConflict]),
    "codec": click.Choice(BUILT_IN),
    "limit_keys": (str, str),
}
"""The types of options, by their names or metavars; texts have none."""
_REPEATED = {"headers", "limits", "limit_keys", "weights", "task_limits"}
_OF_EACH = ("pri", "delay", "ttl", "ttr", "key", "cost", "headers", "result_ttl")
_OF_UNIQUE, _OF_LIMITS = ("unique", "scope", "on_conflict", "debounce_max"), ("limits", "limit_keys")
Function = Callable[..., Any]


def put_options(function: Function) -> Function:
    """Give a command the options of the tasks that it puts."""
    return _with_options(function, PUT_OPTIONS, (*_OF_EACH, *_OF_UNIQUE, *_OF_LIMITS), puts=True)


def schedule_options(function: Function) -> Function:
    """Give a command the options of the tasks of a schedule."""
    return _with_options(function, PUT_OPTIONS, (*_OF_EACH, *_OF_LIMITS, *_OF_UNIQUE))


def queue_options(function: Function) -> Function:
    """Give a command the options of a queue that it creates."""
    return _with_options(function, QUEUE_OPTIONS, [*QUEUE_OPTIONS])


def flag_of(name: str) -> str:
    """The option of the command line for one of Python."""
    spelled = "priority" if name == "pri" else name.removesuffix("s" if name in _REPEATED else "_s")
    return f"--{spelled.replace('_', '-')}"


def _with_options(
    function: Function, options: Mapping[str, Option], names: Sequence[str], *, puts: bool = False
) -> Function:
    for name in reversed(names):
        _, metavar, told, of_put = options[name]
        if puts:
            told = of_put if of_put.startswith("of ") else f"of tasks: {of_put or told}"
        type_, several = _TYPES.get(name, _TYPES.get(metavar)), name in _REPEATED
        click.option(flag_of(name), name, type=type_, metavar=metavar or None, multiple=several, help=told)(
            function
        )
    return function


def given_of(options: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """Return the options of a put that were given, as the library takes them. Raises ClickException."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "data" in given:
        given["data"] = values_of((given["data"],), as_text)[0]
    for name in {"key", "unique"} & set(given):
        given[name] = key_in(given[name], as_text)
    if "headers" in given:
        given["headers"] = dict(map(_header_of, given["headers"]))
    keyed: Sequence[tuple[str, str]] = given.pop("limit_keys", ())
    if len(keyed) > 1:
        raise click.UsageError("--limit-key is for one limit: a task waits for one key at a time")
    for name, key in keyed:
        if name in given.get("limits", ()):
            raise click.UsageError(f"--limit and --limit-key name the same limit, {name!r}")
        given["limits"] = {**dict.fromkeys(given.get("limits", ())), name: key_in(key, as_text)}
    return given


def values_of(data: Sequence[str], as_text: bool) -> list[Any]:
    """Return the values of words: JSON, or else text. Raises CommandError."""
    with _told():
        return [value_of(text, as_text) for text in data]


def key_in(text: str, as_text: bool) -> Any:
    """Return the key that a word names. Raises CommandError."""
    with _told():
        return key_of(text, as_text)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ValueError as reason:
        raise CommandError(str(reason)) from None


def _header_of(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter(f"{text!r} is no NAME=TEXT", param_hint="--header")
    return name, value
