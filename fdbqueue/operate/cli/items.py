"""The commands of plain queues: `get`, `peek`, `size` and `clear`.

An item leaves the queue when its line has been read, not before. A pipe accepts dozens of lines before its
reader reads the first, and drops them if the reader ends. So each line is written after the one before it was
read, and held items that were not read go back to the queue.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fdbqueue.core import limits
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.group import Here, cli, command, queue_argument, yes_option
from fdbqueue.operate.cli.output import LineWriter
from fdbqueue.operate.cli.parameters import Seconds
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.values import line_of

if TYPE_CHECKING:
    from fdbqueue.queues.recipe.holding import Holder
    from fdbqueue.queues.recipe.queue import Queue

HELD_S = 0.5
"""Longest time for which a batch is held for a slow reader.

Other readers cannot get held items, which go back by themselves after limits.REQUEST_DEADLINE_S.
"""
_NOTHING = object()
Line = Callable[[Any], bytes]
"""Makes the line of an item."""


@command(cli)
@queue_argument
@click.option("-n", "count", type=click.IntRange(min=1), default=1, metavar="N", help="up to N items [1]")
@click.option(
    "--wait", "wait_s", type=Seconds(endless=True), default=0.0, metavar="S", help="wait up to S seconds"
)
def get(here: Here, queue: str, count: int, wait_s: float) -> None:
    """Take items out of QUEUE and print them, one JSON value a line.

    An item leaves the queue when its line was written; on a pipe, when the line was read, and only then is
    the next one written. After Ctrl-C, or when the reader closes the pipe, the other items are back in their
    places. After a crash they come back within seconds; the item of the last line may come back too. For
    tasks, use `work`, which runs a handler for each. With --json, each line is an object with the item as its
    `data`.
    """
    with here.queue(queue) as (database, found):
        holder = found.holder(database)
        if not get_lines(database, holder, here.out(), here.signals, count, wait_s, _line(here)):
            raise Refused(f"{queue!r} is empty")


@command(cli)
@queue_argument
def peek(here: Here, queue: str) -> None:
    """Print the first item of QUEUE as JSON, without removing it.

    With --json, an object has the item as its `data`.
    """
    with here.queue(queue) as (database, found):
        value = found.peek(database, _NOTHING)
    if value is _NOTHING:
        raise Refused(f"{queue!r} is empty")
    here.out().print(_line(here)(value))


def _line(here: Here) -> Line:
    return (lambda value: line_of({"data": value})) if here.as_json else line_of


@command(cli)
@queue_argument
def size(here: Here, queue: str) -> None:
    """Print the number of items in QUEUE.

    With --json, an object has it as `items`.
    """
    with here.queue(queue) as (database, found):
        items = found.size(database)
    here.print({"queue": queue, "items": items} if here.as_json else items)


@command(cli)
@queue_argument
@yes_option
def clear(here: Here, queue: str, yes: bool) -> None:
    """Remove every item of QUEUE."""
    with here.queue(queue) as (database, found):
        if not yes:
            there = f"{counted(found.size(database), 'item')} of {queue!r}"
            raise Refused(f"clear would remove {there}: confirm with --yes")
        removed = remove_items(database, here, found)
    here.tell(f"{removed} removed", {"queue": queue, "removed": removed})


def remove_items(database: Database, place: Place, queue: "Queue") -> int:
    """Clear a plain queue, and return the number of its items. A receipt keeps the number: after an unknown
    result, a retry would find none."""

    def body(tr: Transaction) -> int:
        removed = queue.size(tr)
        queue.clear(tr)
        return removed

    return run_once(database, RootKeys(place.root), body)


def get_lines(
    database: Database,
    holder: "Holder",
    out: LineWriter,
    signals: Signals,
    n: int,
    wait_s: float,
    line: Line = line_of,
) -> int:
    """Write up to `n` items as lines, waiting up to `wait_s` for them. Return the number of items."""
    monotonic = database.runtime.monotonic
    until, left, most = monotonic() + wait_s, n, limits.SERVE_MAX
    while left:
        # Wait for a slow reader here, where no item is held.
        out.is_drained(None)
        out.wait()
        held, shown = _show(holder, out, signals, min(left, most), monotonic, line)
        left -= shown
        # For each line that a slow reader reads, all held items are moved out and back: hold few of them.
        most = min(limits.SERVE_MAX, 2 * max(shown, 1))
        if not held:
            patience_s = until - monotonic()
            if patience_s <= 0:
                break
            holder.wait(patience_s)
    return n - left


def _show(
    holder: "Holder", out: LineWriter, signals: Signals, n: int, monotonic: Callable[[], float], line: Line
) -> tuple[int, int]:
    """Hold up to `n` items, and write each line when the reader has read the one before.

    Stops after HELD_S seconds. Returns the numbers of items held and lines written.
    """
    shown = 0
    with signals.deferred():
        values = holder.hold(n)
        until_s = monotonic() + HELD_S
        try:
            for value in values:
                if signals.arrived or not out.write(line(value)):
                    break
                drained = out.is_drained(until_s - monotonic())  # raises ReaderGone if this line was not read
                shown += 1
                if not drained:
                    break
        finally:
            in_time = not values or holder.settle(shown)
    if shown and not in_time:
        raise Refused(
            f"the reader took too long, so {counted(shown, 'item')} came back into the queue, to come twice"
        )
    return len(values), shown
