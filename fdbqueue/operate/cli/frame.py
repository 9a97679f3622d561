"""The frame of a command: where it runs, and the options and arguments that commands share.

Its parameters have types that refuse values which click accepts; the options of a put and of a queue are made
of those of the library.
"""

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from fdbqueue.core import limits
from fdbqueue.core.codec import BUILT_IN
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Failure
from fdbqueue.core.visible import key_of, told, value_of
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.commands import (
    AUDITED,
    OUTER_ROOT,
    OUTER_SHARED,
    OUTER_URL,
    ROOT,
    SHARED,
    URL,
    help_without_command,
)
from fdbqueue.operate.cli.commands import cli as cli
from fdbqueue.operate.cli.exits import CommandError, LineWriter, require_stdout, say
from fdbqueue.operate.cli.session import Place, names_for_completion
from fdbqueue.operate.cli.show import Columns, Row, stdout_of
from fdbqueue.operate.cli.show import show as show_rows
from fdbqueue.operate.cli.wording import in_options, line_of
from fdbqueue.tasks.options import (
    CHARGES,
    PUT_OPTIONS,
    QUEUE_OPTIONS,
    QUEUED,
    UNFINISHED,
    Backoff,
    OnConflict,
    Option,
    checked_attempts,
)

if TYPE_CHECKING:
    from fdbqueue.operate.cli.auditing import Audited


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


class Attempts(click.types.StringParamType):
    """A number of failed attempts, or inf."""

    name = "attempts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return checked_attempts("attempts", math.inf if value == "inf" else int(value))
        except ValueError:
            self.fail(f"{value!r} is no whole number from 1 to {limits.ATTEMPTS_MAX}, nor inf", param, ctx)


class Pauses(click.types.StringParamType):
    """A Backoff: the first pause in seconds, and perhaps the longest one."""

    name = "backoff"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        first_s, comma, cap_s = str(value).partition(",")
        try:
            return Backoff(float(first_s), cap_s=float(cap_s)) if comma else Backoff(float(first_s))
        except ValueError:
            self.fail(f"{value!r} is not of the form S[,CAP], in seconds, with S up to CAP [600]", param, ctx)


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
    "charge": click.Choice(CHARGES),
    "limit_keys": (str, str),
    "attempts": Attempts(),
    "backoff": Pauses(),
}
"""The types of options, by their names or metavars; texts have none."""
_REPEATED = {"headers", "limits", "limit_keys", "weights", "task_limits"}
_FLAGS = {"chronicle"}
_OF_EACH = ("pri", "delay", "ttl", "ttr", "key", "cost", "headers", "result_ttl", "attempts", "backoff")
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
        given = {"type": _TYPES.get(name, _TYPES.get(metavar)), "metavar": metavar or None, "help": told}
        if name in _FLAGS:
            given = {"is_flag": True, "default": None, "help": told}
        click.option(flag_of(name), name, multiple=name in _REPEATED, **given)(function)
    return function


def failure_options(function: Function) -> Function:
    """Give a command the options of an attempt that has failed."""
    click.option("--reason", metavar="TEXT", help="with --failure: the message of the failure")(function)
    return click.option("--failure", metavar="NAME", help="the attempt has failed: its class")(function)


def failure_of(name: str | None, reason: str | None) -> Failure | None:
    if name is None and reason is not None:
        raise click.UsageError("--reason needs --failure")
    return None if name is None else Failure(name, reason or "")


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
    with telling():
        return [value_of(text, as_text) for text in data]


def key_in(text: str, as_text: bool) -> Any:
    """Return the key that a word names. Raises CommandError."""
    with telling():
        return key_of(text, as_text)


@contextmanager
def telling() -> Iterator[None]:
    try:
        yield
    except ValueError as reason:
        raise CommandError(str(reason)) from None


