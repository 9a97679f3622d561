"""`put`, in batches of one transaction each; `get`, `peek` and `size` of queues of items; and `clear`.

An item leaves the queue when its line has been read, not before. A pipe accepts dozens of lines before its
reader reads the first, and drops them if the reader ends. So each line is written after the one before it was
read, and held items that were not read go back to the queue.

`aside` lists, exports and removes the values that were set aside.
"""

import io
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fdbqueue import queues as late_queues
from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import FairQueueFull, QueueFull, TooMuchForOneTransaction
from fdbqueue.core.once import run_once
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import FAIR_ITEMS, PLAIN
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.unreadable import KeepsAside, SetAside
from fdbqueue.core.visible import counted
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import LineWriter, Refused, about
from fdbqueue.operate.cli.frame import (
    WAIT,
    Here,
    Input,
    Seconds,
    UsablePath,
    cli,
    command,
    first_option,
    given_of,
    put_options,
    queue_argument,
    values_of,
    yes_option,
)
from fdbqueue.operate.cli.redacting import require_open, seen
from fdbqueue.operate.cli.session import CREATE_HERE, ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import Row, columns, paged, task_row
from fdbqueue.operate.cli.wording import LineReader, line_of, option_named
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.options import OnConflict

if TYPE_CHECKING:
    from fdbqueue.queues.recipe.calls import Holder


CREATE_EITHER = "--create makes a plain one, `fdbqueue create {name}` one of tasks"
Sink = Callable[[Sequence[Any]], None]
"""A function that puts values, in order, in one transaction."""
Advance = Callable[[int, int], None]
"""A function that is told how many items were put, and how many bytes were read."""


@command(cli, queue_argument)
@click.argument("data", nargs=-1)
@click.option("--lines", type=Input("rb"), metavar="FILE|-", help="put each line of a file")
@click.option("--text", is_flag=True, help="put all data as text, never as JSON")
@click.option("--create", is_flag=True, help="make a plain QUEUE if there is none")
@put_options
@click.option("--group", metavar="GROUP", help="of tasks: members of an open group, by its id")
@click.option("--after", metavar="ID", help="of tasks: delayed until the task ID of QUEUE has ended")
@click.option("--timeout", type=WAIT, metavar="S", help="of tasks: wait S seconds for room in a full queue")
def put(
    here: Here,
    queue: str,
    data: tuple[str, ...],
    lines: io.BufferedReader | None,
    text: bool,
    create: bool,
    **options: Any,
) -> None:
    """Put DATA into QUEUE, which must exist: `create` makes one, --create a plain one.

    JSON is put as its value, other data as text: 42 is a number, hello a text. Data is refused if it begins
    like JSON ({, [ or a quote) but is not JSON. Empty lines are skipped. Write -- before data that begins
    with a dash. Options of tasks are for task queues of a kind that has them (see `create`). With --json,
    each task is printed on a line; `existed` is true for one that had the unique KEY before.
    """
    if bool(data) == bool(lines):
        raise click.UsageError("put takes DATA, or --lines FILE")
    _check_unique(options, data)
    values = values_of(data, text)
    given = given_of(options, text)

    def sink_in(database: Database) -> tuple[Sink, int]:
        kind = here.kind_of(database, queue, CREATE_EITHER, PLAIN if create else None)
        return _sink(here, database, queue, kind, given)

    def trial(database: Database) -> None:
        sink, batch_max = sink_in(database)
        _put_values(sink, values, batch_max)

    with here.made(trial, queue, create=create, cure=CREATE_HERE) as database:
        uncounted, batch_max = sink_in(database)
        with _counted(uncounted, queue) as sink:
            if lines is None:
                _put_values(sink, values, batch_max)
            else:
                with late.terminal.reporting(lines) as advance:
                    _put_lines(sink, LineReader(lines, text), batch_max, advance, here.signals)


def _check_unique(options: dict[str, Any], data: Sequence[str]) -> None:
    if options["unique"] is not None and len(data) != 1:
        raise click.UsageError("--unique is for one DATA")
    given = [option_named(name) for name in ("scope", "on_conflict", "debounce_max") if options[name]]
    if options["unique"] is None and given:
        raise click.UsageError(f"{', '.join(given)} {'needs' if len(given) == 1 else 'need'} --unique")
    if options["on_conflict"] == OnConflict.DEBOUNCE and options["debounce_max"] is None:
        raise click.UsageError("--on-conflict debounce needs --debounce-max")


