"""The checks of partitions, of their waiting lines, and of the items and elements in them.

Of a line: requests, notices, results and their deadlines; and values set aside. Of a recipe queue and of an
element queue: items or elements, pieces, locks.

They also find the partitions that have keys, whatever the plan says. A partition is verified like a queue of
its own. Beside that:

- Each partition with an entry in its range of ready tasks, or with an item, has a flag.
- The key of a task that has moved names the partition of its record, and each such task has one.
- A task key is held only while a repartition is under way and its old partition has tasks of it.
- No key lies in a partition beyond those of the plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.columns import UNKNOWN
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.line import decision
from fdbqueue.core.line.decision import Due, LineKeys, Notice, Ticket, notice_of
from fdbqueue.core.partitions import FLAG, WIDE_LINE, Plan, SharedKeys, home_of, plan_of, ring
from fdbqueue.core.registry import Definition
from fdbqueue.core.rows import (
    FOREIGN,
    Check,
    Checks,
    Excuse,
    Flaw,
    OfColumn,
    Row,
    Seen,
    Suspect,
    Under,
    first_key,
    resized,
    told_key,
    under,
)
from fdbqueue.core.seam import Transaction
from fdbqueue.core.unreadable import COUNT, ENTRY, PART, Aside, aside_text, entry_in
from fdbqueue.core.unreadable import ID_BYTES as ASIDE_ID_BYTES
from fdbqueue.operate.verify.values import Cures, command
from fdbqueue.queues.elements import store
from fdbqueue.queues.elements.store import FOLDER_BYTES, PIECE_NUMBER_BYTES, Elements, is_readable
from fdbqueue.queues.recipe.items import (
    FLOOR,
    FORMATS_RESERVED,
    ITEM,
    LINE,
    PIECE,
    WHOLE,
    Recipe,
    floor_of,
    split_sizes,
)
from fdbqueue.tasks.rows import OfShape, task_in
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import LIVE_NAMES, Record, id_text, partition_of, unpacked

RID_BYTES = limits.RANDOM_SUFFIX_BYTES
_DEADLINE_BYTES = 8
_NEXT_LOOK = "The next look at the line removes it."
_UNKNOWN = "No key of a waiting line has this shape."


class LineChecks(Checks):
    def __init__(self, keys: LineKeys, aside: Aside, cures: Cures) -> None:
        super().__init__(cures.mending)
        self.keys = keys
        self._aside = AsideChecks(aside, cures)
        self._checks: dict[int, OfColumn] = {
            decision.REQUEST: self._request,
            decision.DUE: self._due,
            decision.NOTICE: self._notice,
            decision.RESULT: self._result,
            decision.RENEWAL: self._renewal,
        }

    def weight(self, row: Row) -> int:
        return self._aside.weight(row)

    def check(self, row: Row) -> Check:
        column, rest = self.keys.parts_of(row.key)
        if column == UNKNOWN:
            return self._aside.check(row)
        is_ours = self.keys.has_shape(row.key)
        return self._checks[column](row, rest) if is_ours else self.unknown(row, _UNKNOWN)

    def _request(self, row: Row, _: bytes) -> Check:
        if self.keys.ticket_of(row.key, row.value)[0].count == 0:
            text = "A request of the line is damaged: it counts as dead."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)

    def _due(self, row: Row, rest: bytes) -> Check:
        notice = self.keys.notice(rest[_DEADLINE_BYTES:])
        if not (yield [notice]).has(notice):
            text = "The results of a call were lost: their deadline is there, and no notice."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)

    def _notice(self, row: Row, rest: bytes) -> Check:
        notice = notice_of(row.value)
        if notice is None:
            text = "A notice of the line cannot be read."
            yield Suspect(Flaw.LINE, row.key, text, "At its deadline, a look at the line sets it aside.")
            return
        due = self.keys.due_key(Due(notice.deadline_us, rest))
        if not (yield [due]).has(due):
            text = "A notice has no deadline: if its caller is dead, its results never return."
            yield self.found(Flaw.LINE, row, text, {due: b""})

    def _result(self, row: Row, rest: bytes) -> Check:
        rid = rest[:RID_BYTES]
        if not (yield [self.keys.notice(rid)]).has(self.keys.notice(rid)):
            text = "A result of the line belongs to no notice: no call collects it, and it never returns."
            yield self.found(Flaw.LINE, row, text, partial(self._return, rid))

    def _return(self, rid: bytes, tr: Transaction) -> None:
        """Write a notice that is overdue: the next look at the line returns its results."""
        notice = Notice(deadline_us=1, crowd=0)
        tr.set(self.keys.notice(rid), decision.notice_value(notice))
        tr.set(self.keys.due_key(Due(notice.deadline_us, rid)), b"")

    def _renewal(self, row: Row, rest: bytes) -> Check:
        request = self.keys.request(Ticket(rest[: decision.STAMP_BYTES], rest[decision.STAMP_BYTES :], 0))
        if not (yield [request]).has(request):
            yield self.found(Flaw.STRAY, row, "A renewal belongs to no request.")
        elif not decision.deadline_of(row.value):
            text = "The renewal of a request is damaged: the request counts as dead."
            yield Suspect(Flaw.LINE, row.key, text, _NEXT_LOOK)


class AsideChecks(Checks):
    def __init__(self, aside: Aside, cures: Cures) -> None:
        super().__init__(cures.mending)
        self._aside = aside
        self._cures = cures

    def weight(self, row: Row) -> int:
        column, _ = self._aside.parts_of(row.key)
        entry = entry_in(row.value) if column == ENTRY else None
        return 0 if entry is None else sum(entry.sizes)

    def check(self, row: Row) -> Check:
        column, rest = self._aside.parts_of(row.key)
        if column == ENTRY:
            return self._entry(row, rest)
        if column == PART:
            return self._part(row, self._aside.entry(rest[:ASIDE_ID_BYTES]))
        return self.nothing() if column == COUNT and not rest else self.unknown(row, _UNKNOWN)

    def _entry(self, row: Row, id_: bytes) -> Check:
        entry, start = entry_in(row.value), self._aside.part(id_)
        parts = Under(start, start + b"\xff" * 5)
        stored = [len(part.value) for part in (yield [parts]).rows(parts)]
        if entry is None:
            text = "The entry of a value set aside cannot be read. Nothing restores it."
        elif stored != list(entry.sizes):
            text = "A value set aside has lost bytes since. Nothing restores it."
        else:
            return
        yield Suspect(Flaw.SET_ASIDE, row.key, text, self._cures.removing(aside_text(id_)))

    def _part(self, row: Row, entry: bytes) -> Check:
        if not (yield [entry]).has(entry):
            text = "A part of a value set aside has no entry: no listing shows it."
            yield self.found(Flaw.SET_ASIDE, row, text)


def unless_in_line(keys: LineKeys, id_: bytes) -> Excuse:
    """True while the item lies in a notice or result, for a caller that has not collected it yet."""

    def explains(rows: Sequence[Row]) -> bool:
        return any(id_ in row.key or id_ in row.value for row in rows)

    return Excuse(Under(keys.all_notices.start, keys.all_results.stop), explains)


_BELL_BYTES = 8
_NUMBER_MAX = 255


@dataclass(frozen=True)
class Partitioned:
    """A named queue that may have partitions: its name, the key of its definition, and the shared keys."""

    name: str
    definition: bytes
    keys: SharedKeys

    def plan_in(self, stored: bytes | None) -> Plan | None:
        """The plan in a stored definition; None without one."""
        try:
            return None if stored is None else plan_of(Definition.from_bytes(self.name, stored))
        except DefinitionUnreadable:
            return None


class SharedChecks(Checks):
    def __init__(self, queue: Partitioned, prefix: bytes, cures: Cures) -> None:
        """`prefix` is that of the queue."""
        super().__init__(cures.mending)
        self._queue = queue
        self._line = LineChecks(LineKeys(queue.keys.line), Aside(prefix, queue.keys.line), cures)

    def is_key(self, key: bytes) -> bool:
        return self._queue.keys.column_of(key) is not None

    def check(self, row: Row) -> Check:
        column = self._queue.keys.column_of(row.key)
        if column == WIDE_LINE:
            return self._line.check(row)
        return self._flag(row) if column == FLAG else self._bell(row)

    def _flag(self, row: Row) -> Check:
        number, definition = self._queue.keys.flagged(row.key), self._queue.definition
        plan = self._queue.plan_in((yield [definition]).value(definition))
        if plan is None or number >= plan.high:
            text = f"A flag names the partition {number}, which the queue does not have."
            yield self.found(Flaw.STRAY, row, text)

    def _bell(self, row: Row) -> Check:
        if len(row.value) != _BELL_BYTES:
            text = f"The bell of the partitions is damaged: {row.value.hex()}."
            yield self.found(Flaw.VALUE, row, text, resized(row, _BELL_BYTES))


def flagged(row: Row, rows: slice, keys: SharedKeys, partition: int, told: str, mending: str) -> Check:
    """The first of the rows that a take may find needs the flag of its partition."""
    flag, first = keys.flag(partition), under(rows, limit=1)
    seen = yield [flag, first]
    if seen.rows(first)[0].key == row.key and not seen.has(flag):
        text = f"The partition {partition} has {told} and no flag: few takes look there."
        yield Suspect(Flaw.STATE, flag, text, mending, partial(raise_flag, keys, partition))


def raise_flag(keys: SharedKeys, partition: int, tr: Transaction) -> None:
    tr.set(keys.flag(partition), b"")
    ring(tr, keys)


def stored_partitions(database: Database, queue: Partitioned) -> Iterator[int]:
    """The numbers behind S[28] that have keys, whatever the plan says. Reads: one key each."""
    keys = queue.keys.partitions
    start = keys.start
    while (first := run(database, partial(first_key, start, keys.stop))) is not None:
        number = first[len(keys.start)]
        yield number
        if number == _NUMBER_MAX:
            return
        start = keys.start + bytes((number + 1,))


def strays(queue: Partitioned, number: int, tr: Transaction) -> Sequence[Suspect]:
    """A contradiction if keys lie behind that number, and the queue does not have the partition."""
    keys = queue.keys.under(number)
    stored, first = tr.snapshot.get(queue.definition), first_key(keys.start, keys.stop, tr)
    plan = queue.plan_in(bytes(stored.value) if stored.present() else None)
    if first is None or (plan is not None and 0 < number < plan.high):
        return ()
    if not number:
        return [Suspect(Flaw.UNKNOWN, first, "No partition has a key of this shape.", FOREIGN)]
    text = f"Keys lie in the partition {number}, which the queue does not have."
    return [Suspect(Flaw.STRAY, first, text, command("repartition", queue.name, str(number + 1)))]


# Queues of tasks.


def partitioned(shape: Shape) -> Partitioned:
    return Partitioned(shape.name, shape.root.definition(shape.name), shape.shared)


def expect_ready(tr: Transaction, shape: Shape) -> None:
    """Set the flag of the partition, in which a mending may make a task ready. Does nothing without
    partitions.
    """
    if shape.plan is not None:
        raise_flag(shape.shared, shape.keys.partition, tr)


class PartitionChecks(OfShape):
    """The keys of one partition, and those that they need among the shared ones."""

    @property
    def _here(self) -> int:
        return self._keys.partition

    def ready(self, row: Row, _: bytes) -> Check:
        return flagged(row, self._keys.ready, self._shared, self._here, "ready tasks", self.mending)

    def task(self, row: Row, record: Record) -> Check:
        put_into, here = partition_of(record.id), bytes((self._here,))
        if put_into == self._here:
            return
        moved, there = self._shared.moved(record.id), task_in(self._shape, record.id)
        seen = yield [moved, there]
        if seen.has(there):
            text = f"The task {id_text(record.id)} is in the partitions {put_into} and {self._here}."
            yield Suspect(Flaw.COPY, row.key, text, "Delete it, and look at its data before.")
        elif seen.value(moved) != here:
            name = id_text(record.id)
            text = f"The task {name} has moved to the partition {self._here}, and no key tells it."
            yield self.found(Flaw.STATE, row, text, {moved: here})

    def moved(self, row: Row, id_: bytes) -> Check:
        if len(row.value) != 1:
            text = f"The key of the partition of the task {id_text(id_)} is damaged: {row.value.hex()}."
            yield self.found(Flaw.VALUE, row, text)
            return
        task, place = task_in(self._shape, id_, row.value[0]), row.value[0]
        if not (yield [task]).has(task) or place == partition_of(id_):
            text = f"A key tells that the task {id_text(id_)} has moved to the partition {place}: it has not."
            yield self.found(Flaw.STRAY, row, text)

    def paused(self, row: Row, _: bytes) -> Check:
        if self._shape.plan is None:
            return
        paused = self._shape.partition(0).keys.paused
        if not (yield [paused]).has(paused):
            text = f"The partition {self._here} is paused, and the queue is not: no take finds its tasks."
            yield self.found(Flaw.STRAY, row, text)


class HeldChecks(OfShape):
    """Task keys that wait for their tasks in another partition."""

    def __init__(self, shape: Shape, keyed: Keyed, mending: str) -> None:
        super().__init__(shape, mending)
        self._queue = partitioned(shape)
        self._keyed = keyed
        self.definition = self._queue.definition

    def waits(self, row: Row, key: bytes, seen: Seen) -> Suspect:
        """The contradiction of a task key that is held. `seen` has the definition."""
        plan = self._queue.plan_in(seen.value(self.definition))
        excuses = [] if plan is None or not plan.before else [self._unless_behind(plan, key)]
        text = f"The task key {told_key(key)} waits for its tasks in another partition, which has none."
        return self.found(Flaw.KEY_STATE, row, text, partial(self._let_go, key), excuses)

    def _unless_behind(self, plan: Plan, key: bytes) -> Excuse:
        old = home_of(key, plan.before)
        discipline = self._shape.partition(old).discipline
        assert isinstance(discipline, Keyed)
        counter = discipline.counts.counts_key(slug_of(key))
        is_other = old != self._keys.partition
        under = Under(counter, counter + b"\x00")
        return Excuse(under, lambda rows: is_other and any(map(_is_ordered, rows)))

    def _let_go(self, key: bytes, tr: Transaction) -> None:
        if self._keyed.let_go(tr, key):
            expect_ready(tr, self._shape)


def _is_ordered(row: Row) -> bool:
    numbers = unpacked(LIVE_NAMES, row.value)
    return bool(numbers["ready"] or numbers["taken"])


_TAKE = "The dequeue that meets it sets it aside."
_SINCE_BYTES = 8
_ELEMENT_BYTES = limits.BATCH_BYTES_MAX // 20
"""The payloads of elements are read with them, and their sizes are unknown: a slice has at most 20."""


class RecipeChecks(Checks):
    def __init__(
        self, recipe: Recipe, cures: Cures, queue: Partitioned | None = None, *, has_flags: bool = False
    ) -> None:
        """`queue`: that of this partition, or this; None for one without a name, which cannot have any. With
        `has_flags`, an item needs the flag of its partition.
        """
        super().__init__(cures.mending)
        self.recipe = recipe
        self._keys = recipe.keys
        self._line = LineChecks(LineKeys(recipe.keys.line), recipe.aside, cures)
        self._lines = [self._line.keys]
        self._shared = None
        if queue is not None and not recipe.partition:
            self._shared = SharedChecks(queue, recipe.keys.prefix, cures)
        self._flags = queue.keys if queue is not None and has_flags else None
        if self._flags is not None:
            self._lines.append(LineKeys(self._flags.line))

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.weight(row)
        return split_sizes(row.value)[1] if column == ITEM else 0

    def check(self, row: Row) -> Check:
        column, suffix = self._keys.parts_of(row.key)
        if column == LINE:
            return self._line.check(row)
        if column == ITEM:
            return self.together([self._item(row, suffix), self._flag(row)])
        if column == PIECE:
            return self._piece(row, suffix)
        if column is None:
            if self._shared is not None and self._shared.is_key(row.key):
                return self._shared.check(row)
            return self.unknown(row, "No key of a queue has this shape.")
        return self._floor(row) if column == FLOOR else self.nothing()

    def _item(self, row: Row, suffix: bytes) -> Check:
        pieces, is_whole = under(self._keys.pieces_of(suffix)), row.value[:1] == WHOLE
        seen = yield [] if is_whole else [pieces]
        if self._keys.index_in(suffix) is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "The index of an item is beyond every index.", FOREIGN)
        if is_whole:
            return
        (count, size_bytes), stored = split_sizes(row.value), seen.size_bytes(pieces)
        if not count:
            newer = row.value and row.value[0] < FORMATS_RESERVED
            text = "A newer release wrote an item." if newer else "The value of an item cannot be read."
            yield Suspect(Flaw.RECORD, row.key, text, _TAKE)
        elif stored != size_bytes:
            text = f"An item has {stored} bytes of its payload, and should have {size_bytes}."
            yield Suspect(Flaw.PAYLOAD, row.key, text, _TAKE)

    def _flag(self, row: Row) -> Check:
        if self._flags is None:
            return self.nothing()
        return flagged(row, self._keys.items, self._flags, self.recipe.partition, "items", self.mending)

    def _piece(self, row: Row, suffix: bytes) -> Check:
        key = self._keys.item(suffix)
        item = (yield [key]).value(key)
        if item is None or item[:1] == WHOLE:
            excuses = [unless_in_line(line, suffix) for line in self._lines]
            text = "A piece of a payload belongs to no item."
            yield self.found(Flaw.PAYLOAD, row, text, excuses=excuses)

    def _floor(self, row: Row) -> Check:
        if any(row.value) and not floor_of(row.value):
            yield self.found(Flaw.VALUE, row, f"The floor of the indexes is damaged: {row.value.hex()}.")


class ElementChecks(Checks):
    def __init__(self, elements: Elements, cures: Cures) -> None:
        super().__init__(cures.mending)
        self.keys = self._keys = elements.keys
        self._elements = elements
        self._aside = AsideChecks(elements.aside, cures)

    def weight(self, row: Row) -> int:
        column, _ = self._keys.parts_of(row.key)
        if column == store.ASIDE:
            return self._aside.weight(row)
        return _ELEMENT_BYTES if column == store.ELEMENT else 0

    def check(self, row: Row) -> Check:
        column, rest = self._keys.parts_of(row.key)
        if column == store.ASIDE:
            return self._aside.check(row)
        if not self._has_shape(column, rest):
            return self.unknown(row, "No key of an element queue has this shape.")
        if column == store.ELEMENT:
            return self._element(row, rest.decode())
        if column == store.PAYLOAD:
            return self._piece(row, rest[:-PIECE_NUMBER_BYTES].decode())
        return self._lock(row, rest.decode()) if column == store.LOCK else self.nothing()

    def _has_shape(self, column: int, rest: bytes) -> bool:
        parts: dict[int, bytes] = {
            store.ELEMENT: rest,
            store.LOCK: rest,
            store.PAYLOAD: rest[:-PIECE_NUMBER_BYTES],
            store.ARRIVAL: rest[FOLDER_BYTES:],
            store.DEPARTURE: rest[FOLDER_BYTES:],
        }
        if column in parts:
            return self._keys.is_sound(self._keys.element("") + parts[column])
        return column in (store.COUNT, store.MARK) and not rest

    def _element(self, row: Row, name: str) -> Check:
        pieces = under(self._keys.payload_of(name))
        payload = b"".join(piece.value for piece in (yield [pieces]).rows(pieces))
        if not is_readable(payload):
            text = f"The element {name} cannot be read: it has {len(payload)} bytes."
            yield self.found(Flaw.RECORD, row, text, lambda tr: self._elements.set_aside(tr, name))

    def _piece(self, row: Row, name: str) -> Check:
        if not (yield [self._keys.element(name)]).has(self._keys.element(name)):
            text = f"A piece of a payload belongs to the element {name}, which is missing."
            yield self.found(Flaw.PAYLOAD, row, text)

    def _lock(self, row: Row, name: str) -> Check:
        if not (yield [self._keys.element(name)]).has(self._keys.element(name)):
            yield self.found(Flaw.STRAY, row, f"A lock belongs to the element {name}, which is missing.")
        elif len(row.value) < _SINCE_BYTES:
            text = f"The lock of the element {name} is damaged: it counts as old."
            yield Suspect(Flaw.VALUE, row.key, text, "A purge breaks it.")