def _header_of(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter(f"{text!r} is no NAME=TEXT", param_hint="--header")
    return name, value


PROGRAM = "fdbqueue "
Parameter = Callable[[Callable[..., Any]], Any]
"""A decorator that gives a command an argument or an option."""


@dataclass(frozen=True)
class Here(Place):
    """Where a command runs: its place, the signals of its process, and the form of its output."""

    signals: Signals
    as_json: bool
    audited: "Audited | None" = None
    """The audit of this command; None if it writes no line."""

    @contextmanager
    def database(self, **given: Any) -> Iterator[Database]:
        """As `Place.database`; the first effect of an audited command writes its line."""
        with super().database(**given) as database:
            if self.audited is None:
                yield database
                return
            with self.audited.over(database) as noting:
                yield noting

    def about(self, database: Database, id_: str) -> Database:
        """The database for one task among several, which has a line of its own."""
        return database if self.audited is None else self.audited.about(id_)

    def note(self, database: Database) -> None:
        """Write the line of the command now, as its effect lies outside the database."""
        run_once(database, RootKeys(self.root), lambda _: None)

    def counts(self, tasks: int) -> None:
        """Tell the audit the number of tasks that the command has changed so far."""
        if self.audited is not None:
            self.audited.counts(tasks)

    def out(self) -> LineWriter:
        """Raises: CommandError if standard output is closed."""
        return stdout_of(self.signals)

    def print(self, value: Any) -> None:
        """Print one line of JSON."""
        self.out().print(line_of(value))

    def show(self, rows: Iterable[Row], columns: Columns) -> None:
        """Print rows: all of each as JSON, or its columns."""
        show_rows(self.signals, rows, columns, self.as_json)

    def tell(self, message: str, row: Row) -> None:
        """Report a change: as `row` in JSON, or as `message` on standard error."""
        if self.as_json:
            self.print(row)
        else:
            say(message)


def _printing(_: click.Context, __: click.Parameter, as_json: bool) -> bool:
    if as_json:
        require_stdout()
    return as_json


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_printing, help="print JSON, one value a line"
)


def command(
    group: click.Group, *first: Parameter, name: str | None = None, json: bool = True, **more: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of `group` from a function, which gets a Here first.

    Its arguments and options are the `first` ones, those that decorate the function, --json unless `json` is
    false, and those of the place.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        @wraps(function)
        def called(
            url: str | None, root: str | None, shared: bool, as_json: bool = False, **arguments: Any
        ) -> Any:
            context = click.get_current_context()
            # Options behind the command come before those in front of it.
            url = context.meta[OUTER_URL] if url is None else url
            root = context.meta[OUTER_ROOT] if root is None else root
            if root is not None and not all(root.split("/")):
                raise click.BadParameter(f"{root!r} has an empty part", param_hint="--root")
            with in_options():
                place = Place.of(url, root, shared or context.meta[OUTER_SHARED])
                audited = _audited(context, place, arguments)
                return function(Here(place.url, place.root, context.obj, as_json, audited), **arguments)

        for parameter in reversed(first):
            parameter(function)
        own = getattr(function, "__click_params__", [])
        called.__click_params__ = []  # type: ignore[attr-defined]
        for parameter in (SHARED, ROOT, URL, *([json_option] if json else [])):
            parameter(called)
        called.__click_params__ += own  # type: ignore[attr-defined]
        return group.command(name, **more)(called)

    return made


def _audited(context: click.Context, place: Place, arguments: Mapping[str, Any]) -> "Audited | None":
    """The audit of a command that changes something by hand."""
    above = context.parent
    of_group = above is not None and above.parent is not None
    path = f"{above.info_name} {context.info_name}" if above and of_group else f"{context.info_name}"
    path = f"{path} {arguments['action']}" if arguments.get("action") else path
    return late.auditing.Audited(path, arguments, place.root) if path in AUDITED else None


def group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Make a group of commands from a function with its help text. Without a command, the group prints it."""

    def made(function: Callable[[], None]) -> click.Group:
        @cli.group(name, invoke_without_command=True)
        @click.pass_context
        @wraps(function)
        def helping(context: click.Context) -> None:
            help_without_command(context)

        return helping

    return made


def in_this_place(told: str) -> str:
    """Return a cure with the options, in each command that it tells, that name the database and the root."""
    context = click.get_current_context()
    given = {
        "--url": context.params.get("url") or context.meta[OUTER_URL],
        "--root": context.params.get("root") or context.meta[OUTER_ROOT],
    }
    where = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    told = f"`{told}".replace(f"`{PROGRAM}", f"`fdbqueue{where} ")[1:]
    file = Place.of(given["--url"], None).cluster_file
    return told.replace("`fdbcli ", f"`fdbcli -C {shlex.quote(file)} ") if file else told


def again(*words: str) -> str:
    """Return a command that runs again here, as a shell takes it. A word with a dash is no option."""
    at = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    return in_this_place(shlex.join(["fdbqueue", *words[:at], *(["--"] if words[at:] else []), *words[at:]]))


def queue_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return names of queues that begin with `incomplete`, in the database that the line names."""
    outer = context.find_root().params
    url = context.params.get("url") or outer.get("url")
    root = context.params.get("root") or outer.get("root")
    shared = bool(context.params.get("shared") or outer.get("shared"))
    try:
        place = Place.of(url or None, root or None, shared)
    except InvalidArgument:
        return []
    return names_for_completion(place, incomplete)


queue_argument = click.argument("queue", metavar="QUEUE", shell_complete=queue_names)
yes_option = click.option("--yes", is_flag=True, help="confirm")
first_option = click.option(
    "-n", "count", type=click.IntRange(min=1), default=100, metavar="N", help="the first N [100]"
)
