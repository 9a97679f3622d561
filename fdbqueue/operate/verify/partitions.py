"""The checks of partitions: the keys that they share, and the keys of each that these agree with.

A partition is verified like a queue of its own. Beside that:

- Each partition with an entry in its range of ready tasks has a flag.
- The key of a task that has moved names the partition of its record, and each such task has one.
- A task key is held only while a repartition is under way and its old partition has tasks of it.
- No key lies in a partition beyond those of the plan.
"""

from collections.abc import Iterable, Iterator

from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.partitions.keys import MOVED, ring
from fdbqueue.core.partitions.plan import Plan, home_of
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under, under
from fdbqueue.operate.verify.cures import Cures
from fdbqueue.operate.verify.shared import COLUMNS as EVERY_KIND
from fdbqueue.operate.verify.shared import Partitioned, SharedChecks, clearing
from fdbqueue.operate.verify.slices import Excuse, Mend, Suspect
from fdbqueue.operate.verify.unique import COLUMNS as UNIQUE_COLUMNS
from fdbqueue.operate.verify.unique import UniqueChecks
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.disciplines.key_counts import slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import id_text, partition_of
from fdbqueue.tasks.records.statistics import LIVE, unpacked
from fdbqueue.tasks.shape import Shape

COLUMNS = (*EVERY_KIND, MOVED, *UNIQUE_COLUMNS)
"""Keys that are shared; partitions have none of them."""


def partitioned(shape: Shape) -> Partitioned:
    return Partitioned(shape.name, shape.root.definition(shape.name), shape.shared)


class TaskSharedChecks:
    """The shared keys: those of every kind, the places of tasks that have moved, and unique keys."""

    def __init__(self, shape: Shape, cures: Cures) -> None:
        self._shape = shape
        self._every_kind = SharedChecks(partitioned(shape), shape.keys.prefix, cures)
        self._unique = UniqueChecks(shape, cures.mending)
        self._mending = cures.mending

    def asks(self, column: int, row: Row, rest: bytes) -> Iterable[Ask]:
        if column in UNIQUE_COLUMNS:
            return self._unique.asks(column, row, rest)
        if column != MOVED:
            return self._every_kind.asks(row)
        return (self._shape.partition(row.value[0]).keys.task(rest),) if len(row.value) == 1 else ()

    def judge(self, column: int, row: Row, rest: bytes, seen: Seen) -> Iterable[Suspect]:
        if column in UNIQUE_COLUMNS:
            return self._unique.judge(column, row, rest, seen)
        if column != MOVED:
            return self._every_kind.judge(row, seen)
        return self._judge_moved(row, rest, seen)

    def _judge_moved(self, row: Row, id_: bytes, seen: Seen) -> Iterator[Suspect]:
        if len(row.value) != 1:
            text = f"The key of the partition of the task {id_text(id_)} is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, clearing(row.key))
            return
        place = row.value[0]
        if place == partition_of(id_) or seen.value(self._shape.partition(place).keys.task(id_)) is None:
            text = f"A key tells that the task {id_text(id_)} has moved to the partition {place}: it has not."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, clearing(row.key))


class PartitionChecks:
    """The keys of one partition, and those that they need among the shared ones."""

    def __init__(self, shape: Shape, mending: str) -> None:
        self._shape = shape
        self._shared = shape.shared
        self._here = shape.keys.partition
        self._flag = shape.shared.flag(self._here)
        self._first_ready = under(shape.keys.ready, limit=1)
        self._mending = mending
        self.wide_line = LineKeys(shape.shared.line)

    # Ready tasks, and the flag.

    def ask_ready(self) -> Iterable[Ask]:
        return (self._flag, self._first_ready)

    def judge_ready(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        is_first = seen.rows(self._first_ready)[0].key == row.key
        if is_first and seen.value(self._flag) is None:
            text = f"The partition {self._here} has ready tasks and no flag: few takes look there."
            yield Suspect(Flaw.STATE, self._flag, text, self._mending, self._raise_flag)

    def _raise_flag(self, tr: Transaction) -> None:
        expect_ready(tr, self._shape)

    # A task, and the key that tells where it is.

    def ask_task(self, id_: bytes) -> Iterable[Ask]:
        put_into = partition_of(id_)
        if put_into == self._here:
            return ()
        return (self._shared.moved(id_), self._shape.partition(put_into).keys.task(id_))

    def judge_task(self, row: Row, id_: bytes, seen: Seen) -> Iterator[Suspect]:
        put_into = partition_of(id_)
        if put_into == self._here:
            return
        moved = self._shared.moved(id_)
        if seen.value(self._shape.partition(put_into).keys.task(id_)) is not None:
            text = f"The task {id_text(id_)} is in the partitions {put_into} and {self._here}."
            yield Suspect(Flaw.COPY, row.key, text, "Delete it, and look at its data before.")
        elif seen.value(moved) != bytes((self._here,)):
            text = f"The task {id_text(id_)} has moved to the partition {self._here}, and no key tells it."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, _set(moved, bytes((self._here,))))

    # The pause.

    def ask_paused(self) -> Iterable[Ask]:
        return (self._shape.partition(0).keys.paused,)

    def judge_paused(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._shape.partition(0).keys.paused) is None:
            text = f"The partition {self._here} is paused, and the queue is not: no take finds its tasks."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, clearing(row.key))


class HeldChecks:
    """Task keys that wait for their tasks in another partition."""

    def __init__(self, shape: Shape, keyed: Keyed, mending: str) -> None:
        self._shape = shape
        self._queue = partitioned(shape)
        self._keyed = keyed
        self._mending = mending

    def asks(self) -> Iterable[Ask]:
        return (self._queue.definition,)

    def judge(self, row: Row, key: bytes, told: str, seen: Seen) -> Iterator[Suspect]:
        plan = self._queue.plan_in(seen.value(self._queue.definition))
        excuses = [] if plan is None or not plan.before else [self._unless_behind(plan, key)]
        text = f"The task key {told} waits for its tasks in another partition, which has none."
        yield Suspect(Flaw.KEY_STATE, row.key, text, self._mending, self._letting_go(key), excuses)

    def _unless_behind(self, plan: Plan, key: bytes) -> Excuse:
        old = home_of(key, plan.before)
        discipline = self._shape.partition(old).discipline
        assert isinstance(discipline, Keyed)
        counter = discipline.counts.counts_key(slug_of(key))
        is_other = old != self._shape.keys.partition
        return Excuse(
            Under(counter, counter + b"\x00"), lambda rows: is_other and any(map(_is_ordered, rows))
        )

    def _letting_go(self, key: bytes) -> Mend:
        def mend(tr: Transaction) -> None:
            if self._keyed.let_go(tr, key):
                expect_ready(tr, self._shape)

        return mend


def expect_ready(tr: Transaction, shape: Shape) -> None:
    """Set the flag of the partition, in which a mending may make a task ready. Does nothing without
    partitions.
    """
    if shape.plan is not None:
        tr.set(shape.shared.flag(shape.keys.partition), b"")
        ring(tr, shape.shared)


def _is_ordered(row: Row) -> bool:
    numbers = unpacked(LIVE, row.value)
    return bool(numbers["ready"] or numbers["taken"])


def _set(key: bytes, value: bytes) -> Mend:
    return lambda tr: tr.set(key, value)
