"""The tasks of one queue as the source of its line: handing out a task is taking its lease.

A lease that the line delivers belongs to the session of the request. Until the owner of the request collects
it, the take can be undone.

Parts: the partitions of one queue in one process; without partitions, the queue is its own only part.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.codec import type_name
from fdbqueue.core.database import Database, conflict_in
from fdbqueue.core.line.decision import Ask, Delivery, LineKeys, Offer, Swept
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.line.wide import Partitioned, Wide
from fdbqueue.core.partitions import Plan
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.unreadable import NOT_READ, Passed
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.change import Change, ask_payload, delivered_value, task_of
from fdbqueue.tasks.edges import Budget, Lease, ask_due, sweep_timers
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.feature import met_by
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.discipline import Fifo
from fdbqueue.tasks.stored.records import (
    LIVE_NAMES,
    NUMBER,
    SESSION_BYTES,
    Record,
    TaskKeys,
    count_of,
    id_in,
    id_text,
    partition_of,
    record_to_bytes,
    unpacked,
)
from fdbqueue.tasks.verbs import Target

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate


T = TypeVar("T")


def params_of(lease: Lease) -> bytes:
    return lease.session + lease.token


def lease_of(params: bytes) -> Lease:
    return Lease(params[:SESSION_BYTES], params[SESSION_BYTES:])


def change_of(tr: Transaction, shape: Shape, now_us: int) -> Change:
    """The change of a queue, or of one of its partitions, that no callback is told of."""
    plan = shape.plan
    return Change(tr, shape, now_us) if plan is None else late.parted.Parted(plan, tr, shape, now_us)


_extra, _item = attrgetter("extra"), attrgetter("item")


class Ready:
    """Ready tasks as the offers of a source. Fair items and tasks share it."""

    def __init__(self, shape: Shape, passed: Passed) -> None:
        self._task = shape.keys.task
        self._discipline = shape.discipline
        self._mender = shape.mender
        self._claims = getattr(type(shape.discipline), "claim", None) is not Fifo.claim
        """True if a take depends on more than its tasks."""
        self._passed = passed

    def ask(
        self,
        tr: Transaction,
        limit: int,
        now_us: int,
        paused: Value | None = None,
        gate: "Gate | None" = None,
    ) -> Iterator[Offer]:
        """Ask, by snapshot, for the first ready tasks; at most `limit`, and none if `paused` is present.

        It skips expired tasks, and those that `gate` does not let through; None for a queue without limits.
        If too few are left, a sweep finds more.
        """
        # A copy: another thread may note a task meanwhile, for which the reply has no room.
        passed = {*self._passed}
        limit_read = limit + len(passed)
        found = (
            self._first(tr, limit_read, gate) if gate is not None else self._discipline.first(tr, limit_read)
        )
        return islice(self._offers(tr, found, passed, limit_read, now_us, paused, gate), limit)

    def _first(self, tr: Transaction, limit: int, gate: "Gate | None" = None) -> Iterable[Record]:
        if gate is None:
            return self._discipline.first(tr, limit)
        return late.limited.first(self._discipline, tr, limit, gate)

    def _offers(
        self,
        tr: Transaction,
        found: Iterable[Record],
        passed: Collection[bytes],
        limit: int,
        now_us: int,
        paused: Value | None,
        gate: "Gate | None",
    ) -> Iterator[Offer]:
        if (paused is not None and paused.present()) or (gate is not None and gate.is_shut):
            return
        seen: set[bytes] = set()
        while True:
            removed = self._mender.removed
            for record in found:
                if record.expires_us <= now_us or record.id in passed or record.id in seen:
                    continue
                if gate is None or late.limited.passes(gate, record):
                    seen.add(record.id)
                    value = record_to_bytes(record)
                    yield Offer(record.id, value, record.size_bytes, record.key, gate, record)
            if self._mender.removed == removed:
                return
            found = self._first(tr, limit, gate)  # mending set entries aside: read the ones behind them

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        """Conflicts: every change of the offered tasks."""
        self.rely_on(tr, [offer.item for offer in offers])

    def rely_on(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Conflicts: every change of these ready tasks."""
        for record in records:
            tr.add_read_conflict_key(self._task(record.id))
        if self._claims:
            self._discipline.claim(tr, records)

    def require_none_passed(self, tr: Transaction, paused: Value | None = None) -> None:
        """Raise the error of the first ready task that was passed over. Reads the first ones by snapshot."""
        if self._passed and not (paused is not None and paused.present()):
            self._passed.require_none_of(self.head(tr, 1 + len(self._passed)))

    def head(self, tr: Transaction, count: int) -> Iterator[bytes]:
        """The ids of the first ready tasks. Reads: by snapshot."""
        return (record.id for record in self._first(tr, count))


