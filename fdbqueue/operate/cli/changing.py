"""`fdbqueue change`, and `--where` of the verbs about tasks: waiting tasks that match, changed together."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fdbqueue.core.database import Database
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.signals import Interrupted
from fdbqueue.core.visible import counted
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import say
from fdbqueue.operate.cli.frame import Here, cli, command, key_in, queue_argument, telling
from fdbqueue.operate.cli.redacting import require_open
from fdbqueue.operate.cli.show import PLAIN_EVERY_S, Row, columns, json_in, task_row
from fdbqueue.operate.filters import filter_value
from fdbqueue.tasks.selected import NAMES, ChangedTasks

if TYPE_CHECKING:
    from fdbqueue.tasks.queue import TaskQueue
    from fdbqueue.tasks.searching import FoundTasks

_EXAMPLES = columns("id", "state", pri="pri", key=json_in("key"), data=json_in("data", null=True))
Pairs = Sequence[tuple[str, str]]


class _Pair(click.types.StringParamType):
    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, separator, text = value.partition("=")
        if not (name and separator):
            self.fail(f"{value!r} is no NAME=VALUE", param, ctx)
        return name, text


_DRY_RUN = click.option("--dry-run", is_flag=True, help="change nothing: count, and show ten of them")
_OPTIONS = (
    click.option("--where", type=_Pair(), multiple=True, metavar="NAME=VALUE", help=f"{NAMES}; repeatable"),
    click.option("--after", metavar="PLACE", help="go on where another call has ended"),
    click.option("--look", type=click.IntRange(min=1), metavar="N", help="look at N tasks at most"),
)


def where_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose waiting tasks."""
    return search_options(_DRY_RUN(function))


def search_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose tasks."""
    for option in reversed(_OPTIONS):
        option(function)
    return function


def requires_where(others: bool, where: Pairs, walk: Mapping[str, Any]) -> None:
    """Raises: UsageError for a command with IDs or a number, and with filters, or with neither."""
    if others and (where or any(walk.values())):
        raise click.UsageError("--where, with its options, stands alone")
    if not others and not where:
        raise click.UsageError("tell which tasks: IDs, or --where")


@command(cli, queue_argument)
@where_options
@click.option(
    "--set",
    "set",
    type=_Pair(),
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    help="pri, delay, queue, limits=NAME or limits.NAME=KEY; repeatable",
)
def change(here: Here, queue: str, where: Pairs, set: Pairs, **walk: Any) -> None:
    """Give waiting tasks of QUEUE that match other options, or move them to another queue.

    Taken tasks are left alone. Each filter must match; without one, all waiting tasks do. Ages and delays are
    in seconds. With data.PATH, the command looks at the first 10000 tasks, and tells how to go on. A queue
    that tasks move to must have the same codec, and a kind with all their options.
    """
    change_where(here, queue, where, walk, options=_set_of(set))


def change_where(
    here: Here,
    queue: str,
    where: Pairs,
    walk: dict[str, Any],
    *,
    verb: str | None = None,
    options: Mapping[str, Any] | None = None,
    into_trash: bool = False,
) -> None:
    """Change the tasks that match, step by step. A signal takes effect between two steps."""
    filters, is_dry_run = filters_in(where), walk["dry_run"]
    with here.tasks(queue) as (database, found):
        there = found.statistics(database)["tasks"]["total"]
        done = _DONE.get(verb or "", "changed")
        progress = _Progress(here, database, there, done)
        try:
            with here.signals.deferred():
                if into_trash and not is_dry_run:
                    del walk["dry_run"]
                    answer = late.trash.purged(found, database, filters, progress=progress.tell, **walk)
                else:
                    answer = found.change(database, filters, options, do=verb, progress=progress.tell, **walk)  # type: ignore[arg-type]
        except (Interrupted, FdbQueueError):
            progress.tell_rest()
            raise
        examples = [task_row(task, found.options) for task in answer.examples]
    _answer(here, queue, answer, examples, there, "" if is_dry_run else done)


def filters_in(where: Pairs) -> dict[str, Any]:
    """Raises: Refused for a hidden path."""
    for name, _ in where:
        require_open(f"--where {name}", name)
    if len(dict(where)) < len(where):
        raise click.UsageError("--where names a filter twice")
    return {name: _value(name, text) for name, text in where}


def purge_all(here: Here, database: Database, queue: "TaskQueue", there: int) -> int:
    """Move all tasks into the trash, step by step. Return their number."""
    progress = _Progress(here, database, there, "removed").tell
    with here.signals.deferred():
        return late.trash.purged(queue, database, None, progress=progress).changed


_DONE = {"bury": "buried", "cancel": "cancelled", "delete": "deleted", "kick": "kicked"}


class _Progress:
    """The lines that tell how far a change has come."""

    def __init__(self, here: Here, database: Database, there: int, done: str) -> None:
        self._here, self._there, self._now, self._done = here, there, database.runtime.monotonic, done
        self._next_s = self._now() + PLAIN_EVERY_S
        self._last = ChangedTasks()

    def tell(self, so_far: ChangedTasks) -> None:
        self._last = so_far
        self._here.counts(so_far.changed)
        if self._now() >= self._next_s and not self._here.as_json:
            say(f"{_looked(so_far, self._there)}, {so_far.changed:,} {self._done} so far")
            self._next_s = self._now() + PLAIN_EVERY_S
        if so_far.after is not None:
            self._here.signals.check()

    def tell_rest(self) -> None:
        if self._last.after is not None:
            done = f"{self._last.changed:,} {self._done}"
            say(f"{_looked(self._last, self._there)}, {done}; {_onward(self._last)}")


def rest_of(answer: "FoundTasks | ChangedTasks", there: int) -> str:
    """How far a walk that is not at its end has looked, and the option that goes on."""
    return f"{_looked(answer, there)}; {_onward(answer)}"


def _looked(so_far: "FoundTasks | ChangedTasks", there: int) -> str:
    return f"looked at {so_far.looked_at:,} of {counted(max(there, so_far.looked_at), 'task')}"


def _onward(so_far: "FoundTasks | ChangedTasks") -> str:
    return f"go on with --after {so_far.after}"


def _answer(
    here: Here, queue: str, answer: ChangedTasks, examples: Sequence[Row], there: int, done: str
) -> None:
    """`done`: empty for a dry run."""
    if not done and not here.as_json:
        here.show(examples, _EXAMPLES)
    done = f"{answer.changed:,} {done}" if done else f"{answer.matched:,} match, nothing was changed"
    rest = "" if answer.after is None else f"; {rest_of(answer, there)}"
    numbers = {name: getattr(answer, name) for name in ("looked_at", "matched", "changed", "after")}
    here.tell(f"{done}{rest}", {"queue": queue, **numbers, "examples": examples})


def _value(name: str, text: str) -> Any:
    with telling():
        return filter_value(name, text)


def _set_of(pairs: Pairs) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in pairs:
        first, _, limit = name.partition(".")
        if first == "limits":
            named = options.setdefault("limits", {})
            named |= {limit: key_in(text, False)} if limit else {one: None for one in (text,) if one}
        elif name in options:
            raise click.UsageError(f"--set names {name} twice")
        else:
            options[name] = _value(name, text)
    return options