def _sink(here: Here, database: Database, name: str, kind: str, options: dict[str, Any]) -> tuple[Sink, int]:
    """Return the function that puts values, and the largest number of values for one transaction."""
    if kind in (PLAIN, FAIR_ITEMS):
        ours, told = ((), "plain") if kind == PLAIN else (("key", "cost"), "fair")
        others = [option_named(option) for option in options if option not in ours]
        given = [*others, *(["--json"] if here.as_json else [])]
        if given:
            wanted = f"for task queues, and {name!r} is a {told} queue: `fdbqueue create` makes another one"
            raise click.UsageError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} {wanted}")
    if kind == FAIR_ITEMS:
        fair = late_queues.fair.FairQueue.named(database, name, create=False, root=here.root)

        def put_each(values: Sequence[Any]) -> None:
            for value in values:
                fair.put(database, value, **{"key": None, **options})

        return put_each, 1
    if kind == PLAIN:
        plain = Queue.named(database, name, root=here.root)
        return lambda values: plain.enqueue_many(database, values), limits.BATCH_ITEMS_MAX
    queue = here.tasks_in(database, name)

    def put_some(values: Sequence[Any]) -> None:
        if "unique" in options or "after" in options:
            tasks = [queue.put(database, value, **options) for value in values]
        else:
            tasks = queue.put_many(database, values, **options)
        for task in tasks if here.as_json else ():
            here.print({**task_row(task, queue.options), "existed": task.existed})

    # A batch needs room for all its tasks at once: a bounded queue may never have it.
    return put_some, 1 if queue.options["capacity"] else limits.BATCH_ITEMS_MAX


@contextmanager
def _counted(sink: Sink, queue: str) -> Iterator[Sink]:
    """Yield a sink that counts its values, as a queue may become full behind the first ones.

    Raises: Refused for QueueFull behind values that were put; otherwise QueueFull itself.
    """
    done = 0

    def put_some(values: Sequence[Any]) -> None:
        nonlocal done
        sink(values)
        done += len(values)

    try:
        yield put_some
    except QueueFull as full:
        if not done:
            raise
        noun = "item" if isinstance(full, FairQueueFull) else "task"
        held = f"it holds {counted(full.current_size, noun)}, its capacity is {full.capacity}.{full.cure}"
        raise Refused(f"The first {done} were put. Then the queue {queue!r} was full: {held}") from None


def _put_values(sink: Sink, values: Sequence[Any], batch_max: int) -> None:
    """Put `values`, in order, in few transactions."""
    for batch in batches_of(values, batch_max):
        try:
            _put_in_parts(sink, batch)
        except TypeError as reason:
            raise Refused(str(reason)) from None


def _put_in_parts(sink: Sink, batch: Sequence[Any]) -> None:
    """Put a batch, in halves if it does not fit: long keys and headers count beside the values."""
    try:
        sink(batch)
    except TooMuchForOneTransaction:
        if len(batch) == 1:
            raise
        half = len(batch) // 2
        _put_in_parts(sink, batch[:half])
        _put_in_parts(sink, batch[half:])


def _put_lines(sink: Sink, lines: LineReader, batch_max: int, advance: Advance, signals: Signals) -> None:
    """Put the values of all lines. A batch is reported after its commit, also if a signal arrives."""
    for values in lines.batches():
        with signals.deferred():
            for batch in batches_of(values, batch_max):
                _put_values(sink, batch, batch_max)
                advance(len(batch), lines.bytes_read)


def batches_of(values: Sequence[Any], batch_max: int = limits.BATCH_ITEMS_MAX) -> Iterator[Sequence[Any]]:
    """Split `values` into consecutive parts, each small enough for one transaction."""
    start = size_bytes = 0
    for end, value in enumerate(values):
        size_bytes += (length := len(line_of(value)))
        if end > start and (end - start == batch_max or size_bytes > limits.BATCH_BYTES_MAX):
            yield values[start:end]
            start, size_bytes = end, length
    if start < len(values):
        yield values[start:]


HELD_S = 0.5
"""Longest time for which a batch is held for a slow reader.

Other readers cannot get held items, which go back by themselves after limits.REQUEST_DEADLINE_S.
"""
_NOTHING = object()
Line = Callable[[Any], bytes]
"""Makes the line of an item."""


@command(cli, queue_argument)
@click.option("-n", "count", type=click.IntRange(min=1), default=1, metavar="N", help="up to N items [1]")
@click.option(
    "--wait", "wait_s", type=Seconds(endless=True), default=0.0, metavar="S", help="wait up to S seconds"
)
def get(here: Here, queue: str, count: int, wait_s: float) -> None:
    """Take items out of QUEUE and print them, one JSON value a line.

    An item leaves the queue when its line was written; on a pipe, when the line was read, and only then is
    the next one written. After Ctrl-C, or when the reader closes the pipe, the other items are back in their
    places; in a fair queue, they count as newly put. After a crash they come back within seconds; the item of
    the last line may come back too. For tasks, use `work`, which runs a handler for each. With --json, each
    line is an object with the item as its `data`.
    """
    with here.items(queue) as (database, found):
        holder = found.holder(database)
        if not get_lines(database, holder, here.out(), here.signals, count, wait_s, _line(here)):
            raise Refused(f"{queue!r} is empty")


