"""How tasks reach their takers: directly, or through the waiting line, where delivering means taking the
lease in the requester's name.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fdbqueue import limits
from fdbqueue.line.keys import LineKeys
from fdbqueue.line.shares import Offer, portion_of
from fdbqueue.line.source import Delivery
from fdbqueue.line.staging import Line, Turn
from fdbqueue.recipe.items import Taken
from fdbqueue.runtime import Runtime
from fdbqueue.seam import Transaction
from fdbqueue.sweep import ask_due, settle, tidy
from fdbqueue.task import Task, TaskState
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.excusing import forgive_missed
from fdbqueue.tasks.keys import NUMBER, SESSION_BYTES, Record, record_of, record_to_bytes
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.tasks_of import ask_data, read_tasks, tasks_with

T = TypeVar("T")
Ask = Callable[[Transaction], Callable[[], None]]


def params_of(lease: Lease) -> bytes:
    return lease.session + lease.token


def lease_of(params: bytes) -> Lease:
    return Lease(params[:SESSION_BYTES], params[SESSION_BYTES:])


class TaskSource:
    """The tasks of one queue; the `Source` of its line."""

    def __init__(self, shape: Shape, runtime: Runtime, callbacks: Callbacks) -> None:
        self.shape = shape
        self.name = shape.name
        self.guard = shape.guard
        self.doorbell = shape.keys.calls  # every change counts something there
        self.line = Line(LineKeys(shape.keys.line), self)
        self._runtime = runtime
        self._callbacks = callbacks

    @property
    def tells(self) -> bool:
        """Whether this process has a callback that is told of changes."""
        return self._callbacks.callback is not None

    def change(self, tr: Transaction) -> Change:
        told = self._callbacks.after_commit if self.tells else None
        return Change(tr, self.shape, round(self._runtime.now() * 1_000_000), told)

    def within(self, tr: Transaction, body: Callable[[Change], T]) -> T:
        """Run a verb in a transaction."""
        change = self.change(tr)
        answer = body(change)
        change.finish()
        return answer

    def take(self, tr: Transaction, count: int, lease: Lease, ask_session: Ask) -> Sequence[Task]:
        """Take what is there, whoever else may be waiting; for a caller's transaction.

        Reads the first ready tasks, timers and results by snapshot, serialisably what it changes. Conflicts
        with any change of the same tasks; an answer of nothing, with whatever makes a task ready.
        """
        checks = self.guard(tr), ask_session(tr)
        change = self.change(tr)
        due, found = ask_due(tr, self.shape.keys, change.now_us), self.available(tr, count)
        overdue = self.line.results.ask_due(tr)
        for check in checks:
            check()
        tidied = settle(change, due)
        # What was asked for before tidying is of no use after it: this transaction has moved what it names.
        offers = list(self.available(tr, count) if tidied else found)
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if offers or not tidied:
                break
            tidied = tidy(change)
            offers = list(self.available(tr, count)) if tidied else []
        change.finish()
        # The tasks of an overdue result may have been taken by others since: a batch may bring nothing back.
        for _ in range(limits.TIDY_ROUNDS_MAX):
            returned = [] if offers else self.line.results.overdue(overdue, change.now_us)
            if not returned:
                break
            self.line.results.return_overdue(tr, returned)
            offers, overdue = list(self.available(tr, count)), self.line.results.ask_due(tr)
        if not offers:
            tr.add_read_conflict_range(self.shape.keys.ready.start, self.shape.keys.ready.stop)
        return self._take(change, portion_of(offers, count), lease)

    def take_in_turn(self, tr: Transaction, count: int, lease: Lease, ask_session: Ask) -> Taken:
        """Take what is there, but nothing in which somebody who waits in the line has a share.

        Reads the first ready tasks, timers and requests by snapshot, serialisably what it changes. Conflicts
        with any change of the same tasks.
        """
        checks = self.guard(tr), ask_session(tr)
        change, activity = self.change(tr), self.line.keys.activity
        due, found = ask_due(tr, self.shape.keys, change.now_us), self.available(tr, count)
        waiting = tr.snapshot.get_range(activity.start, activity.stop, limit=1).to_list()
        for check in checks:
            check()
        tidied = settle(change, due)
        change.finish()
        offers = list(self.available(tr, count) if tidied else found)
        if waiting and (self.line.keys.is_work(waiting[0].key, change.now_us) or not offers):
            return _served(self.line.pass_by(tr, count, params_of(lease), change.now_us), tidied)
        portion = portion_of(offers, count)
        tasks = self._take(change, portion, lease)
        return Taken(tasks, cut_short=len(portion) < len(offers), wrote=bool(tasks) or tidied)

    def _take(self, change: Change, offers: Sequence[Offer], lease: Lease) -> list[Task]:
        tr, shape = change.tr, self.shape
        self.claim(tr, offers)
        records = [record_of(offer.value) for offer in offers]
        data = ask_data(tr, shape.keys, shape.codec, records)  # with what the discipline reads
        taken = edges.take(change, records, lease)
        change.finish()
        return tasks_with(taken, data)

    # The line's Source.

    def tidy(self, tr: Transaction) -> bool:
        change = self.change(tr)
        tidied = tidy(change)
        change.finish()
        return tidied

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        keys = self.shape.keys
        first = tr.snapshot.get_range(keys.timers.start, keys.timers.stop, limit=1)
        return lambda: next((keys.time_of(timer.key) for timer in first), None)

    def available(self, tr: Transaction, limit: int) -> Iterable[Offer]:
        now_us = round(self._runtime.now() * 1_000_000)
        # Serialisably: once a pause has committed, nothing is taken.
        paused, found = tr.get(self.shape.keys.paused), self.shape.discipline.first(tr, limit)
        # What has expired and is not swept yet is skipped; if that leaves too few, tidying has more to do.
        return (_offer(record) for record in found if record.expires_us > now_us and not paused.present())

    def ask_available(self, tr: Transaction) -> Callable[[], bool]:
        """Ask whether there is a task to take. Reads the first ready task by snapshot."""
        check, found = self.guard(tr), self.available(tr, 1)

        def reply() -> bool:
            check()
            return next(iter(found), None) is not None

        return reply

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        for offer in offers:
            tr.add_read_conflict_key(self.shape.keys.task(offer.id))
        self.shape.discipline.claim(tr, [record_of(offer.value) for offer in offers])

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        lease, change = lease_of(params), self.change(tr)
        taken = edges.take(change, [record_of(offer.value) for offer in offers], lease)
        change.finish()
        return [Delivery(record.id, params + NUMBER.pack(record.attempts)) for record in taken]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        """Those whose lease is still what it was; a session that has ended has none. Of the others nobody has
        seen anything: they have not been taken.
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
        ]
        edges.give_back(change, [record for record in held if record not in live])
        change.finish()
        return list(read_tasks(tr, self.shape.keys, self.shape.codec, live))

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        return self.collect(tr, self.deliver(tr, offers, params))

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        change = self.change(tr)
        edges.give_back(change, self._held(change, deliveries))
        change.finish()

    def _held(self, change: Change, deliveries: Sequence[Delivery]) -> list[Record]:
        """The tasks that are still taken by the requests they were delivered to; of the others it is taken
        back if their leases were counted as lost.
        """
        found = change.read(delivery.id for delivery in deliveries)
        held = []
        for record, delivery in zip(found, deliveries, strict=True):
            if record is not None and _is_held(record, delivery):
                held.append(record)
            else:
                forgive_missed(change, delivery.id, _attempt_of(delivery))
        return held


def _is_held(record: Record, delivery: Delivery) -> bool:
    lease = Lease(record.session, record.token)
    return record.state == TaskState.TAKEN and params_of(lease) == _params_of(delivery)


def _params_of(delivery: Delivery) -> bytes:
    return delivery.value[: -NUMBER.size]


def _attempt_of(delivery: Delivery) -> int:
    attempt: int = NUMBER.unpack(delivery.value[-NUMBER.size :])[0]
    return attempt


def _params(deliveries: Sequence[Delivery]) -> set[bytes]:
    return {_params_of(delivery) for delivery in deliveries}


def _offer(record: Record) -> Offer:
    return Offer(record.id, record_to_bytes(record), record.size_bytes, record.key)


def _served(turn: Turn, tidied: bool) -> Taken:
    cut_short = bool(turn.answers)
    return Taken(turn.answers, cut_short=cut_short, wrote=turn.wrote or tidied, served=turn)
