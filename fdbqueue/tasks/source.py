"""The tasks of one queue as the source of its line: handing out a task is taking its lease.

A lease that the line delivers belongs to the session of the request. Until the owner of the request collects
it, the take can be undone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.codec import type_name
from fdbqueue.core.database import conflict_in
from fdbqueue.core.line.decision import Ask, Delivery, LineKeys, Offer, Swept
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.partitions import Plan
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.unreadable import NOT_READ, Passed
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.feature import met_by
from fdbqueue.tasks.payloads import ask_payload, delivered_value, task_of
from fdbqueue.tasks.ready import Ready
from fdbqueue.tasks.records.keys import NUMBER, SESSION_BYTES, Record, TaskKeys, id_text
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.sweep import Budget, sweep_timers

if TYPE_CHECKING:
    from fdbqueue.tasks.limiting.state import Gate

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
        self.doorbell = shape.keys.calls  # every change adds to a counter there
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
            if isinstance(self.shape.discipline, late.disciplines.lanes.Lanes):
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
                late.excusing.forgive_missed(change, delivery.id, _attempt_of(delivery))
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
