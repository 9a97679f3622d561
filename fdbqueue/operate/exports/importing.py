"""Import of an export: its queues, made anew from the file; each batch and the progress in one transaction.

    R[0, name]                     definition   of kind IMPORTING
    R[11, id, "export:..."]        progress     the place in the file of that export; it stays with the queue

No handle opens a queue of that kind, so the import has the queue alone. The last step writes the true
definition. After a kill, or an unknown result of a commit, the progress tells where to go on in the file.

Indexes, counters, pointers and timers are made anew, by the code that puts tasks. So a file with any lines
makes a sound queue, also one of another release or of a queue that was in use.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

from fdb import tuple as layer
from fdb.subspace_impl import Subspace
from msgspec.structs import replace as replace_struct

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.errors import ExportUnusable, ImportOvertaken, QueueNotFound
from fdbqueue.core.once import run_once
from fdbqueue.core.partitions import SharedKeys, plan_of
from fdbqueue.core.registry import IMPORTING, PIECES, PLAIN, SIMPLE, Definition, Registry, exists_already
from fdbqueue.core.rows import ContentLine, Counts, KeyLine, NotOurs, read_as, set_rows
from fdbqueue.core.seam import Transaction, Value
from fdbqueue.core.unreadable import COUNTER, Aside
from fdbqueue.operate.exports.exporting import item_partitions_of, round_of, task_partitions_of
from fdbqueue.operate.exports.file import (
    IMPORT_LABEL,
    AsideLine,
    CallsLine,
    DoneLine,
    ElementLine,
    FinishedFile,
    Found,
    ItemLine,
    LimitLine,
    Mark,
    Place,
    ProgressLine,
    TaskLine,
    TurnLine,
)
from fdbqueue.operate.imports import Progress, ProgressKeys
from fdbqueue.queues.elements.store import ARRIVAL, DEPARTURE, MARK, ElementKeys
from fdbqueue.queues.recipe.items import FLOOR, QueueKeys
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.rows import rows_of_features
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.source import change_of
from fdbqueue.tasks.stored.key_counts import readable_state
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import (
    CALL_NAMES,
    COUNTER_NAMES,
    PAUSED,
    REDRIVE,
    Record,
    packed,
    partition_of,
    record_of,
)

T = TypeVar("T")

_ONE = COUNTER.pack(1)


class Placer(Protocol):
    def place(self, tr: Transaction, lines: Sequence[ContentLine], now_us: int) -> None:
        """Write the contents of these lines. Raises NotOurs."""


class _Shared:
    """What queues of all kinds have: values set aside, progress of imports, and keys that are copied."""

    def __init__(
        self,
        registry: Registry,
        definition: Definition,
        aside: Aside,
        copied: Sequence[bytes],
        prefixes: Sequence[bytes],
    ) -> None:
        """`copied`: the first bytes of keys that are copied. `prefixes`: those of the partitions."""
        self._progress = registry.keys.imports_into(definition.id).start[:-1]
        self._aside = aside
        self._copied = tuple(copied)
        self._prefixes = prefixes

    def place(self, tr: Transaction, line: ContentLine) -> None:
        if isinstance(line, AsideLine):
            self._set_aside(tr, line)
        elif isinstance(line, ProgressLine):
            tr.set(self._progress + line.key, line.value)
        elif isinstance(line, KeyLine) and line.key.startswith(self._copied):
            tr.set(within(self._prefixes, line.partition) + line.key, line.value)
        else:
            raise NotOurs(type(line).__name__)

    def _set_aside(self, tr: Transaction, line: AsideLine) -> None:
        tr.set(self._aside.entry(line.id), line.entry)
        set_rows(tr, self._aside.part(line.id), line.parts)
        tr.add(self._aside.count_key, _ONE)


class Tasks:
    def __init__(self, registry: Registry, definition: Definition) -> None:
        self._shape = shape_of(registry, definition)
        plan = self._shape.plan
        self._parts = task_partitions_of(self._shape)
        prefixes = [part.keys.prefix for part in self._parts]
        rounds = [round_of(part) for part in self._parts if isinstance(part.discipline, Fair)][:1]
        self._features = rows_of_features(self._shape)
        self._taken_back = tuple(line for rows in self._features for line in rows.lines)
        of_features = columns(*(column for rows in self._features for column in rows.copied))
        copied = [*columns(PAUSED, REDRIVE), *rounds, *of_features]
        self._common = _Shared(registry, definition, self._shape.aside, copied, prefixes)
        self._may_be_twice = plan is not None and plan.may_have_moved

    def place(self, tr: Transaction, lines: Sequence[ContentLine], now_us: int) -> None:
        for rows in self._features:
            rows.place(tr, lines)
        self._tasks(tr, [line for line in lines if isinstance(line, TaskLine)], now_us)
        self._turns(tr, [line for line in lines if isinstance(line, TurnLine)])
        for line in lines:
            if isinstance(line, CallsLine):
                self._calls(tr, line)
            elif not isinstance(line, (TaskLine, TurnLine, *self._taken_back)):
                self._common.place(tr, line)

    def _tasks(self, tr: Transaction, lines: Sequence[TaskLine], now_us: int) -> None:
        if self._may_be_twice:
            lines = self._new(tr, lines)
        for number, few in groupby(lines, key=lambda line: line.partition):
            self._tasks_of(tr, within(self._parts, number), list(few), now_us)

    def _new(self, tr: Transaction, lines: Sequence[TaskLine]) -> list[TaskLine]:
        """The tasks that are not there yet. The file may have one in two partitions: it moved meanwhile."""
        unseen = {read_as(record_of, line.record).id: line for line in reversed(lines)}
        asked = [(id_, tr.get(self._shape.shared.moved(id_)), self._ask_home(tr, id_)) for id_ in unseen]
        there = {id_ for id_, *found in asked if any(one is not None and one.present() for one in found)}
        return [line for id_, line in reversed(unseen.items()) if id_ not in there]

    def _ask_home(self, tr: Transaction, id_: bytes) -> Value | None:
        number = partition_of(id_)
        return tr.get(self._parts[number].keys.task(id_)) if number < len(self._parts) else None

    def _tasks_of(self, tr: Transaction, part: Shape, lines: Sequence[TaskLine], now_us: int) -> None:
        change = change_of(tr, part, now_us)
        place_tasks(change, lines)
        change.finish()

    def _calls(self, tr: Transaction, line: CallsLine) -> None:
        if not line.counts.keys() <= set(CALL_NAMES) or min(line.counts.values(), default=0) < 0:
            raise NotOurs("calls")
        tr.add(within(self._parts, line.partition).keys.counters, packed(COUNTER_NAMES, line.counts))

    def _turns(self, tr: Transaction, lines: Sequence[TurnLine]) -> None:
        """Let task keys go on in their rounds; each has its tasks already."""
        asked = []
        for line in lines:
            fair = within(self._parts, line.partition).discipline
            if not isinstance(fair, Fair):
                raise NotOurs("turn")
            asked.append((fair, line, tr.get(fair.state_key(line.key)), fair.ask_oldest(tr, line.key)))
        for fair, line, found, first in asked:
            state, heads = readable_state(found.value), [read_as(record_of, row.value) for row in first]
            if state is not None and heads:
                there = replace_struct(state, round=line.round, used=line.used)
                fair.store(tr, line.key, state, there, heads[0])


def place_tasks(change: Change, lines: Sequence[TaskLine]) -> None:
    """Make the tasks of these lines in one partition. Raises NotOurs."""
    tr, keys, shared = change.tr, change.shape.keys, change.shape.shared
    records: Sequence[Record] = [read_as(record_of, line.record) for line in lines]
    change.ask_create({record.key for record in records})
    features = rows_of_features(change.shape)
    for rows in features:
        records = rows.arriving(tr, records, change.now_us)
    named = {rows.name: rows for rows in features}
    for record, line in zip(records, lines, strict=True):
        set_rows(tr, keys.payloads_of(record.id).start, line.payload)
        set_rows(tr, keys.failures_of(record.id).start, line.failures)
        for name, beside in line.beside.items():
            under = named[name].beside(record) if name in named else None
            if under is None:
                raise NotOurs(name)
            set_rows(tr, under.start, beside)
        if partition_of(record.id) != keys.partition:
            tr.set(shared.moved(record.id), bytes((keys.partition,)))
    change.restore(records)


class Items:
    def __init__(self, registry: Registry, definition: Definition) -> None:
        self._parts = item_partitions_of(registry, definition)
        self._flags = SharedKeys(registry.contents(definition)) if plan_of(definition) is not None else None
        aside = Aside(self._parts[0].prefix, self._parts[0].line)
        prefixes = [keys.prefix for keys in self._parts]
        self._common = _Shared(registry, definition, aside, columns(FLOOR), prefixes)

    def place(self, tr: Transaction, lines: Sequence[ContentLine], now_us: int) -> None:  # noqa: ARG002  # as for tasks
        asked = [
            (keys, line, tr.get(keys.item(line.suffix)))
            for line in lines
            if isinstance(line, ItemLine)
            for keys in [within(self._parts, line.partition)]
        ]
        seen = set[bytes]()
        for keys, line, there in asked:  # a queue in use may have shown an item in its line, too
            if not there.present() and keys.item(line.suffix) not in seen:
                seen.add(keys.item(line.suffix))
                self._item(tr, keys, line)
        for other in lines:
            if not isinstance(other, ItemLine):
                self._common.place(tr, other)

    def _item(self, tr: Transaction, keys: QueueKeys, line: ItemLine) -> None:
        tr.set(keys.item(line.suffix), line.value)
        set_rows(tr, keys.pieces_of(line.suffix).start, line.pieces)
        tr.add(keys.size, _ONE)
        if self._flags is not None:
            tr.set(self._flags.flag(line.partition), b"")


class Elements:
    def __init__(self, registry: Registry, definition: Definition) -> None:
        self._keys = ElementKeys(registry.contents(definition))
        aside = Aside(self._keys.prefix, self._keys.aside)
        copied = columns(ARRIVAL, DEPARTURE, MARK)
        self._common = _Shared(registry, definition, aside, copied, [self._keys.prefix])

    def place(self, tr: Transaction, lines: Sequence[ContentLine], now_us: int) -> None:  # noqa: ARG002  # as for tasks
        for line in lines:
            if not isinstance(line, ElementLine):
                self._common.place(tr, line)
                continue
            tr.set(self._keys.element(line.name), b"")
            set_rows(tr, self._keys.payload_of(line.name).start, line.pieces)
            tr.add(self._keys.count, _ONE)


def within(parts: Sequence[T], number: int) -> T:
    if not 0 <= number < len(parts):
        raise NotOurs(f"partition {number}")
    return parts[number]


def columns(*numbers: int) -> list[bytes]:
    """The first bytes, behind the prefix of a queue, of the keys of these columns."""
    return [layer.pack((number,)) for number in numbers]


STEP_BYTES = 12


class Imported(NamedTuple):
    name: str
    counts: Counts
    """Those of the export, when the queue is done."""
    is_done: bool
    was_there: bool = False
    """True if an earlier import of the same export has finished it."""


class _Batch(NamedTuple):
    lines: Sequence[ContentLine]
    place: Place
    """Behind its last line."""
    done: DoneLine | None = None
    """The end of the queue, if this is its last batch."""


class Import:
    def __init__(
        self, database: Database, registry: Registry, file: FinishedFile, names: Collection[str] = ()
    ) -> None:
        for name in names:
            if name not in file.queues:
                raise QueueNotFound(name=name)
        self._database = database.at("background")
        self._registry = registry
        self._file = file
        self._names = frozenset(names or file.queues)

    def run(self) -> Iterator[Imported]:
        """Import the queues, or go on with an interrupted import of the same file. Yield after each batch.

        Raises: QueueExists, ImportOvertaken, QueueDropped, ExportUnusable, InvalidArgument; UnknownKind,
        DefinitionUnreadable and UnknownCodec for a queue that this process cannot open.
        """
        for name, found in self._file.queues.items():
            if name in self._names:
                yield from _OneQueue(self._database, self._registry, self._file, found).run()


class _OneQueue:
    def __init__(self, database: Database, registry: Registry, file: FinishedFile, found: Found) -> None:
        self._database = database
        self._registry = registry
        self._file = file
        self._found = found
        self._name, self._kind, self._options = found.queue.name, found.queue.kind, found.queue.options
        self._label = IMPORT_LABEL + file.header.id
        self._placer(Definition(self._name, 1, self._kind, self._options))  # before anything is written

    def run(self) -> Iterator[Imported]:
        begin, keys = partial(self._begin, random=self._random()), self._registry.keys
        definition, before = run_once(self._database, keys, begin, wrote=lambda one: one[0].kind == IMPORTING)
        if definition.kind != IMPORTING:
            yield Imported(self._name, {}, is_done=True, was_there=True)
            return
        assert before.position is not None  # `_begin` has written it, or an earlier import
        placer = self._placer(replace(definition, kind=self._kind, options=self._options))
        for batch in self._batches(Place(before.position[0], before.mark)):
            moved = before.moved + len(batch.lines)
            after = Progress([batch.place.offset], batch.place.digest, moved, self._random())
            run(self._database, partial(self._write, definition, placer, batch, before, after))
            before = after
            counts = {} if batch.done is None else batch.done.counts
            yield Imported(self._name, counts, batch.done is not None)

    def _begin(self, tr: Transaction, random: bytes) -> tuple[Definition, Progress]:
        """The queue, and its progress: of the interrupted import of this export, or begun now."""
        found = self._registry.look(tr, self._name)
        if found is None:
            self._set_limits(tr)
            found = self._registry.create(tr, self._name, IMPORTING, {})
            place = self._found.place
            self._progress(found).write(tr, Progress([place.offset], place.digest, 0, random))
        progress = self._progress(found).read(tr)
        if progress.position is None:  # no import of this export has begun it
            asked = {"kind": self._kind, **self._options}
            raise exists_already(self._name, found.kind, found.options, asked)
        return found, progress

    def _write(
        self,
        definition: Definition,
        placer: Placer,
        batch: _Batch,
        before: Progress,
        after: Progress,
        tr: Transaction,
    ) -> None:
        """Put a batch with the progress that tells of it; at the end store the definition."""
        keys, check = self._progress(definition), self._registry.guard(definition)(tr)
        found = keys.read(tr)
        if found == after:
            return  # the attempt before has committed, with an unknown result
        check()
        if found != before:
            raise ImportOvertaken(label=str(self._file.path))
        try:
            placer.place(tr, batch.lines, runtime_of(tr).now_us())
        except NotOurs as reason:
            said = f"the queue {self._name!r} has contents of another kind ({reason})"
            raise ExportUnusable(path=str(self._file.path), reason=said) from reason
        if batch.done is not None:
            whole = replace(definition, kind=self._kind, options=self._options)
            tr.set(self._registry.keys.definition(self._name), whole.to_bytes())
        keys.write(tr, after)

    def _batches(self, place: Place) -> Iterator[_Batch]:
        """Split the lines behind a place into batches, each small enough for one transaction."""
        lines, begin = list[ContentLine](), place.offset
        for read in self._file.lines(place):
            if isinstance(read.line, DoneLine):
                yield _Batch(lines, read.place, read.line)
                return
            size_bytes = read.place.offset - begin
            if lines and (len(lines) >= limits.IMPORT_BATCH_ITEMS or size_bytes > limits.IMPORT_BATCH_BYTES):
                yield _Batch(lines, place)
                lines, begin = [], place.offset
            if not isinstance(read.line, Mark):
                if not isinstance(read.line, ContentLine):
                    said = f"a line {type(read.line).__name__} lies within the queue {self._name!r}"
                    raise ExportUnusable(path=str(self._file.path), reason=said)
                lines.append(read.line)
            place = read.place

    def _set_limits(self, tr: Transaction) -> None:
        """Make the limits that the queue names, where there are none of these names."""
        root = self._registry.keys.prefix
        asked = [(line, tr.get(LimitKeys(root, line.name).row)) for line in self._found.limits]
        for line, row in asked:
            if not row.present():
                _set_limit(tr, line, Subspace((), root))

    def _placer(self, definition: Definition) -> Placer:
        placers: dict[str, type[Items | Elements]] = {PLAIN: Items, PIECES: Elements, SIMPLE: Elements}
        return placers.get(self._kind, Tasks)(self._registry, definition)

    def _progress(self, definition: Definition) -> ProgressKeys:
        return ProgressKeys(self._registry.keys, definition.id, self._label)

    def _random(self) -> bytes:
        return self._database.runtime.random_bytes(STEP_BYTES)


def _set_limit(tr: Transaction, line: LimitLine, root: Subspace) -> None:
    rule = line.rule
    Limit.set(
        tr,
        line.name,
        slots=rule.slots if rule.has_slots else None,
        rate=rule.rate or None,
        per=rule.per_us / 1_000_000 if rule.has_starts else None,
        burst=rule.burst or None,
        per_key=rule.per_key,
        root=root,
    )