class TaskSource:
    """The tasks of one queue; the `Source` of its line."""

    hands_out_leases = comes_due = True

    def __init__(
        self, shape: Shape, runtime: Runtime, callbacks: Callbacks, passed: Passed | None = None
    ) -> None:
        """`passed` are the tasks that the handle passes over; None for a handle that has met none."""
        self.shape = shape
        self.name = shape.name
        self.partition = shape.keys.partition
        self.guard = shape.guard
        if self.partition and shape.current is not None:
            self.guard = partial(shape.current.guard_of, self.partition)
        self.aside = shape.aside
        self.doorbell = shape.keys.counters  # every change that makes a task ready adds to it
        self.limit_bells: Sequence[bytes] = () if shape.limits is None else shape.limits.bells
        self.ready = shape.keys.ready
        self.line = Line(LineKeys(shape.keys.line), self)
        self._runtime = runtime
        self._callbacks = callbacks
        self.passed = Passed(registered=True) if passed is None else passed
        self._ready = Ready(shape, self.passed)
        self.claim = self._ready.claim

    @property
    def tells(self) -> bool:
        """True if a callback of this process receives the events of the queue."""
        return self._callbacks.callback is not None

    def change(self, tr: Transaction, *, guarded: bool = False) -> Change:
        """With `guarded`, ask the guard: the first read of the change."""
        callbacks = self._callbacks
        told = None if callbacks.callback is None else callbacks.after_commit
        # The time comes before the first read, which may be slow. A later time would end leases that another
        # transaction has renewed since that read.
        now_us = round(self._runtime.now() * 1_000_000)
        shape = self.shape
        check = shape.guard(tr) if guarded else None
        plan = None if shape.current is None else shape.current.plan  # after the guard: no plan is older
        if plan is None:
            return Change(tr, shape, now_us, told, check)
        return late.parted.Parted(plan, tr, shape, now_us, told, check)

    def look(self, tr: Transaction, verb: Callable[[Change], T], plan: Plan | None = None) -> T:
        """Run a verb that changes nothing. Asks the guard before the verb's first read.

        `plan`: the plan by which this partition was chosen.
        Raises: QueueDropped, and the errors of the verb; a conflict if another plan is known by now.
        """
        change = self.change(tr, guarded=True)
        if change.plan is not plan:
            raise conflict_in(tr)
        return change.run(verb)

    def within(self, tr: Transaction, verb: Callable[[Change], T], plan: Plan | None = None) -> T:
        """Run a verb that changes tasks. Reads and raises like `look`; writes the counters last."""
        change = self.change(tr, guarded=True)
        if change.plan is not plan:
            raise conflict_in(tr)
        answer = change.run(verb)
        change.finish()
        return answer

    def taker(self, ask_session: Ask) -> Taker:
        """Takes for one session."""
        return Taker(self.line, (self.guard, ask_session), self.hand_out)

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Task]:
        """Take the leases of `offers`. Return the tasks with readable payloads."""
        change, records = self.change(tr), list(map(_item, offers))
        self._ready.rely_on(tr, records)
        if any(map(_extra, records)):
            records = self._wanted(change, records)
        # With the reads of the discipline.
        asked = list(map(partial(ask_payload, tr, self.shape.keys), records))
        lease = Lease(params[:SESSION_BYTES], params[SESSION_BYTES:])  # as lease_of, with fewer calls
        tasks = self._read(change, edges.take(change, records, lease, offers[0].gate), asked)
        change.finish()
        return tasks

    hand_out_beside = hand_out

    def _wanted(self, change: Change, records: list[Record]) -> list[Record]:
        """The tasks that may be taken. The others end here."""
        for feature in met_by(records, ()):
            gone = feature.withheld(change.site, records)
            if gone:
                edges.cancel(change, gone)
                records = [record for record in records if record not in gone]
        return records

    def _read(
        self, change: Change, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Task]:
        """The taken tasks with their data, without those that have an unreadable payload."""
        decode = self.shape.codec.decode
        try:
            return list(map(task_of, records, map(decode, map(call, asked))))
        except NOT_READ:
            return self._sort_out(change, records, asked)

    def _sort_out(
        self, change: Change, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Task]:
        """As `_read`, where some payloads cannot be read.

        A task is buried if no process can read its payload. If another process may read it, the task goes
        back, and this process passes it over from now on.
        """
        shape = self.shape
        stored = [
            (record.id, id_text(record.id), payload) for record, payload in zip(records, asked, strict=True)
        ]
        found = self.passed.sort_out(shape.codec, shape.name, stored, partial(self._ready.head, change.tr))
        for record in records:
            if record.id in found.damaged:
                error = found.damaged[record.id]
                edges.bury(change, [record], Failure(type_name(error), str(error)))
        edges.give_back(change, [record for record in records if record.id in found.passed])
        return [task_of(record, found.data[record.id]) for record in records if record.id in found.data]

    def has_passed(self) -> bool:
        """True if this process has passed over a task that it cannot read."""
        return bool(self.passed)

    # The line's Source.

    def doorbells(self) -> Sequence[bytes]:
        return (self.doorbell, *self.limit_bells)

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        start, stop = self.shape.keys.timers.start, self.shape.keys.timer(now_us + 1, b"")
        due = tr.snapshot.get_range(start, stop, limit=limits.DUE_BATCH)  # as `ask_due`, with fewer calls
        settle = None if self.shape.limits is None else self.ask_settle(tr, now_us)

        def tidy() -> Swept:
            timers = due.to_list()
            swept = self.sweep(tr, timers, Budget()) if timers else Swept.NOTHING
            return swept if settle is None else max(swept, settle())

        return tidy

    def ask_settle(self, tr: Transaction, now_us: int) -> Callable[[], Swept] | None:
        """Ask for keys of limits that have to be looked at again. The reply settles some. None: no limits."""
        if self.shape.limits is None:
            return None
        settle = self.shape.limits.ask_settle(tr, now_us)
        return lambda: Swept.MORE if settle() else Swept.NOTHING

    def sweep(self, tr: Transaction, timers: Sequence[KeyValue], budget: Budget) -> Swept:
        """Sweep the tasks of these timers."""
        change = self.change(tr)
        swept = sweep_timers(change, timers, budget)
        change.finish()
        return swept

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        keys = self.shape.keys
        first = tr.snapshot.get_range(keys.timers.start, keys.timers.stop, limit=1)
        if self.shape.limits is not None:
            token = self.shape.limits.ask_next(tr, self._runtime.now_us())
            return lambda: min(_known((_first_time(keys, first), token())), default=None)
        return lambda: _first_time(keys, first)

    def available(
        self, tr: Transaction, limit: int, now_us: int, gate: "Gate | None" = None
    ) -> Iterable[Offer]:
        # Serialisably: a take that does not see a pause must not commit after it.
        paused = tr.get(self.shape.keys.paused)
        if self.shape.limits is None:
            return self._ready.ask(tr, limit, now_us, paused)
        if gate is None:
            gate = self.shape.limits.ask_gate(tr, now_us)
        return self._ready.ask(tr, limit, now_us, paused, gate)

    def ask_gate(self, tr: Transaction, now_us: int) -> "Gate | None":
        """Ask for the tasks that may start; None for a queue without limits."""
        return None if self.shape.limits is None else self.shape.limits.ask_gate(tr, now_us)

    def rely_on_limits(self, tr: Transaction) -> None:
        """As Part.rely_on_limits: a task may lie there that is over a limit."""
        if self.shape.limits is not None:
            self.shape.limits.rely_on(tr)
            if isinstance(self.shape.discipline, late.limits.lanes.Lanes):
                pointers = self.shape.discipline.lane_keys.pointers
                tr.add_read_conflict_range(pointers.start, pointers.stop)

    def require_none_passed(self, tr: Transaction) -> None:
        self.rely_on_limits(tr)
        self._ready.require_none_passed(tr, tr.get(self.shape.keys.paused))

    def is_paused(self, tr: Transaction) -> bool:
        return bool(tr.get(self.shape.keys.paused).present())

    def ask_available(self, tr: Transaction) -> Callable[[], bool]:
        """Ask whether a task is available. Reads the first ready task by snapshot."""
        check, found = self.guard(tr), self.available(tr, 1, self._runtime.now_us())

        def reply() -> bool:
            check()
            return next(iter(found), None) is not None

        return reply

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        lease, change = lease_of(params), self.change(tr)
        taken = edges.take(change, list(map(_item, offers)), lease, offers[0].gate if offers else None)
        change.finish()
        return [Delivery(record.id, delivered_value(record)) for record in taken]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        """The delivered tasks under the lease that was taken for the request; none if its session has ended.

        Each of the others counts as never taken, because no caller has received it.
        """
        asked = {
            params: tr.get(self.shape.root.session(lease_of(params).session))
            for params in _params(deliveries)
        }
        change = self.change(tr)
        held = self._held(change, deliveries)
        live = [
            record
            for record in held
            if asked[params_of(Lease(record.session, record.token))].present()
            and record.until_us > change.now_us
            and not record.cancelled_us
        ]
        edges.give_back(change, [record for record in held if record not in live])
        wanted = self._wanted(change, live)
        change.count("take", len(wanted) - len(live))
        asked_payloads = map(partial(ask_payload, tr, self.shape.keys), wanted)
        tasks = self._read(change, wanted, list(asked_payloads))
        change.finish()
        return list(tasks)

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        return self.collect(tr, self.deliver(tr, offers, params))

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        change = self.change(tr)
        edges.give_back(change, self._held(change, deliveries))
        change.finish()

    def _held(self, change: Change, deliveries: Sequence[Delivery]) -> list[Record]:
        """The delivered tasks that still have the lease of their delivery. No caller has received the others,
        so their takes no longer count, and neither do the failures of their leases.
        """
        found = change.read(delivery.id for delivery in deliveries)
        held = []
        for record, delivery in zip(found, deliveries, strict=True):
            if record is not None and _is_held(record, delivery):
                held.append(record)
                continue
            change.count("take", -1)
            if record is not None:
                verbs.forgive_missed(change, delivery.id, _attempt_of(delivery))
        return held


