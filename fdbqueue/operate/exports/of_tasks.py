"""The sections of a task queue. Each task is one line, read in one transaction, without its lease.

Results, windows and ended tasks come before tasks: of a task that ends meanwhile, the file has the task or
its end, and never both.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.errors import ExportRefused
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.exports.lines import (
    NO_ROWS,
    Batch,
    Content,
    Counts,
    EndedLine,
    ResultLine,
    Row,
    Section,
    TaskLine,
    TurnLine,
    WindowLine,
    as_they_are,
    progress,
    rows_in,
    set_aside,
    single,
)
from fdbqueue.tasks import edges, results
from fdbqueue.tasks.disciplines.fair import Fair
from fdbqueue.tasks.disciplines.key_counts import SLUG_BYTES, readable_state
from fdbqueue.tasks.failures import moved_bytes
from fdbqueue.tasks.members import groups_of, without_groups
from fdbqueue.tasks.payloads import is_held_by
from fdbqueue.tasks.records.keys import (
    ID_BYTES,
    NEVER_US,
    Record,
    TaskKeys,
    id_in,
    id_text,
    record_to_bytes,
    sound_record,
)
from fdbqueue.tasks.records.statistics import CALLS, unpacked
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.steps import has_steps

GROUP_LEFT_OUT = "GroupLeftOut"
"""The class of failure of a task that waited for a group."""


def sections(shape: Shape, *, leave_out: bool) -> list[Section]:
    shared, id_ = shape.shared, shape.definition.id
    found = [
        progress(shape.root, id_),
        Section(shared.results, _Results(shape).read),
        Section(shared.windows, _Windows(shape).read),
        set_aside(shape.aside),
    ]
    parts = partitions_of(shape)
    found += [Section(part.keys.all_ended, _Ended(part.keys).read) for part in parts]
    found += [Section(part.keys.tasks, _Tasks(part, leave_out=leave_out).read) for part in parts]
    # A task that has moved meanwhile may have been missed in both of its partitions.
    found.append(Section(shared.all_moved, _Moved(shape, leave_out=leave_out).read))
    for part in parts:
        found += _behind_tasks(part)
    return found


def partitions_of(shape: Shape) -> list[Shape]:
    return [shape.partition(number) for number in range(1 if shape.plan is None else shape.plan.high)]


def takes_of(parts: Sequence[Shape], tr: Transaction) -> int:
    """The takes of all partitions. Reads by snapshot."""
    asked = [tr.snapshot.get(part.keys.calls) for part in parts]
    return sum(unpacked(CALLS, found.value)["take"] for found in asked)


def _behind_tasks(part: Shape) -> Iterator[Section]:
    keys = part.keys
    if isinstance(part.discipline, Fair):
        yield Section(part.discipline.states, _Turns(part).read)
        yield as_they_are(single(part.discipline.round_key), keys.prefix, keys.partition)
    for key in (keys.calls, keys.paused, keys.redrive):
        yield as_they_are(single(key), keys.prefix, keys.partition)


def round_of(part: Shape) -> bytes:
    """The key of the current round of a fair queue, behind the prefix of its partition."""
    assert isinstance(part.discipline, Fair)
    return part.discipline.round_key.removeprefix(part.keys.prefix)


class _Results:
    def __init__(self, shape: Shape) -> None:
        self._keys = shape.shared

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        """A result of several pieces lies before them: their rows are passed over."""
        asked: list[tuple[bytes, bytes, Callable[[], list[Row]]]] = []
        used = 0
        for row in rows:
            id_ = bytes(row.key[len(self._keys.results.start) :])
            if len(id_) == ID_BYTES:
                is_large = not _is_whole(row.value)
                if asked and is_large:
                    break
                asked.append((id_, bytes(row.value), rows_in(tr, self._pieces(id_)) if is_large else list))
            used += 1
        lines = [ResultLine(id_, value, pieces()) for id_, value, pieces in asked]
        return Batch(lines, used, {"results": len(lines)})

    def _pieces(self, id_: bytes) -> slice:
        under = self._keys.result(id_)
        return slice(under, self._keys.pieces_of(id_).stop)


def _is_whole(value: bytes) -> bool:
    try:
        stored = results.stored_of(value)
    except DAMAGED:
        return False
    return stored.size_bytes is None or results.is_whole(stored.size_bytes)


class _Windows:
    def __init__(self, shape: Shape) -> None:
        self._keys = shape.shared

    def read(self, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
        parts = [(*self._keys.window_parts(bytes(row.key)), bytes(row.value)) for row in rows]
        return Batch([WindowLine(*part) for part in parts], len(rows))


class _Ended:
    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys

    def read(self, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
        lines = [EndedLine(self._keys.partition, id_in(row.key), bytes(row.value)) for row in rows]
        return Batch(lines, len(rows), {"ended": len(lines)})


class _Tasks:
    def __init__(self, shape: Shape, *, leave_out: bool) -> None:
        self._shape = shape
        self._keys = shape.keys
        self._leave_out = leave_out

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        read = [(row, sound_record(bytes(row.value), id_in(row.key))) for row in rows]
        used = _within_bytes([0 if record is None else moved_bytes(record) for _, record in read])
        records = [record for _, record in read[:used] if record is not None]
        lines, counts = self.lines(tr, records)
        unreadable = used - len(records)
        return Batch(lines, used, {**counts, "unreadable": unreadable} if unreadable else counts)

    def lines(self, tr: Transaction, records: Sequence[Record]) -> tuple[list[Content], Counts]:
        """The lines of tasks. A cancelled task under a lease ends with that lease, and so it has none."""
        kept = [record for record in records if not record.cancelled_us]
        asked = [(self._free(record), self._ask(tr, record)) for record in kept]
        lines: list[Content] = [
            TaskLine(self._keys.partition, record_to_bytes(record), *(rows() for rows in beside))
            for record, beside in asked
        ]
        counts = {
            "tasks": len(lines),
            "leases": sum(record.state == TaskState.TAKEN for record in kept),
            "cancelled": len(records) - len(kept),
        }
        return lines, {name: count for name, count in counts.items() if count}

    def _ask(self, tr: Transaction, record: Record) -> list[Callable[[], list[Row]]]:
        """Ask for the payload, the failures and the steps that lie beside the record."""
        keys, id_ = self._keys, record.id
        return [
            rows_in(tr, NO_ROWS if is_held_by(record) else keys.payloads_of(id_)),
            rows_in(tr, keys.failures_of(id_) if record.failures else NO_ROWS),
            rows_in(tr, keys.steps_of(id_) if has_steps(record) else NO_ROWS),
        ]

    def _free(self, record: Record) -> Record:
        """The task without its lease and its groups. Raises: ExportRefused for a task with a group."""
        waits = record.extra is not None and record.extra.waits
        if (waits or groups_of(record)) and not self._leave_out:
            task = f"its task {id_text(record.id)}"
            reason = f"{task} belongs to a group, or waits for one; --leave-out leaves groups out"
            raise ExportRefused(name=self._shape.name, reason=reason)
        free = without_groups(edges.freed(record) if record.state == TaskState.TAKEN else record)
        if not waits or free.extra is None:
            return free
        # Without its group it would wait for ever: so it is buried, where an operator finds it.
        return replace(
            free,
            state=TaskState.BURIED,
            until_us=NEVER_US,
            error=GROUP_LEFT_OUT,
            extra=replace(free.extra, waits=b""),
        )


class _Turns:
    def __init__(self, part: Shape) -> None:
        self._partition = part.keys.partition
        assert isinstance(part.discipline, Fair)
        self._start = part.discipline.states.start

    def read(self, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
        states = [
            (bytes(row.key[len(self._start) + SLUG_BYTES :]), readable_state(row.value)) for row in rows
        ]
        lines = [TurnLine(self._partition, key, state.round, state.used) for key, state in states if state]
        return Batch(lines, len(rows))


class _Moved:
    """The tasks that lie in another partition than that of their put, once more."""

    def __init__(self, shape: Shape, *, leave_out: bool) -> None:
        self._shape = shape
        self._leave_out = leave_out

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        places = [(id_in(row.key), row.value[-1]) for row in rows]
        asked = [(id_, place, tr.snapshot.get(self._part(place).keys.task(id_))) for id_, place in places]
        read = [(place, sound_record(value.value, id_)) for id_, place, value in asked]
        used = _within_bytes([0 if record is None else moved_bytes(record) for _, record in read])
        by_partition: dict[int, list[Record]] = {}
        for place, record in read[:used]:
            if record is not None:
                by_partition.setdefault(place, []).append(record)
        lines = list[Content]()
        for place, records in by_partition.items():
            lines += _Tasks(self._part(place), leave_out=self._leave_out).lines(tr, records)[0]
        return Batch(lines, used)

    def _part(self, place: int) -> Shape:
        return self._shape.partition(place)


def _within_bytes(sizes: Sequence[int]) -> int:
    """The number of the first tasks that fit into a batch: one at least."""
    total = 0
    for at, size_bytes in enumerate(sizes):
        total += size_bytes
        if at and total > limits.EXPORT_BATCH_BYTES:
            return at
    return len(sizes)