@command(cli, queue_argument)
def peek(here: Here, queue: str) -> None:
    """Print the first item of QUEUE as JSON, without removing it.

    With --json, an object has the item as its `data`.
    """
    with here.items(queue) as (database, found):
        value = found.peek(database, _NOTHING)
    if value is _NOTHING:
        raise Refused(f"{queue!r} is empty")
    here.out().print(_line(here)(seen("data", value)))


def _line(here: Here) -> Line:
    return (lambda value: line_of({"data": value})) if here.as_json else line_of


@command(cli, queue_argument)
def size(here: Here, queue: str) -> None:
    """Print the number of items in QUEUE.

    With --json, an object has it as `items`.
    """
    with here.items(queue) as (database, found):
        items = found.size(database)
    here.print({"queue": queue, "items": items} if here.as_json else items)


@command(cli, queue_argument, yes_option)
def clear(here: Here, queue: str, yes: bool) -> None:
    """Remove every item of QUEUE."""
    with here.queue(queue) as (database, found):
        if not yes:
            there = f"{counted(found.size(database), 'item')} of {queue!r}"
            raise Refused(f"clear would remove {there}: confirm with --yes")
        removed = remove_items(database, here, found)
        here.counts(removed)
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
        back = f"{counted(shown, 'item')} came back into the queue, to come twice"
        raise Refused(f"the reader took too long, so {back}")
    return len(values), shown


EXPORT_FILE = UsablePath(dir_okay=False, path_type=Path)


@command(cli, queue_argument, first_option)
@click.option("--export", "path", type=EXPORT_FILE, metavar="FILE", help="append all values to FILE")
@click.option("--remove", "ids", multiple=True, metavar="ID", help="remove the value of that id; repeatable")
@click.option("--remove-all", is_flag=True, help="remove all values; with --export, all exported ones")
def aside(
    here: Here, queue: str, count: int, path: Path | None, ids: tuple[str, ...], remove_all: bool
) -> None:
    """List the values of QUEUE that could not be read and were set aside.

    The oldest comes first. Columns: id, when (seconds since the epoch), bytes, key (in hexadecimal), reason.
    With --json, and in an exported file, each line also has `values`, the stored bytes in base64: the value
    of the key first, then those of the payload. If only the payload of a task cannot be read, the task is
    buried instead: see `tasks --state buried`.
    """
    require_open("aside")
    with here.database() as database:
        found = _queue(here, database, queue)
        if path is not None:
            exported = _export(database, found, path)
            count = len(exported)
            here.tell(f"{count} exported to {path}", {"queue": queue, "exported": count})
            ids += tuple(exported) if remove_all else ()
        elif remove_all:
            ids += tuple(entry.id for entry in _entries(database, found))
        if ids or remove_all:
            removed = 0
            for start in range(0, len(ids), limits.VERB_BATCH):
                with here.signals.deferred():
                    removed += found.remove_aside(database, ids[start : start + limits.VERB_BATCH])
            here.tell(f"{removed} removed", {"queue": queue, "removed": removed})
        elif path is None:
            entries = paged(partial(found.aside, database), count, f"more follow the first {count}")
            here.show(map(_row, entries), columns("id", "when", "bytes", "key", "reason"))


def _queue(place: Place, database: Database, name: str) -> KeepsAside:
    """Open the queue of that name, of any kind. Raises CommandError."""
    found = place.definition(database, name)
    return place.elements_in(found) if found.kind in ELEMENT_KINDS else place.lined_in(database, found)


def _entries(database: Database, queue: KeepsAside) -> Iterator[SetAside]:
    return every_row(partial(queue.aside, database, limits.VERB_BATCH))


def _row(entry: SetAside) -> Row:
    return {
        "id": entry.id,
        "when": entry.when,
        "bytes": sum(map(len, entry.values)),
        "key": entry.key.hex(),
        "reason": entry.reason,
        "values": [b64encode(value).decode() for value in entry.values],
    }


def _export(database: Database, queue: KeepsAside, path: Path) -> list[str]:
    """Append all entries to the file; return their ids."""
    written = []
    with about(path), path.open("ab") as file:
        for entry in _entries(database, queue):
            file.write(line_of(_row(entry)))
            written.append(entry.id)
        file.flush()
        os.fsync(file.fileno())  # the exported entries may be removed next
    return written