def _first_time(keys: TaskKeys, timers: Range) -> int | None:
    return next((keys.time_of(timer.key) for timer in timers), None)


def _known(times: Iterable[int | None]) -> Iterator[int]:
    return (time_us for time_us in times if time_us is not None)


def _is_held(record: Record, delivery: Delivery) -> bool:
    lease = Lease(record.session, record.token)
    return record.state == TaskState.TAKEN and params_of(lease) == _params_of(delivery)


def _params_of(delivery: Delivery) -> bytes:
    return delivery.value[: -NUMBER.size]


def _attempt_of(delivery: Delivery) -> int:
    return int.from_bytes(delivery.value[-NUMBER.size :], "big")


def _params(deliveries: Sequence[Delivery]) -> set[bytes]:
    return {_params_of(delivery) for delivery in deliveries}


_counters, _value = attrgetter("shape.keys.counters"), attrgetter("value")


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
        return partial(_sum, self._ask_counters(tr))

    def buried(self, tr: Transaction) -> int:
        """The number of buried tasks in all partitions, by snapshot. Round trips: 1."""
        asked = map(_value, self._ask_counters(tr))
        return sum(unpacked(LIVE_NAMES, value)["buried"] for value in asked)

    def _ask_counters(self, tr: Transaction) -> Sequence[Value]:
        sources = (self.zero,) if self.plan is None else self.holding()
        return [*map(tr.snapshot.get, map(_counters, sources))]

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
