"""Parts: the partitions of one queue in one process; without partitions, the queue is its own only part."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TypeVar

from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.database import Database, conflict_in
from fdbqueue.core.line.decision import Swept
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.wide import Partitioned, Wide
from fdbqueue.core.partitions import Plan
from fdbqueue.core.seam import Range, ReadTransaction, Transaction, Value
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.records.keys import id_in, partition_of
from fdbqueue.tasks.records.statistics import count_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.sweep import Budget, ask_due
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")

_live, _value = attrgetter("shape.keys.live"), attrgetter("value")


class WideTasks(Wide[TaskSource]):
    """All partitions as one source."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        """As Wide.ask_tidy. A batch from each partition in turn would take 256 rounds."""
        asked = [(source, ask_due(tr, source.shape.keys, now_us)) for source in self._holding()]
        settle = self._zero.ask_settle(tr, now_us)
        return lambda: _sweep(tr, asked) if settle is None else max(_sweep(tr, asked), settle())


def _sweep(tr: Transaction, asked: Sequence[tuple[TaskSource, Range]]) -> Swept:
    """Sweep one batch from all partitions."""
    budget = Budget()
    given = [(source, timers) for source, due in asked if (timers := budget.give(due.to_list()))]
    for source, timers in given:
        for timer in timers:  # early: the sweeps follow one after the other
            tr.get(source.shape.keys.task(id_in(timer.key)))
    return max((source.sweep(tr, timers, budget) for source, timers in given), default=Swept.NOTHING)


class Parts(Partitioned[TaskSource]):
    def __init__(self, shape: Shape, database: Database, callbacks: Callbacks) -> None:
        now_us = self.now_us = database.runtime.now_us
        super().__init__(
            shape.current, lambda number: TaskSource(shape.partition(number), database.runtime, callbacks)
        )
        self.shape = shape
        turn = count().__next__
        # A transaction of the binding has no runtime: by its clock, a task may be due that the sweep leaves.
        self.wide = WideTasks(self.zero, shape.shared, self.holding, turn, lambda _: now_us())

    def lines(self) -> list[Line]:
        """The line of each partition, and then that of all."""
        lines = [source.line for source in self.holding()]
        return lines if self.plan is None else [*lines, self.wide.line]

    def tidy(self, tr: Transaction) -> bool:
        """Sweep a batch of the tasks that have come due. Without any, return tasks that lie ready for dead
        requests in the line of all partitions: takes at a home do not pass there. True if there were any. A
        power cut may undo a sweep that has only ended leases.

        Reads the definition: a sweep by an old plan would not send a task to its present partition.
        Raises: QueueDropped; a conflict if the plan has changed.
        """
        check, source = self.zero.guard(tr), self.zero if self.plan is None else self.wide
        results, now_us = source.line.results, self.now_us()
        sweep, lying = source.ask_tidy(tr, now_us), results.ask_due(tr)
        check()
        swept = sweep()
        if swept is Swept.LEASES:
            may_be_lost(tr)
        overdue = () if swept or source is self.zero else results.overdue(lying, now_us)
        results.return_overdue(tr, overdue)
        return bool(swept) or bool(overdue)

    def sweep(self, tr: Transaction) -> bool:
        """Sweep a batch of the tasks that have come due, for a put that finds no room. True if there were
        any.
        """
        now_us = self.now_us()
        if self.plan is not None:
            return bool(self.wide.ask_tidy(tr, now_us)())
        return bool(self.zero.sweep(tr, ask_due(tr, self.shape.keys, now_us).to_list(), Budget()))

    def ask_size(self, tr: Transaction) -> Callable[[], int]:
        """Ask for the number of tasks in all partitions, by snapshot."""
        sources = (self.zero,) if self.plan is None else self.holding()
        return partial(_sum, [*map(tr.snapshot.get, map(_live, sources))])

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the next sweep has something to do, in microseconds."""
        if self.plan is None:
            return self.zero.ask_next_due(tr)
        asked, first = self.wide.ask_next_due(tr), self.wide.line.results.ask_first_due(tr)
        return lambda: min((due for due in (asked(), first()) if due is not None), default=None)

    # One task, or partition 0, which is the queue itself:

    def within(self, tr: Transaction, verb: Callable[[Change], T], id_: bytes | None = None) -> T:
        """Run a verb that changes the task `id_`, or the queue. Raises as TaskSource.within."""
        plan = None if self.current is None else self.current.plan
        if plan is None:
            return self.zero.within(tr, verb)
        return self._source_of(tr, plan, id_).within(tr, verb, plan)

    def look(self, tr: Transaction, verb: Callable[[Change], T], id_: bytes | None = None) -> T:
        """Run a verb about the task `id_`, or about the queue, that changes nothing."""
        plan = self.plan
        if plan is None:
            return self.zero.look(tr, verb)
        return self._source_of(tr, plan, id_).look(tr, verb, plan)

    def _source_of(self, tr: Transaction, plan: Plan, id_: bytes | None) -> TaskSource:
        return self.zero if id_ is None else self.upto(plan.high)[self.place_of(tr, plan, id_, tr)]

    def place_of(self, tr: Transaction, plan: Plan, id_: bytes, reads: ReadTransaction) -> int:
        """The partition of the task. Reads: the key of a task that has moved; early, by `reads`, the task."""
        if not plan.may_have_moved:
            return min(partition_of(id_), plan.high - 1)
        return self._ask_place(tr, plan, id_, reads)()

    def _ask_place(
        self, tr: Transaction, plan: Plan, id_: bytes, reads: ReadTransaction
    ) -> Callable[[], int]:
        """Ask for the partition of the task, and early for the keys that a verb reads."""
        put_into, last = partition_of(id_), plan.high - 1
        moved = tr.get(self.shape.shared.moved(id_)) if plan.may_have_moved else None
        self.zero.guard(tr)
        if put_into <= last:
            reads.get(self.part(put_into).shape.keys.task(id_))
            tr.snapshot.get(self.shape.shared.flag(put_into))
        return lambda: min(moved.value[-1] if moved is not None and moved.present() else put_into, last)

    # Several tasks:

    def each(
        self,
        tr: Transaction,
        targets: Sequence[Target],
        verb: Callable[[Change, Sequence[Target]], Sequence[T]],
    ) -> list[T]:
        """Run a verb about several tasks, which answers for each. Return the answers in order."""
        plan = self.plan
        if plan is None:
            return list(self.zero.within(tr, lambda change: verb(change, targets)))
        groups: dict[int, list[int]] = {}
        asked = [self._ask_place(tr, plan, target.id, tr) for target in targets]
        for at, place in enumerate(asked):
            groups.setdefault(place(), []).append(at)
        answers: dict[int, T] = {}
        for number, places in groups.items():
            about = partial(_about, verb, [targets[at] for at in places])
            found = self.upto(plan.high)[number].within(tr, about, plan)
            answers.update(zip(places, found, strict=True))
        return [answers[at] for at in range(len(targets))]

    # All partitions:

    def all_within(self, tr: Transaction, verb: Callable[[Sequence[Change]], T]) -> T:
        """Run a verb about all partitions that may hold a task; it changes tasks. Raises as
        TaskSource.within.
        """
        changes = self._changes(tr)
        answer = changes[0].run(lambda _: verb(changes))
        for change in changes:
            change.finish()
        return answer

    def look_at_all(self, tr: Transaction, verb: Callable[[Sequence[Change]], T]) -> T:
        """Run a verb about all partitions that changes nothing."""
        changes = self._changes(tr)
        return changes[0].run(lambda _: verb(changes))

    def _changes(self, tr: Transaction) -> list[Change]:
        plan, sources = self.plan, self.holding()
        changes = [source.change(tr, guarded=not at) for at, source in enumerate(sources)]
        if changes[0].plan is not plan:
            raise conflict_in(tr)
        return changes


def _sum(asked: Sequence[Value]) -> int:
    return sum(map(count_of, map(_value, asked)))


def _about(verb: Callable[[Change, Sequence[Target]], T], targets: Sequence[Target], change: Change) -> T:
    return verb(change, targets)
