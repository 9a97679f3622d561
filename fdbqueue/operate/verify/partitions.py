"""The checks of partitions: the keys that they share.

They also find the partitions that have keys, whatever the plan says. A partition is verified like a queue of
its own. Beside that:

- Each partition with an entry in its range of ready tasks has a flag.
- The key of a task that has moved names the partition of its record, and each such task has one.
- A task key is held only while a repartition is under way and its old partition has tasks of it.
- No key lies in a partition beyond those of the plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import FLAG, WIDE_LINE, Plan, SharedKeys, home_of, plan_of, ring
from fdbqueue.core.registry import Definition
from fdbqueue.core.rows import (
    FOREIGN,
    Check,
    Checks,
    Excuse,
    Flaw,
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
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.verify.line import LineChecks
from fdbqueue.operate.verify.values import Cures, command
from fdbqueue.tasks.rows import OfShape, task_in
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import LIVE_NAMES, Record, id_text, partition_of, unpacked

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


def shared_checks(shape: Shape, cures: Cures) -> SharedChecks:
    return SharedChecks(partitioned(shape), shape.keys.prefix, cures)


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
        return Excuse(
            Under(counter, counter + b"\x00"), lambda rows: is_other and any(map(_is_ordered, rows))
        )

    def _let_go(self, key: bytes, tr: Transaction) -> None:
        if self._keyed.let_go(tr, key):
            expect_ready(tr, self._shape)


def _is_ordered(row: Row) -> bool:
    numbers = unpacked(LIVE_NAMES, row.value)
    return bool(numbers["ready"] or numbers["taken"])
