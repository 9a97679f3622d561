"""The edges of the life cycle: one function each, for several tasks at once; and the sweep of those by time.

    -        put                      ->  READY, DELAYED
    DELAYED  due                      ->  READY
    READY    take                     ->  TAKEN
    TAKEN    ack                      ->  gone
    TAKEN    release, forsake         ->  READY, DELAYED
    TAKEN    lease_over, give_back    ->  READY
    TAKEN    touch, renew             ->  TAKEN, for longer
    TAKEN    detach                   ->  TAKEN, by another session
    TAKEN    progress, step           ->  TAKEN
    TAKEN    hand_off                 ->  TAKEN, without a holder
    any      bury                     ->  BURIED
    BURIED   kick                     ->  READY; DELAYED, if it waits for a group
    BURIED   edit                     ->  BURIED, with another payload
    READY, DELAYED  overwrite         ->  READY, DELAYED, with the payload of a later put
    DELAYED  start                    ->  READY, when the group that it waits for has ended
    any      excuse                   ->  the same; BURIED -> READY, if the burial was wrong
    any      delete, expire, cancel   ->  gone

A task that was cancelled while it was taken is gone at the end of its lease, whichever edge ends it. One that
was handed off is gone at once, as no process runs it.

An edge takes tasks in a state from which it starts. The caller has read them serialisably in this
transaction, and has checked the right to the edge (verbs.py).
Reads: the reads of the discipline.
Writes: as Change.move.

Sweeping: tasks with a delay that is over, a lease that is over, or a ttl that is over. Plan (pure), then
apply (bounded). Takes sweep on their way, and so does, in the background, every process that has opened a
queue. Several sweeps at once do no harm: each reads a task serialisably, so the second one finds it changed
and has nothing to do.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.line.decision import Swept
from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.sessions.ending import ask_run_counted, run_of
from fdbqueue.core.task import BURIED, DELAYED, DONE, READY, TAKEN, Failure, TaskState
from fdbqueue.tasks import failures
from fdbqueue.tasks.change import Change, for_record, set_payload
from fdbqueue.tasks.feature import ACKED, Encode, End, met_by
from fdbqueue.tasks.options import OF_QUEUE, Draft, later
from fdbqueue.tasks.stored.records import (
    HANDED_OFF,
    NEVER_US,
    Extra,
    Handed,
    Record,
    TaskKeys,
    id_in,
    new_id,
    without_slots,
)

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate


_extra = attrgetter("extra")


class Lease(Struct, frozen=True):
    """The session that takes a task, and a token that no other lease has."""

    session: bytes
    token: bytes


def put(
    change: Change, drafts: Sequence[Draft], index: int, random: bytes, counts: bool = True
) -> list[Record]:
    """`counts`: false in a queue that counts no calls."""
    records = list(map(partial(_new, change, random), drafts, itertools.count(index)))
    for record, draft in zip(records, drafts, strict=True):
        if len(draft.payload) != len(record.payload):  # it lies beside its record
            set_payload(change.tr, change.shape.keys, record, draft.payload)
    change.restore(records)
    if any(map(_extra, records)):
        for feature in met_by(records, ()):
            feature.entered(change.site, records, drafts[0].arrives)
    return change.counted(records, "put") if counts else records


def take(change: Change, records: Sequence[Record], lease: Lease, gate: "Gate | None" = None) -> list[Record]:
    """`gate`: the one that has let these tasks through, in this transaction."""
    taken: Sequence[Record] = list(map(partial(_taken, change, lease), records))
    for feature in change.shape.starting:
        taken = feature.started(change.site, taken, gate)
    return change.counted(change.move(records, taken), "take")


def ack(change: Change, records: Sequence[Record], result: Encode | None = None) -> list[Record]:
    """`result`: that of these tasks; None for the result None."""
    change.end(records, "done")
    return _gone(change, records, "ack", End(ACKED, result))


def delete(change: Change, records: Sequence[Record], by_holder: bool = False) -> list[Record]:
    change.end(records, "done" if by_holder else "lost")
    return _gone(change, records, "delete", End("deleted"))


def expire(change: Change, records: Sequence[Record]) -> list[Record]:
    change.count("ttl", len(records))
    return _gone(change, records, "delete", End("expired"), told=("delete", "ttl"))


def cancel(change: Change, records: Sequence[Record]) -> list[Record]:
    change.end(_counted_for_runs(change, records), "cancelled")
    return _gone(change, records, "cancel", End("cancelled"), told=("delete", "cancel"))


def cancel_any(change: Change, record: Record) -> list[Record]:
    """End the task, or mark it if a process may be running it."""
    runs = record.state == TaskState.TAKEN and record.session != HANDED_OFF
    return (ask_cancel if runs else cancel)(change, [record])


def ask_cancel(change: Change, records: Sequence[Record]) -> list[Record]:
    """Mark taken tasks as cancelled. Not counted: no task becomes available, so no process has to wake."""
    marked = [
        record if record.cancelled_us else replace(record, cancelled_us=change.now_us) for record in records
    ]
    return [*change.move(records, marked)]


def _without_cancelled(change: Change, records: Sequence[Record]) -> tuple[list[Record], Sequence[Record]]:
    """End the tasks that were cancelled while they were taken. Return these, and the other tasks."""
    cancelled = [record for record in records if record.cancelled_us]
    if not cancelled:
        return cancelled, records
    return cancel(change, cancelled), [record for record in records if not record.cancelled_us]


def release(
    change: Change,
    records: Sequence[Record],
    delay_us: int = 0,
    failure: Failure | None = None,
    snoozed: bool = False,
) -> list[Record]:
    """Make taken tasks ready, or delayed.

    Counted for the runs of the leases if the attempt failed, or if its holder put it off (`snoozed`).
    """
    gone, records = _without_cancelled(change, records)
    free = [freed(record) for record in records]
    if snoozed:
        change.end(records, "snoozed")
    if failure is not None:
        change.end(records, "failed")
        noted = change.note(records, failure, failures.RETRIED)
        free = [replace(freed(record), orphaned=0) for record in noted]
    if delay_us:
        free = _delayed(change, free, delay_us)
    return gone + change.counted(change.move(records, free), "release")


def forsake(change: Change, records: Sequence[Record], failure: Failure) -> list[Record]:
    """Release tasks of a session that has died."""
    gone, records = _without_cancelled(change, records)
    free = _orphaned(change, records, failure)
    return gone + change.counted(change.move(records, free), "release")


def _delayed(change: Change, records: Sequence[Record], delay_us: int) -> list[Record]:
    return [
        replace(
            record,
            state=DELAYED,
            until_us=later(change.now_us, delay_us),
            expires_us=later(record.expires_us, delay_us),
        )
        for record in records
    ]


def lease_over(change: Change, records: Sequence[Record]) -> list[Record]:
    """Return the tasks that are ready again."""
    _, records = _without_cancelled(change, records)
    held = [record for record in records if record.session != HANDED_OFF]
    handed = [record for record in records if record.session == HANDED_OFF]
    free = [*_orphaned(change, held, failures.LEASE_OVER), *_uncompleted(change, handed)]
    return change.counted(change.move([*held, *handed], free), "ttr")


def _uncompleted(change: Change, records: Sequence[Record]) -> list[Record]:
    """The attempts have failed, as nobody has completed them. No holder has died."""
    failed = [(record, failures.uncompleted(record)) for record in records]
    noted = [change.note([record], failure, failures.RETRIED)[0] for record, failure in failed]
    return [replace(freed(record), orphaned=0) for record in noted]


def hand_off(change: Change, record: Record, handed: Handed) -> list[Record]:
    """Let a taken task wait for the outside, in place of its holder. Counted for the run of its lease as put
    off; otherwise not counted, as in `renew`.
    """
    gone, records = _without_cancelled(change, [record])
    change.end(records, "snoozed")
    news = [
        replace(
            old,
            until_us=_lease_end(change, old, handed.ttl_us),
            session=HANDED_OFF,
            token=b"",
            extra=(old.extra or Extra()).with_handed(handed),
        )
        for old in records
    ]
    return [*gone, *change.move(records, news)]


def _orphaned(change: Change, records: Sequence[Record], failure: Failure) -> list[Record]:
    change.end(_counted_for_runs(change, records), "lost")
    noted = change.note(records, failure, failures.LEASE_LOST)
    return [replace(freed(record), orphaned=record.orphaned + 1) for record in noted]


def _counted_for_runs(change: Change, records: Sequence[Record]) -> list[Record]:
    """The tasks with leases that count for a run. Reads two keys for each lease of a run, together."""
    runs = [(record, run_of(record.token)) for record in records]
    asked = [
        (record, ask_run_counted(change.tr, change.shape.root, record.session, run))
        for record, run in runs
        if run
    ]
    return [record for record, is_counted in asked if is_counted()]


def due(change: Change, records: Sequence[Record], stays: bool = False) -> list[Record]:
    """`stays`: another edge follows in this transaction, so the tasks stay in their partition."""
    ready = [freed(record) for record in records]
    stored = (change.move if stays else change.join)(records, ready)
    return change.counted(stored, "delay")


def kick(change: Change, records: Sequence[Record]) -> list[Record]:
    """Make buried tasks ready. Their failures so far no longer count."""
    kicked = [
        replace(waiting(freed(record)), forgiven=record.failures, orphaned=0, excused=0, error=None)
        for record in records
    ]
    return change.counted(change.join(records, kicked), "kick")


def start(change: Change, record: Record) -> None:
    """Let a task wait no longer for its group. Its ttl begins now; a buried one stays so until its kick."""
    assert record.extra is not None  # it waits
    extra = replace(record.extra, waits=b"")
    if record.state != DELAYED:
        change.move([record], [replace(record, extra=extra)])
        return
    lives_us = NEVER_US if record.expires_us == NEVER_US else record.expires_us - record.created_us
    started = replace(record, expires_us=later(change.now_us, lives_us), extra=extra)
    ready = freed(started)
    change.join([record], [ready])
    change.counted([ready], "delay")


def edit(change: Change, record: Record, payload: bytes, kicks: bool = False) -> Record:
    """Store another payload for a buried task, and kick it as well, if told. Without a kick it is not
    counted: no task becomes available.
    """
    edited = replace(record, size_bytes=len(payload), payload=for_record(payload))
    change.rewrite(record, edited, payload, joins=kicks)
    return kick(change, [edited])[0] if kicks else edited


def overwrite(change: Change, record: Record, draft: Draft, due_us: int) -> Record:
    """Give a waiting task the payload, headers, limits, ttr and ttl of a later put; let it wait until
    `due_us`.
    """
    waits, shape = due_us > change.now_us, change.shape
    state = DELAYED if waits else record.state
    extra = _overwritten(record.extra or Extra(), draft.extra or Extra())
    later_one = replace(
        record,
        state=state,
        until_us=due_us if state == DELAYED else NEVER_US,
        expires_us=later(
            max(change.now_us, due_us), shape.ttl_us if draft.ttl_us == OF_QUEUE else draft.ttl_us
        ),
        ttr_us=shape.ttr_us if draft.ttr_us == OF_QUEUE else draft.ttr_us,
        size_bytes=len(draft.payload),
        payload=for_record(draft.payload),
        trace=draft.trace,
        extra=_with_result(extra, shape.result_ttl_us),
    )
    change.replace_payload(record, later_one, draft.payload)
    for feature in met_by([record], ()):
        feature.overwritten(change.site, record)
    change.move([record], [later_one])
    change.count("other")  # it may be due earlier
    return later_one if waits or state == READY else due(change, [later_one])[0]


def _overwritten(old: Extra, later_one: Extra) -> Extra:
    """The extra parts with the headers and the limits of a later put, and with its attempts, and its wish for
    a result, if it has one.
    """
    result_ttl_us = later_one.result_ttl_us or old.result_ttl_us
    return replace(
        old.with_steps(0, 0),
        headers=later_one.headers,
        result_ttl_us=result_ttl_us,
        limits=later_one.limits,
        limit_keys=later_one.limit_keys,
        more=(*later_one.more, *old.more[len(later_one.more) :]),
    )


def give_back(change: Change, records: Sequence[Record]) -> list[Record]:
    """Undo takes that no caller has received: they count no attempt."""
    change.count("take", -len(records))
    _, records = _without_cancelled(change, records)
    if not records:  # no task has become available: no process has to wake
        return []
    ready = [replace(freed(record), attempts=record.attempts - 1) for record in records]
    stored = change.move(records, ready)
    change.count("other")
    return [*stored]


def excuse(change: Change, record: Record, excused: Record) -> None:
    """Store the task as `excused`. The lease of another holder stays."""
    if excused.state == record.state:
        change.move([record], [excused])
    else:
        change.join([record], [excused])
        change.counted([excused], "kick")
        if excused.expires_us <= change.now_us:  # it has stayed here, where a ready task would hold its key
            expire(change, [excused])


def bury(change: Change, records: Sequence[Record], failure: Failure | None = None) -> list[Record]:
    gone, records = _without_cancelled(change, records)
    change.end(records, "buried")
    return gone + put_aside(change, records, failure)


def put_aside(change: Change, records: Sequence[Record], failure: Failure | None = None) -> list[Record]:
    """`bury`, counted for no run: the caller counts it for a run of its own choice."""
    noted = records if failure is None else change.note(records, failure, failures.BURIED)
    buried = [replace(freed(record), state=BURIED, error=record.error or "") for record in noted]
    return change.counted(change.move(records, buried), "bury")


def touch(change: Change, records: Sequence[Record], span_us: int) -> list[Record]:
    touched = [
        replace(
            record,
            until_us=later(record.until_us, span_us),
            expires_us=later(record.expires_us, span_us),
            ttr_us=later(record.ttr_us, span_us),
        )
        for record in records
    ]
    change.move(records, touched)
    return change.counted(touched, "touch")


def renew(change: Change, records: Sequence[Record]) -> list[Record]:
    """Lease tasks for a whole ttr from now. Not counted: no task becomes available, so no process has to
    wake.
    """
    renewed = [replace(record, until_us=_lease_end(change, record, record.ttr_us)) for record in records]
    change.move(records, renewed)
    return renewed


def detach(change: Change, records: Sequence[Record], session: bytes, ttr_us: int) -> list[Record]:
    """Lease tasks to another session, for this ttr from now. Not counted, as in `renew`."""
    leased = [
        replace(record, session=session, until_us=_lease_end(change, record, ttr_us)) for record in records
    ]
    return [*change.move(records, leased)]


def progress(change: Change, records: Sequence[Record], fraction: float) -> list[Record]:
    """Store the progress. Not counted, as in `renew`."""
    told = [replace(record, fraction=fraction, told_us=change.now_us) for record in records]
    change.move(records, told)
    return told


def step(change: Change, record: Record, extra: Extra) -> None:
    """Count one more step that is done. Not counted as a call, as in `renew`."""
    change.move([record], [replace(record, extra=extra)])


def _with_result(extra: Extra | None, result_ttl_us: int) -> Extra | None:
    """The extra parts of a task, with the `result_ttl_us` of its queue, 0 for none, if its put gave none."""
    if not result_ttl_us or (extra is not None and extra.result_ttl_us):
        return extra
    return replace(extra or Extra(), result_ttl_us=result_ttl_us)


def _new(change: Change, random: bytes, draft: Draft, index: int) -> Record:
    now_us, size_bytes, shape = change.now_us, len(draft.payload), change.shape
    waits = draft.delay_us > 0 or (draft.extra is not None and draft.extra.waits)
    ttl_us = shape.ttl_us if draft.ttl_us == OF_QUEUE else draft.ttl_us
    return Record(
        id=new_id(index, random),
        state=DELAYED if waits else READY,
        pri=shape.settings.pri if draft.pri == OF_QUEUE else draft.pri,
        created_us=now_us,
        expires_us=min(now_us + ttl_us + draft.delay_us, NEVER_US),
        ttr_us=shape.ttr_us if draft.ttr_us == OF_QUEUE else draft.ttr_us,
        size_bytes=size_bytes,
        payload=draft.payload if size_bytes <= limits.RECORD_PAYLOAD_BYTES_MAX else b"",
        key=draft.key,
        cost=draft.cost,
        until_us=later(now_us, draft.delay_us) if draft.delay_us else NEVER_US,
        trace=draft.trace,
        extra=_with_result(draft.extra, shape.result_ttl_us) if shape.result_ttl_us else draft.extra,
        failures=draft.failures,
        forgiven=draft.failures - draft.failures_counted,
    )


def _taken(change: Change, lease: Lease, record: Record) -> Record:
    return replace(
        record,
        state=TAKEN,
        attempts=record.attempts + 1,
        until_us=_lease_end(change, record, record.ttr_us),
        session=lease.session,
        token=lease.token,
        taken_us=change.now_us,
    )


def _lease_end(change: Change, record: Record, span_us: int) -> int:
    until_us = min(change.now_us + span_us, NEVER_US)
    return min(until_us, record.expires_us) if change.shape.kind.ttl_ends_lease else until_us


def waiting(record: Record) -> Record:
    """A ready task that waits for a group is delayed, without a due time."""
    waits = record.extra is not None and record.extra.waits
    return replace(record, state=DELAYED) if waits else record


def freed(record: Record) -> Record:
    """The record as ready, without a lease."""
    return replace(
        record,
        state=READY,
        until_us=NEVER_US,
        session=b"",
        token=b"",
        taken_us=0,
        cancelled_us=0,
        fraction=None,
        told_us=0,
        extra=None if record.extra is None else without_slots(record.extra),
    )


def _done(record: Record) -> Record:
    return replace(freed(record), state=DONE)


def _gone(
    change: Change, records: Sequence[Record], call: str, end: End, told: Sequence[str] = ("delete",)
) -> list[Record]:
    gone = list(map(_done, records))
    if change.tells:
        for record in gone:
            for event in told:
                change.tell([record], event)  # while the payload is still there
    change.discard(records, end)
    change.count_ends(call, len(gone))
    return gone


@dataclass(frozen=True)
class Plan:
    """The tasks that are due, by the change they need. One that becomes ready may be expired as well."""

    lapsed: Sequence[Record]
    due: Sequence[Record]
    expired: Sequence[Record]


class Budget:
    """The part of a batch that is left, in a transaction that sweeps several partitions."""

    def __init__(self) -> None:
        self._tasks = limits.DUE_BATCH
        self.moved_bytes = 0
        """Bytes that have gone into other partitions so far."""
        self._told_bytes = 0

    def give(self, timers: Sequence[KeyValue]) -> Sequence[KeyValue]:
        given = timers[: self._tasks]
        self._tasks -= len(given)
        return given

    def told(self, found: Sequence[Record | None]) -> Sequence[Record | None]:
        """The first of these tasks, as far as a callback may be told of them: the sweep reads their payloads,
        and 50 of the largest take longer than the five seconds of a transaction.
        """
        for at, record in enumerate(found):
            size_bytes = 0 if record is None else record.size_bytes
            if self._told_bytes and self._told_bytes + size_bytes > limits.TRANSACTION_BYTES_MAX:
                return found[:at]
            self._told_bytes += size_bytes
        return found


def plan_sweep(records: Iterable[Record], now_us: int) -> Plan:
    over = {record.id: record for record in records if record.timer_us <= now_us}.values()
    lapsed = [record for record in over if record.state == TaskState.TAKEN]
    due = [record for record in over if record.state == TaskState.DELAYED]
    expired = [record for record in over if record.state in (TaskState.READY, TaskState.BURIED)]
    return Plan(lapsed, due, expired)


def apply_sweep(change: Change, planned: Plan, stays: bool = False) -> list[Record]:
    """Carry the plan out. Return the tasks that are ready now. `stays`: as in edges.due."""
    back = [*lease_over(change, planned.lapsed), *due(change, planned.due, stays)]
    gone = [record for record in back if record.expires_us <= change.now_us]
    expire(change, [*gone, *planned.expired])
    return [record for record in back if record.expires_us > change.now_us]


def catch_up(change: Change, record: Record) -> Record | None:
    """The task as it is now, after a sweep of it; None if it has expired."""
    if record.timer_us > change.now_us:
        return record
    back = apply_sweep(change, plan_sweep([record], change.now_us), stays=True)
    return back[0] if back else None


def as_of(record: Record, now_us: int) -> Record | None:
    """The task as it is at `now_us`, swept or not; None if it has expired."""
    if record.timer_us > now_us:
        return record
    waits = record.state in (TaskState.TAKEN, TaskState.DELAYED) and not record.cancelled_us
    return freed(record) if waits and record.expires_us > now_us else None


def ask_due(tr: Transaction, keys: TaskKeys, now_us: int) -> Range:
    until = keys.timers_until(now_us)
    return tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_BATCH)


def sweep_timers(change: Change, timers: Sequence[KeyValue], budget: Budget) -> Swept:
    if not timers:
        return Swept.NOTHING
    read = change.read([id_in(timer.key) for timer in timers])
    found = budget.told(read) if change.tells else read
    planned = plan_sweep([record for record in found if record is not None], change.now_us)
    due = change.joinable(planned.due, budget.moved_bytes)
    ready = apply_sweep(change, replace_fields(planned, due=due))
    budget.moved_bytes += change.moved_bytes
    for timer, record in zip(timers[: len(found)], found, strict=True):
        # A timer without its task, or of a task with another timer: every sweep would find it due.
        if record is None or record.timer_us != change.shape.keys.time_of(timer.key):
            change.tr.clear(timer.key)
    # A task that was cancelled, has expired or has another timer is not ready.
    return Swept.LEASES if len(ready) == len(planned.lapsed) == len(timers) else Swept.MORE
