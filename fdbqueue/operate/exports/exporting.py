"""Export: queues, read in bounded transactions, and written to a file batch by batch.

No transaction sees a whole queue. So a queue must be paused, and stay so, or the caller accepts that it is in
use: then each task is in the file as it was at some moment of the export. Each transaction reads the
definition: a queue that is dropped, created anew or repartitioned meanwhile ends the export.

Sections are the parts of a queue: of a plain one its items, and those that lie ready in a line; of an element
queue its elements; of a task queue its tasks. Each is one line, read in one transaction, without its lease.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fdb.subspace_impl import Subspace
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable, ExportRefused, QueueNotFound, UnknownKind
from fdbqueue.core.line.decision import LineKeys, notice_of
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import (
    IMPORTING,
    PIECES,
    PLAIN,
    SIMPLE,
    UNREADABLE,
    Definition,
    Registry,
    checked_name,
)
from fdbqueue.core.rows import (
    NO_ROWS,
    Batch,
    ContentLine,
    Counts,
    Line,
    Pair,
    Section,
    as_they_are,
    rows_in,
    single,
)
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.core.version import __version__
from fdbqueue.operate.exports.file import (
    FORMAT,
    CallsLine,
    DoneLine,
    ElementLine,
    End,
    ExportFile,
    Header,
    ItemLine,
    LimitLine,
    Mark,
    QueueLine,
    TaskLine,
    TurnLine,
    progress,
    set_aside,
)
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys, payload_bytes
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import is_held_by
from fdbqueue.tasks.failures import moved_bytes
from fdbqueue.tasks.limits.rule import LimitKeys, rule_of
from fdbqueue.tasks.options import is_kind, owner_of
from fdbqueue.tasks.rows import FeatureRows, rows_of_features
from fdbqueue.tasks.schedules import list_schedules
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.key_counts import SLUG_BYTES, readable_state
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import Record, calls_in, id_in, record_to_bytes, sound_record

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
    found.append(_lying(LineKeys(shared.line), None, parts))
    found += [_lying(LineKeys(keys.line), number, parts) for number, keys in enumerate(parts)]
    for number, keys in enumerate(parts):
        found.append(Section(keys.items, partial(_items, keys, number)))
        found.append(as_they_are(single(keys.floor), keys.prefix, number))
    return found


def _items(keys: QueueKeys, partition: int, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
    asked: list[Callable[[], ItemLine]] = []
    size_bytes = 0
    for row in rows:
        value = bytes(row.value)
        size_bytes += payload_bytes(value)
        if asked and size_bytes > limits.EXPORT_BATCH_BYTES:
            break
        asked.append(ask_item(tr, keys, partition, keys.suffix_of(row.key), value))
    lines = [line() for line in asked]
    return Batch(lines, len(lines), {"items": len(lines)})


def ask_item(
    tr: Transaction, keys: QueueKeys, partition: int, suffix: bytes, value: bytes
) -> Callable[[], ItemLine]:
    """Ask for the pieces of an item. The reply is its line."""
    is_whole = len(value) - 1 == payload_bytes(value)
    pieces: Callable[[], list[Pair]] = list if is_whole else rows_in(tr, keys.pieces_of(suffix))
    return lambda: ItemLine(partition, suffix, value, pieces())


def _lying(line: LineKeys, partition: int | None, parts: Sequence[QueueKeys]) -> Section:
    """The items that lie ready in a line: in that of all partitions, each value tells its own."""

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
        asked = []
        for id_, value in items(tr, rows[0]):
            number = value[-1] if partition is None else partition
            own = value[:-_HELD] if partition is None else value
            asked += [ask_item(tr, part, number, id_, own) for part in parts[number : number + 1]]
        lines = [one() for one in asked]
        return Batch(lines, 1, {"items": len(lines), "lying": len(lines)} if lines else {})

    return Section(line.all_notices, read)


def sections_of_elements(registry: Registry, definition: Definition) -> list[Section]:
    keys = ElementKeys(registry.contents(definition))
    folders = slice(keys.count + b"\x00", keys.mark)
    return [
        progress(registry.keys, definition.id),
        set_aside(Aside(keys.prefix, keys.aside)),
        Section(keys.elements, partial(_elements, keys)),
        as_they_are(folders, keys.prefix),
        as_they_are(single(keys.mark), keys.prefix),
    ]


def _elements(keys: ElementKeys, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
    """No element tells its size, so those behind a large one wait for the next batch."""
    lines, size_bytes, used = list[ElementLine](), 0, 0
    names = [keys.name_in(row.key) if keys.is_sound(row.key) else None for row in rows]
    asked = [None if name is None else (name, rows_in(tr, keys.payload_of(name))) for name in names]
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
    found += [Section(part.keys.tasks, TasksOf(part, leave_out=leave_out).read) for part in parts]
    # A task that has moved meanwhile may have been missed in both of its partitions.
    found.append(Section(shared.all_moved, partial(_moved, shape, leave_out)))
    for part in parts:
        found += _behind_tasks(part)
    return found


def task_partitions_of(shape: Shape) -> list[Shape]:
    return [shape.partition(number) for number in range(1 if shape.plan is None else shape.plan.high)]


def takes_of(parts: Sequence[Shape], tr: Transaction) -> int:
    """The takes of all partitions. Reads by snapshot."""
    asked = [tr.snapshot.get(part.keys.counters) for part in parts]
    return sum(calls_in(found.value)["take"] for found in asked)


def _behind_tasks(part: Shape) -> Iterator[Section]:
    keys = part.keys
    if isinstance(part.discipline, Fair):
        yield Section(part.discipline.states, partial(_turns, keys.partition, part.discipline))
        yield as_they_are(single(part.discipline.round_key), keys.prefix, keys.partition)
    yield Section(single(keys.counters), partial(_calls, keys.partition))
    for key in (keys.paused, keys.redrive):
        yield as_they_are(single(key), keys.prefix, keys.partition)
    for rows in rows_of_features(part):
        for column in rows.copied:
            yield as_they_are(column.all(keys.prefix), keys.prefix, keys.partition)


def _calls(partition: int, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
    return Batch([CallsLine(partition, calls_in(row.value)) for row in rows], len(rows))


def round_of(part: Shape) -> bytes:
    """The key of the current round of a fair queue, behind the prefix of its partition."""
    assert isinstance(part.discipline, Fair)
    return part.discipline.round_key.removeprefix(part.keys.prefix)


_Asked = Callable[[], list[Pair]]


class TasksOf:
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

    def lines(self, tr: Transaction, records: Sequence[Record]) -> tuple[list[TaskLine], Counts]:
        """The lines of tasks. A cancelled task under a lease ends with that lease, and so it has none."""
        kept = [record for record in records if not record.cancelled_us]
        asked = [(self._free(record), self._ask(tr, record)) for record in kept]
        lines = [
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


def _turns(partition: int, fair: Fair, _: Transaction, rows: Sequence[KeyValue]) -> Batch:
    behind = len(fair.states.start) + SLUG_BYTES
    states = [(bytes(row.key[behind:]), readable_state(row.value)) for row in rows]
    lines = [TurnLine(partition, key, state.round, state.used) for key, state in states if state]
    return Batch(lines, len(rows))


def _moved(shape: Shape, leave_out: bool, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
    """The tasks that lie in another partition than that of their put, once more."""
    places = [(id_in(row.key), row.value[-1]) for row in rows]
    asked = [(id_, place, tr.snapshot.get(shape.partition(place).keys.task(id_))) for id_, place in places]
    read = [(place, sound_record(value.value, id_)) for id_, place, value in asked]
    used = _within_bytes([0 if record is None else moved_bytes(record) for _, record in read])
    by_partition: dict[int, list[Record]] = {}
    for place, record in read[:used]:
        if record is not None:
            by_partition.setdefault(place, []).append(record)
    lines = list[ContentLine]()
    for place, records in by_partition.items():
        lines += TasksOf(shape.partition(place), leave_out=leave_out).lines(tr, records)[0]
    return Batch(lines, used)


def _within_bytes(sizes: Sequence[int]) -> int:
    """The number of the first tasks that fit into a batch: one at least."""
    total = 0
    for at, size_bytes in enumerate(sizes):
        total += size_bytes
        if at and total > limits.EXPORT_BATCH_BYTES:
            return at
    return len(sizes)


ID_BYTES = 16
_CHANGED = "its definition has changed since the export began: begin another one"
REFUSALS = (QueueNotFound, ExportRefused, UnknownKind, DefinitionUnreadable)
"""The errors of a queue that cannot be exported as it is."""


class Exported(NamedTuple):
    name: str
    counts: Counts
    is_done: bool


class Export:
    def __init__(
        self,
        database: Database,
        registry: Registry,
        names: Sequence[str] = (),
        *,
        in_use: bool = False,
        leave_out: bool = False,
    ) -> None:
        """`names`: the queues; none for all under the root. `in_use`: they need not be paused. `leave_out`:
        groups, and schedules that put into the queues, stay behind.

        Raises: InvalidArgument.
        """
        self.database = database.at("background")
        self.registry = registry
        self._names = sorted({checked_name(name) for name in names})
        self.in_use = in_use
        self.leave_out = leave_out

    def run(self, path: Path) -> Iterator[Exported]:
        """Write the export, or go on with the one in that file. Yield after each batch.

        All queues are looked at first, so a queue that is refused costs no export of the others. A new
        export that is refused leaves no file.
        Raises: QueueNotFound, ExportRefused, ExportUnusable, ExportInUse, UnknownKind, DefinitionUnreadable,
        OSError.
        """
        id_ = self.database.runtime.random_bytes(ID_BYTES).hex()
        header = Header(FORMAT, id_, __version__, self._names, self.in_use, self.leave_out)
        with ExportFile(path, header) as file:
            if file.state.is_finished:
                return
            try:
                yield from self._written(file)
            except REFUSALS:
                file.discard()
                raise

    def _written(self, file: ExportFile) -> Iterator[Exported]:
        schedules = self.schedules_by_queue()
        for name in self._left(file.state.last):
            _OneQueue(self, file, name).require_fit(schedules)
        for name in self._left(file.state.last):
            yield from _OneQueue(self, file, name).run()
            file.sync()
        file.write([End(file.state.done)])
        file.sync()

    def _left(self, after: str) -> Iterator[str]:
        """The queues that are not in the file yet, in order of their names."""
        if self._names:
            yield from (name for name in self._names if name > after)
            return
        while found := self.registry.names(self.database, after):
            yield from (one.name for one in found if not is_left_out(one))
            after = found[-1].name

    def schedules_by_queue(self) -> Mapping[str, Sequence[str]]:
        """The schedules that put into each queue. None if schedules stay behind."""
        found, root = defaultdict[str, list[str]](list), Subspace((), self.registry.keys.prefix)
        after: str | None = None if self.leave_out else ""
        while after is not None:
            page = list_schedules(self.database, after=after, root=root)
            for one in page:
                found[one.queue].append(one.name)
            after = page.next
        return found


def is_left_out(definition: Definition) -> bool:
    return definition.kind == IMPORTING or definition.options.get("temporary") is not None


def _value_of(tr: Transaction, key: bytes) -> bytes | None:
    value: bytes | None = tr.get(key).value
    return value


class _OneQueue:
    def __init__(self, export: Export, file: ExportFile, name: str) -> None:
        self._export = export
        self._file = file
        self._database, self._registry = export.database, export.registry
        self._key = self._registry.keys.definition(name)
        self._stored: bytes | None = run(self._database, lambda tr: tr.get(self._key).value)
        if self._stored is None:
            raise QueueNotFound(name=name)
        self._definition = Definition.listed(name, self._stored)

    def require_fit(self, schedules: Mapping[str, Sequence[str]]) -> None:
        _, pause = self._sections()
        if pause is not None:
            self._require_paused(run(self._database, partial(_value_of, key=pause)))
        self._require_none_of(schedules)

    def run(self) -> Iterator[Exported]:
        name, (sections, pause) = self._definition.name, self._sections()
        begun = self._begin(0 if pause is None else self._takes())
        mark = self._file.state.mark
        root, after = self._registry.keys.prefix, b"" if mark is None else mark.after
        at, begin = 0 if mark is None else mark.section, after and root + after
        first: Counts = {"unreadable": begun.unreadable_limits} if begun.unreadable_limits else {}
        counts = dict(first if mark is None else mark.counts)
        while at < len(sections):
            found, begin = run(self._database, partial(self._batch, sections[at], begin, pause))
            for kind, count in found.counts.items():
                counts[kind] = counts.get(kind, 0) + count
            at += not begin
            self._file.write([*found.lines, Mark(at, begin.removeprefix(root), dict(counts))])
            yield Exported(name, counts, is_done=False)
        if pause is not None and self._takes() != begun.takes:
            raise self._refused("tasks were taken from it since the export began: begin another one")
        self._file.write([DoneLine(name, counts)])
        yield Exported(name, counts, is_done=True)

    def _batch(
        self, section: Section, begin: bytes, pause: bytes | None, tr: Transaction
    ) -> tuple[Batch, bytes]:
        """Read a batch, unless the queue has changed, or is not paused."""
        stored = tr.snapshot.get(self._key)
        paused = None if pause is None else tr.snapshot.get(pause)
        found = section.batch(tr, begin)
        if stored.value != self._stored:
            raise self._refused(_CHANGED)
        if paused is not None:
            self._require_paused(paused.value)
        return found

    def _require_paused(self, value: bytes | None) -> None:
        if value is None:
            reason = "it is not paused: `fdbqueue pause` does that; --in-use exports it all the same"
            raise self._refused(reason)

    def _begin(self, takes: int) -> QueueLine:
        """The definition in the file: written now, or by an interrupted export. Raises: ExportRefused."""
        definition, there = self._definition, self._file.state.queue
        begun = QueueLine(definition.name, definition.id, definition.kind, dict(definition.options), takes)
        if there is None:
            # A schedule may have come since the first look, while other queues were written.
            self._require_none_of(self._export.schedules_by_queue())
            limits, begun.unreadable_limits = self._limits()
            self._file.write([*limits, begun])
            return begun
        if replace(there, takes=takes, unreadable_limits=0) != begun:
            raise self._refused(_CHANGED)
        return there

    def _takes(self) -> int:
        """The takes of a task queue so far: a queue that was resumed in between has more of them."""
        shape = shape_of(self._registry, self._definition)
        return run(self._database, partial(takes_of, task_partitions_of(shape)))

    def _sections(self) -> tuple[list[Section], bytes | None]:
        """The parts of the queue, and the key that tells that it is paused; None if that does not count."""
        kind, registry, definition = self._definition.kind, self._registry, self._definition
        if is_kind(kind):
            if owner_of(definition) is not None:
                raise self._refused("it is temporary, and ends with its session")
            shape = shape_of(registry, definition)
            if shape.plan is not None and shape.plan.before:
                raise self._refused("it is being repartitioned: `fdbqueue repartition` finishes that")
            pause = None if self._export.in_use else shape.keys.paused
            return sections_of_tasks(shape, leave_out=self._export.leave_out), pause
        if kind not in (PLAIN, PIECES, SIMPLE):
            unknown = (
                "it is the unfinished import of an export" if kind == IMPORTING else f"its kind is {kind!r}"
            )
            raise self._refused("its definition cannot be read" if kind == UNREADABLE else unknown)
        if not self._export.in_use:
            raise self._refused("its kind has no pause: stop its producers and consumers, then use --in-use")
        of = sections_of_items if kind == PLAIN else sections_of_elements
        return of(registry, definition), None

    def _limits(self) -> tuple[Sequence[Line], int]:
        """The limits of the queue that exist, and the number of those that cannot be read."""
        options, lines, unreadable = self._definition.options, list[Line](), 0
        for name in (*options.get("limits", ()), *options.get("task_limits", ())):
            row = LimitKeys(self._registry.keys.prefix, name).row
            stored = run(self._database, partial(_value_of, key=row))
            rule = rule_of(stored)
            if rule is not None:
                lines.append(LimitLine(name, rule))
            unreadable += rule is None and stored is not None
        return lines, unreadable

    def _require_none_of(self, schedules: Mapping[str, Sequence[str]]) -> None:
        """Refuse a queue into which schedules put tasks."""
        names = schedules.get(self._definition.name)
        if names:
            told = f"the schedules {', '.join(map(repr, names))} put tasks into it"
            raise self._refused(f"{told}, and are not exported; --leave-out allows that")

    def _refused(self, reason: str) -> ExportRefused:
        return ExportRefused(name=self._definition.name, reason=reason)
