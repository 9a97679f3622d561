"""The sections of queues: of a plain queue (its items, and those that lie ready in a line), and of an element
queue.

And of a task queue. Each task is one line, read in one transaction, without its lease.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys, notice_of
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.rows import (
    NO_ROWS,
    Batch,
    ContentLine,
    Counts,
    Pair,
    Section,
    as_they_are,
    rows_in,
    single,
)
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.exports.file import ElementLine, ItemLine, TaskLine, TurnLine, progress, set_aside
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys, payload_bytes
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import is_held_by
from fdbqueue.tasks.failures import moved_bytes
from fdbqueue.tasks.rows import FeatureRows, rows_of_features
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.key_counts import SLUG_BYTES, readable_state
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import CALL_NAMES, Record, id_in, record_to_bytes, sound_record, unpacked

_HELD = 1
"""Bytes behind an item that lies in the line of all partitions: the number of its partition."""


def item_partitions_of(registry: Registry, definition: Definition) -> list[QueueKeys]:
    contents, plan = registry.contents(definition), plan_of(definition)
    numbers = range(1 if plan is None else plan.high)
    return [QueueKeys(Subspace((), prefix_of(contents, number))) for number in numbers]


def sections_of_items(registry: Registry, definition: Definition) -> list[Section]:
    parts = item_partitions_of(registry, definition)
    zero, shared = parts[0], SharedKeys(registry.contents(definition))
    found = [progress(registry.keys, definition.id), set_aside(Aside(zero.prefix, zero.line))]
    found.append(_lying(LineKeys(shared.line), lambda value: (value[:-_HELD], value[-1]), parts))
    for number, keys in enumerate(parts):
        found.append(_lying(LineKeys(keys.line), partial(_of_one, number), parts))
    for number, keys in enumerate(parts):
        found.append(Section(keys.items, _Items(keys, number).read))
        found.append(as_they_are(single(keys.floor), keys.prefix, number))
    return found


def _of_one(partition: int, value: bytes) -> tuple[bytes, int]:
    return value, partition


class _Items:
    def __init__(self, keys: QueueKeys, partition: int) -> None:
        self._keys = keys
        self._partition = partition

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        asked: list[Callable[[], ItemLine]] = []
        size_bytes = 0
        for row in rows:
            value = bytes(row.value)
            size_bytes += payload_bytes(value)
            if asked and size_bytes > limits.EXPORT_BATCH_BYTES:
                break
            asked.append(ask_item(tr, self._keys, self._partition, self._keys.suffix_of(row.key), value))
        lines = [line() for line in asked]
        return Batch(lines, len(lines), {"items": len(lines)})


def ask_item(
    tr: Transaction, keys: QueueKeys, partition: int, suffix: bytes, value: bytes
) -> Callable[[], ItemLine]:
    """Ask for the pieces of an item. The reply is its line."""
    is_whole = len(value) - 1 == payload_bytes(value)
    pieces: Callable[[], list[Pair]] = list if is_whole else rows_in(tr, keys.pieces_of(suffix))
    return lambda: ItemLine(partition, suffix, value, pieces())


def _lying(
    line: LineKeys, parted: Callable[[bytes], tuple[bytes, int]], parts: Sequence[QueueKeys]
) -> Section:
    """The items that lie ready in a line. `parted`: the value of an item there, and its partition."""

    def items(tr: Transaction, notice: KeyValue) -> Iterator[Pair]:
        found = notice_of(bytes(notice.value))
        if found is None:
            return
        if found.results:
            yield from found.results
            return
        rid = bytes(notice.key[len(line.all_notices.start) :])
        under = line.results(rid)
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.SERVE_MAX)
        yield from ((line.item_id_of(bytes(row.key)), bytes(row.value)) for row in rows)

    def read(tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        found = [(id_, *parted(value)) for row in rows[:1] for id_, value in items(tr, row)]
        asked = [
            ask_item(tr, parts[number], number, id_, value)
            for id_, value, number in found
            if number < len(parts)
        ]
        lines = [one() for one in asked]
        return Batch(lines, 1, {"items": len(lines), "lying": len(lines)} if lines else {})

    return Section(line.all_notices, read)


def sections_of_elements(registry: Registry, definition: Definition) -> list[Section]:
    keys = ElementKeys(registry.contents(definition))
    folders = slice(keys.count + b"\x00", keys.mark)
    return [
        progress(registry.keys, definition.id),
        set_aside(Aside(keys.prefix, keys.aside)),
        Section(keys.elements, _Elements(keys).read),
        as_they_are(folders, keys.prefix),
        as_they_are(single(keys.mark), keys.prefix),
    ]


class _Elements:
    def __init__(self, keys: ElementKeys) -> None:
        self._keys = keys

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        """No element tells its size, so those behind a large one wait for the next batch."""
        lines, size_bytes, used = list[ElementLine](), 0, 0
        names = [self._keys.name_in(row.key) if self._keys.is_sound(row.key) else None for row in rows]
        asked = [None if name is None else (name, rows_in(tr, self._keys.payload_of(name))) for name in names]
        for one in asked:
            used += 1
            if one is None:
                continue
            name, pieces = one
            lines.append(ElementLine(name, pieces()))
            size_bytes += sum(len(value) for _, value in lines[-1].pieces)
            if size_bytes > limits.EXPORT_BATCH_BYTES:
                break
        unreadable = used - len(lines)
        counts = {"elements": len(lines)}
        return Batch(lines, used, {**counts, "unreadable": unreadable} if unreadable else counts)


def sections_of_tasks(shape: Shape, *, leave_out: bool) -> list[Section]:
    shared, id_ = shape.shared, shape.definition.id
    parts = task_partitions_of(shape)
    found = [progress(shape.root, id_)]
    for rows in rows_of_features(shape):
        found += rows.shared_sections()
    found.append(set_aside(shape.aside))
    for part in parts:
        for rows in rows_of_features(part):
            found += rows.sections()
    found += [Section(part.keys.tasks, _Tasks(part, leave_out=leave_out).read) for part in parts]
    # A task that has moved meanwhile may have been missed in both of its partitions.
    found.append(Section(shared.all_moved, _Moved(shape, leave_out=leave_out).read))
    for part in parts:
        found += _behind_tasks(part)
    return found


def task_partitions_of(shape: Shape) -> list[Shape]:
    return [shape.partition(number) for number in range(1 if shape.plan is None else shape.plan.high)]


def takes_of(parts: Sequence[Shape], tr: Transaction) -> int:
    """The takes of all partitions. Reads by snapshot."""
    asked = [tr.snapshot.get(part.keys.calls) for part in parts]
    return sum(unpacked(CALL_NAMES, found.value)["take"] for found in asked)


def _behind_tasks(part: Shape) -> Iterator[Section]:
    keys = part.keys
    if isinstance(part.discipline, Fair):
        yield Section(part.discipline.states, _Turns(part).read)
        yield as_they_are(single(part.discipline.round_key), keys.prefix, keys.partition)
    for key in (keys.calls, keys.paused, keys.redrive):
        yield as_they_are(single(key), keys.prefix, keys.partition)
    for rows in rows_of_features(part):
        for column in rows.copied:
            yield as_they_are(column.all(keys.prefix), keys.prefix, keys.partition)


def round_of(part: Shape) -> bytes:
    """The key of the current round of a fair queue, behind the prefix of its partition."""
    assert isinstance(part.discipline, Fair)
    return part.discipline.round_key.removeprefix(part.keys.prefix)


_Asked = Callable[[], list[Pair]]


class _Tasks:
    def __init__(self, shape: Shape, *, leave_out: bool) -> None:
        self._shape = shape
        self._keys = shape.keys
        self._leave_out = leave_out
        self._features = rows_of_features(shape)

    def read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        read = [(row, sound_record(bytes(row.value), id_in(row.key))) for row in rows]
        used = _within_bytes([0 if record is None else moved_bytes(record) for _, record in read])
        records = [record for _, record in read[:used] if record is not None]
        lines, counts = self.lines(tr, records)
        unreadable = used - len(records)
        return Batch(lines, used, {**counts, "unreadable": unreadable} if unreadable else counts)

    def lines(self, tr: Transaction, records: Sequence[Record]) -> tuple[list[ContentLine], Counts]:
        """The lines of tasks. A cancelled task under a lease ends with that lease, and so it has none."""
        kept = [record for record in records if not record.cancelled_us]
        asked = [(self._free(record), self._ask(tr, record)) for record in kept]
        lines: list[ContentLine] = [
            TaskLine(
                self._keys.partition,
                record_to_bytes(record),
                payload(),
                failures(),
                {name: rows() for name, rows in beside.items()},
            )
            for record, (payload, failures, beside) in asked
        ]
        counts = {
            "tasks": len(lines),
            "leases": sum(record.state == TaskState.TAKEN for record in kept),
            "cancelled": len(records) - len(kept),
        }
        return lines, {name: count for name, count in counts.items() if count}

    def _ask(self, tr: Transaction, record: Record) -> tuple[_Asked, _Asked, dict[str, _Asked]]:
        """Ask for the payload, the failures and the rows of features that lie beside the record."""
        keys, id_ = self._keys, record.id
        under = {rows.name: rows.beside(record) for rows in self._of(record)}
        return (
            rows_in(tr, NO_ROWS if is_held_by(record) else keys.payloads_of(id_)),
            rows_in(tr, keys.failures_of(id_) if record.failures else NO_ROWS),
            {name: rows_in(tr, rows) for name, rows in under.items() if rows is not None},
        )

    def _free(self, record: Record) -> Record:
        """The task without its lease. Raises: ExportRefused."""
        free = edges.freed(record) if record.state == TaskState.TAKEN else record
        for rows in self._of(record):
            free = rows.leaving(free, self._leave_out)
        return free

    def _of(self, record: Record) -> Sequence[FeatureRows]:
        return () if record.extra is None else self._features


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
        lines = list[ContentLine]()
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
