"""The verbs of task queues, each in one transaction: check the right to an edge, and take it (edges.py).

Uncollected: leases that the line has delivered to a request, and that its owner has not collected. No caller
has received such a task. So the death of the session that holds it is no failed attempt.

Verbs about many tasks, in the partitions of a queue one after the other; without partitions, in the queue.
All partitions change in one transaction. Reads and conflicts are those of the verb, in each. The
first change checks the queue before any of them writes: a transaction may go on behind a refusal, and commit.

Excusing: a lease that ended only because the database was away does not count as a failed attempt.
A sweep cannot tell such a lease from the lease of a dead worker, and counts it. The holder can tell, and
excuses the attempt when the database is back. The number of the attempt identifies the count: no other lost
lease of the task has it. So the right count is taken back, whatever has happened to the task since, and only
once.

The heartbeat of a worker finds the mark when it renews the lease, without a further read. An ack is still
possible: the work was done. Any other end of the lease ends the task (edges.py), so no later attempt begins.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import require_verb_batch
from fdbqueue.core.database import is_transaction
from fdbqueue.core.errors import NotBuried, NotTaken, RecordUnreadable, TaskNotFound
from fdbqueue.core.line.decision import LineKeys, notice_of
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction, engine_errors
from fdbqueue.core.sessions.ending import run_of, runs_on
from fdbqueue.core.task import TAKEN, Failure, Renewed, Task, TaskState
from fdbqueue.core.unreadable import Unreadable, shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change, ask_payload, delivered_value, seconds_or_never, task_of
from fdbqueue.tasks.edges import apply_sweep, as_of, catch_up, plan_sweep
from fdbqueue.tasks.failures import (
    EXCUSED,
    EXHAUSTED,
    LEASE_LOST,
    RETRIED,
    Entry,
    ask_entries,
    ask_failures,
    rewrite,
)
from fdbqueue.tasks.feature import OF_TASKS, REMOVED, Encode, feature_of_tasks
from fdbqueue.tasks.options import delay_us as delay_in_us
from fdbqueue.tasks.shape import NO_RECORD, Shape
from fdbqueue.tasks.stored.records import (
    COUNTERS_BYTES,
    NEVER_US,
    NO_TASKS,
    Record,
    TaskKeys,
    id_bytes,
    id_in,
    id_text,
    sound_record,
)

if TYPE_CHECKING:
    from fdbqueue.tasks.attempts import Asked, InForce

UNKNOWN = object()


class Target(Struct, frozen=True):
    """The task of a verb: held under this token or, without a token, by this session."""

    id: bytes
    token: bytes | None = None
    session: bytes = b""
    data: Any = UNKNOWN  # the payload of a lease never changes: a target that brings it saves the read

    def holds(self, record: Record, now_us: int) -> bool:
        mine = record.session == self.session if self.token is None else record.token == self.token
        return record.state == TAKEN and record.until_us > now_us and mine


class Held(NamedTuple):
    """A lease that is held: its end in seconds, and true if its task was cancelled."""

    until: float | None
    cancelled: bool


def ack(change: Change, target: Target, result: Encode | None = None) -> Task:
    record = held(change, target)
    data = target.data if target.data is not UNKNOWN else shown_data(change, record)
    return task_of(edges.ack(change, [record], result)[0], data)


def ack_each(change: Change, targets: Sequence[Target]) -> list[Task | NotTaken]:
    """Ack tasks as if one came after the other. The targets bring their payloads."""
    ids = list(dict.fromkeys(target.id for target in targets))
    left = dict(zip(ids, change.read(ids), strict=True))
    held = [_take_out(left, target, change.now_us) for target in targets]
    gone = {record.id: record for record in edges.ack(change, [record for record in held if record])}
    return [
        NotTaken(id=id_text(target.id)) if record is None else task_of(gone[record.id], target.data)
        for target, record in zip(targets, held, strict=True)
    ]


def release(change: Change, target: Target, delay_us: int) -> Task:
    """Make a held task ready, or delayed."""
    record = held(change, target)
    return done(change, target, record, lambda: edges.release(change, [record], delay_us, snoozed=True))


def retry(change: Change, target: Target, delay_us: int | None, failure: Failure, random: float) -> Task:
    """As `release`, after a failure. The delay None is that of the backoff in force. If the task or its queue
    has attempts, the last of them buries the task.
    """
    return failed(change, target, held(change, target), delay_us, failure, random)


def failed(
    change: Change, target: Target, record: Record, delay_us: int | None, failure: Failure, random: float
) -> Task:
    """`retry` of a task whose holder has been checked."""
    rule, failures = late.attempts.of_record(record, change.shape.settings), record.failures_counted + 1
    if rule.is_used_up(failures):
        return done(change, target, record, lambda: edges.bury(change, [record], failure))
    pause_us = delay_in_us(rule.delay_s(failures, random)) if delay_us is None else delay_us
    return done(change, target, record, lambda: edges.release(change, [record], pause_us, failure))


def rule_for(change: Change, target: Target, worker: "Asked") -> tuple[int, "InForce"]:
    """The failures of a held task that count, and what is in force for it with that worker."""
    record = held(change, target)
    return record.failures_counted, late.attempts.of_record(record, change.shape.settings, worker)


def give_back(change: Change, target: Target, delay_us: int) -> Task:
    """`release` for a worker before its handler has decided: no attempt has ended."""
    record = held(change, target)
    return done(change, target, record, lambda: edges.release(change, [record], delay_us))


def touch(change: Change, target: Target, span_us: int) -> Task:
    record = held(change, target)
    change.shape.require_touch()
    return done(change, target, record, lambda: edges.touch(change, [record], span_us))


def undo_take(change: Change, targets: Sequence[Target]) -> list[bool]:
    """Undo takes of tasks that are still held: they count no attempt. True for each that is ready now."""
    ready = {record.id for record in edges.give_back(change, still_held(change, targets))}
    return [target.id in ready for target in targets]


def are_held(change: Change, targets: Sequence[Target]) -> list[bool]:
    ids = {record.id for record in still_held(change, targets)}
    return [target.id in ids for target in targets]


def renew(change: Change, targets: Sequence[Target]) -> list[Held | None]:
    """Lease the held tasks for a whole ttr from now. Return the lease of each; None if it is not held."""
    held = still_held(change, targets)
    renewed = edges.renew(change, [record for record in held if record.until_us != NEVER_US])
    until = {record.id: seconds_or_never(record.until_us) for record in [*held, *renewed]}
    leases = {record.id: Held(until[record.id], bool(record.cancelled_us)) for record in held}
    return [leases.get(target.id) for target in targets]


def renewed_of(targets: Sequence[Target], leases: Sequence[Held | None]) -> Renewed:
    held = [(id_text(target.id), lease) for target, lease in zip(targets, leases, strict=True) if lease]
    return Renewed({id_: lease.until for id_, lease in held}, [id_ for id_, lease in held if lease.cancelled])


def bury(change: Change, target: Target, failure: Failure | None) -> Task:
    record = present(change, target)
    if record.state == TaskState.BURIED:
        return done(change, target, record, lambda: [record])
    return done(change, target, record, lambda: edges.bury(change, [record], failure))


def exhaust(change: Change, target: Target, failures_max: int) -> bool:
    """Bury the task if at least `failures_max` of its attempts have failed, and mark its last lost lease as
    exhausted. True if the task was buried.

    The burial counts for the run that held the lost lease, as long as that run is alive: another fleet may
    have taken the task since. Otherwise it counts for the run that holds the task now.
    """
    asked = ask_entries(change.tr, change.shape.keys, target.id)
    record = held(change, target)
    if record.failures_counted < failures_max or record.cancelled_us:
        return False
    counted = [entry for entry in asked() if entry.number > record.forgiven]
    lost = [entry for entry in counted if entry.failure.outcome == LEASE_LOST]
    run = run_of(record.token)
    if lost:
        run = lost[-1].run if runs_on(change.tr, change.shape.root, lost[-1].run) else run
        rewrite(change.tr, change.shape.keys, record.id, lost[-1], outcome=EXHAUSTED, run=run)
    edges.put_aside(change, [record])
    change.end_for(run, "buried")
    return True


def delete(change: Change, target: Target) -> Task:
    """Remove the task, also if its record cannot be read."""
    try:
        record = present(change, target)
    except TaskNotFound:
        if target.id in change.damaged:
            return _deleted_unread(change, target.id)
        raise
    by_holder = target.token is not None
    return done(change, target, record, lambda: edges.delete(change, [record], by_holder))


def _deleted_unread(change: Change, id_: bytes) -> Task:
    raw = change.damaged.pop(id_)
    change.shape.mender.forget(change.tr, id_)
    change.count("delete")
    change.count("done")
    error = RecordUnreadable(name=change.shape.name, key=id_text(id_), reason=NO_RECORD)
    return Task(id_text(id_), TaskState.DONE, Unreadable(error, raw))


def peek(change: Change, target: Target) -> Task:
    record = _read(change, target)
    current = as_of(record, change.now_us) if record is not None else None
    if current is None:
        change.require_sound(target.id)
        raise _not_found(change, target)
    return done(change, target, current, lambda: [current])


def kick(change: Change, count: int, besides: int = 0) -> tuple[int, int]:
    """Kick the first `count` buried tasks. Return how many were kicked, and how many were read: some may have
    expired. `count` stands, too, for tasks that wait for another transaction. `besides`: Change.joinable.
    """
    looked_at, found = _swept(change, change.shape.keys.buried, count)
    buried = in_state(found, TaskState.BURIED)
    kicked = edges.kick(change, change.joinable(buried, besides))
    return len(kicked), looked_at if len(kicked) == len(buried) else count


def release_taken(change: Change, under: slice, count: int, died: Failure | None = None) -> int:
    """Release the first taken tasks that have their keys in the range `under`. Return the number of keys
    read.

    If the holder `died`, the attempts have failed so, except those of tasks that no caller has received.
    Reads: the keys and the deliveries of the line by snapshot, the tasks serialisably.
    Conflicts: a change of the tasks.
    """
    is_uncollected = ask_uncollected(change.tr, change.shape)
    looked_at, found = _swept(change, under, count)
    forsaken, kept = list[Record](), list[Record]()
    for task in in_state(found, TaskState.TAKEN):
        (kept if died is None or is_uncollected(task) else forsaken).append(task)
    if died is not None:
        edges.forsake(change, forsaken, died)
    edges.release(change, kept)
    return looked_at


def truncate(change: Change) -> None:
    """Remove every task. Writes: clears their range. Conflicts: every call on a task of the queue."""
    change.require_queue()
    keys = change.shape.keys
    for under in (keys.contents, keys.failures, keys.classed, keys.class_counts, keys.all_steps):
        change.tr.clear_range(under.start, under.stop)
    change.tr.add(keys.counters, bytes(COUNTERS_BYTES))  # an AND would store its operand in a missing row
    change.tr.bit_and(keys.counters, NO_TASKS)
    change.count("other")


def remove_first(change: Change, count: int) -> int:
    """Remove the first `count` tasks by arrival, in whatever state. Return their number.

    Reads: the tasks, by snapshot.
    Conflicts: a change of the tasks.
    """
    tr, keys = change.tr, change.shape.keys
    asked = tr.snapshot.get_range(keys.tasks.start, keys.tasks.stop, limit=count)
    change.require_queue()  # after the read is sent: no round trip of its own
    found = asked.to_list()
    for entry in found:
        tr.add_read_conflict_key(entry.key)
    prefix = len(keys.tasks.start)
    sound = [(entry.key[prefix:], sound_record(entry.value, entry.key[prefix:])) for entry in found]
    change.discard([record for _, record in sound if record is not None], REMOVED)
    for id_, record in sound:
        if record is None:
            change.shape.mender.forget(tr, id_)
    change.count("other")
    return len(found)


def pause(change: Change) -> None:
    """Let no task be taken. Writes: the flag that every take reads. Conflicts: takes."""
    change.require_queue()
    change.tr.set(change.shape.keys.paused, b"")


def resume(change: Change) -> None:
    """Let tasks be taken again, and wake waiting takes. Writes: clears the flag. Conflicts: takes."""
    change.require_queue()
    change.tr.clear(change.shape.keys.paused)
    change.count("other")


def is_paused(change: Change) -> bool:
    """True if the queue is paused. Reads: the flag. Conflicts: pause and resume."""
    found = change.tr.get(change.shape.keys.paused)
    return bool(found.present())


def failures_of(change: Change, id_: bytes) -> list[Failure]:
    asked = ask_failures(change.tr, change.shape.keys, id_)
    target = Target(id_)
    if _read(change, target) is None:
        change.require_sound(id_)
        raise _not_found(change, target)
    return asked()


def _read(change: Change, target: Target) -> Record | None:
    [record] = change.read([target.id])
    return record


def still_held(change: Change, targets: Sequence[Target]) -> list[Record]:
    found = zip(change.read(target.id for target in targets), targets, strict=True)
    return [record for record, target in found if record is not None and target.holds(record, change.now_us)]


def held(change: Change, target: Target) -> Record:
    [record] = change.read([target.id])
    if record is None or not target.holds(record, change.now_us):
        raise NotTaken(id=id_text(target.id))
    return record


def _take_out(left: dict[bytes, Record | None], target: Target, now_us: int) -> Record | None:
    """The task, if it is held and no other ack of the batch has removed it."""
    record = left[target.id]
    if record is None or not target.holds(record, now_us):
        return None
    left[target.id] = None
    return record


def present(change: Change, target: Target) -> Record:
    """The task of the target, after a sweep of it. Raises: TaskNotFound, NotTaken."""
    record = _read(change, target)
    if target.token is not None and (record is None or not target.holds(record, change.now_us)):
        raise NotTaken(id=id_text(target.id))
    if record is None or as_of(record, change.now_us) is None:
        raise _not_found(change, target)
    current = catch_up(change, record)
    assert current is not None  # as_of has just found it
    return current


def _not_found(change: Change, target: Target) -> TaskNotFound:
    return TaskNotFound(id=id_text(target.id), name=change.shape.name)


def done(change: Change, target: Target, record: Record, edge: Callable[[], list[Record]]) -> Task:
    """Take the edge. Return the task afterwards, with its payload."""
    # Before the edge, which may clear it.
    data = target.data if target.data is not UNKNOWN else shown_data(change, record)
    return task_of(edge()[0], data)


def shown_data(change: Change, record: Record) -> Any:
    """The data of a task. Its end must not depend on a readable payload."""
    return shown(change.shape.codec, ask_payload(change.tr, change.shape.keys, record))


def _swept(change: Change, under: slice, count: int) -> tuple[int, list[Record]]:
    """The number of the first keys in the range `under`, and their tasks after a sweep of them."""
    found = change.tr.snapshot.get_range(under.start, under.stop, limit=count).to_list() if count else []
    read = change.read(id_in(entry.key) for entry in found)
    records = list[Record]()
    for entry, record in zip(found, read, strict=True):
        if record is None:
            change.lost(entry.key, entry.value)
        elif change.state_key(record) == entry.key:
            records.append(record)
        else:
            change.tr.clear(entry.key)  # a stray one: met again, it would keep a sweep from its end
    return len(found), swept(change, records)


def swept(change: Change, records: Sequence[Record]) -> list[Record]:
    """Sweep these tasks. Return them as they are now; those that have expired are ready."""
    apply_sweep(change, plan_sweep(records, change.now_us))
    return [record if record.timer_us > change.now_us else edges.freed(record) for record in records]


def in_state(records: Sequence[Record], state: TaskState) -> list[Record]:
    return [record for record in records if record.state == state]


def ask_uncollected(tr: Transaction, shape: Shape) -> Callable[[Record], bool]:
    """Ask which leases are not collected. The reply is true for a record whose lease is among them.

    Reads: by snapshot, at most limits.VERB_BATCH notices, and as many results beside them, in each line. A
    collection for a session that has ended gives its tasks back, so it needs no conflict.
    """
    own = _ask_delivered(tr, LineKeys(shape.keys.line))
    if shape.plan is None:
        return lambda record: (record.id, delivered_value(record)) in own()
    shared, place = _ask_delivered(tr, LineKeys(shape.shared.line)), bytes((shape.keys.partition,))
    return lambda record: (
        (record.id, delivered_value(record)) in own()
        or (record.id, delivered_value(record) + place) in shared()
    )


def _ask_delivered(tr: Transaction, line: LineKeys) -> Callable[[], set[tuple[bytes, bytes]]]:
    most = limits.VERB_BATCH
    asked = tr.snapshot.get_range(line.all_notices.start, line.all_notices.stop, limit=most)
    beside = tr.snapshot.get_range(line.all_results.start, line.all_results.stop, limit=most)
    known: set[tuple[bytes, bytes]] = set()

    def reply() -> set[tuple[bytes, bytes]]:
        if not known:
            notices = [notice for row in asked if (notice := notice_of(row.value)) is not None]
            known.update(result for notice in notices for result in notice.results)
            known.update((line.item_id_of(row.key), row.value) for row in beside)
        return known

    return reply


TRANSACTION_TOO_LARGE = 2101

Under = Callable[[TaskKeys], slice]
"""A range of keys of a partition."""


def require_few(changes: Sequence[Change], under: Under) -> None:
    """Raises: TooMuchForOneTransaction if the ranges have more keys than one transaction may change."""
    found = 0
    for change in changes:
        found = _counted(change, under(change.shape.keys), found)


def _counted(change: Change, under: slice, besides: int) -> int:
    """Return the number of keys in the range `under` and `besides`, if one transaction may change them."""
    more = limits.VERB_BATCH + 1 - besides
    found = besides + len(change.tr.snapshot.get_range(under.start, under.stop, limit=more).to_list())
    require_verb_batch(found)
    return found


def kick_in_all(changes: Sequence[Change], count: int) -> tuple[int, int]:
    """Kick the first `count` buried tasks. Return how many were kicked, and how many were read."""
    kicked = looked_at = moved_bytes = 0
    for change in occupied(changes, lambda change: change.shape.keys.buried):
        more, looked = kick(change, count - looked_at, moved_bytes)
        kicked, looked_at = kicked + more, looked_at + looked
        moved_bytes += change.moved_bytes
        if looked_at == count:
            break
    return kicked, looked_at


def release_taken_in_all(changes: Sequence[Change], count: int) -> int:
    """Release the first taken tasks. Return the number of keys read."""
    looked_at = 0
    for change in occupied(changes, lambda change: change.shape.keys.taken):
        looked_at += release_taken(change, change.shape.keys.taken, count - looked_at)
        if looked_at == count:
            break
    return looked_at


def remove_first_in_all(changes: Sequence[Change], count: int) -> int:
    """Remove the first tasks of each partition. Return their number."""
    removed = 0
    for change in occupied(changes, lambda change: change.shape.keys.tasks):
        removed += remove_first(change, count - removed)
        if removed == count:
            break
    return removed


def truncate_in_all(changes: Sequence[Change]) -> None:
    for change in changes:
        truncate(change)
    first = changes[0]
    first.shape.tell_of_room(first.tr)
    first.tr.clear_range(first.shape.shared.all_moved.start, first.shape.shared.all_moved.stop)
    for feature in (*first.shape.features, *map(feature_of_tasks, OF_TASKS)):
        for change in changes if feature.in_each_part else (first,):
            feature.cleared(change.site)


def free_keys(target: DatabaseOrTransaction, shape: Shape) -> None:
    """Given a database, give back the slots of keys that removed tasks have held.

    No sweep may come to do it.
    """
    if shape.limits is not None and not is_transaction(target):
        for _ in shape.limits.walk_out(target):
            pass


def pause_in_all(changes: Sequence[Change]) -> None:
    for change in changes:
        pause(change)


def resume_in_all(changes: Sequence[Change]) -> None:
    for change in changes:
        resume(change)
    changes[0].ring()


def occupied(changes: Sequence[Change], under: Callable[[Change], slice]) -> list[Change]:
    """The partitions with keys in that range, judged by one key of each, in one round trip."""
    if len(changes) == 1:
        return list(changes)
    ranges = [under(change) for change in changes]
    asked = [
        change.tr.snapshot.get_range(keys.start, keys.stop, limit=1)
        for change, keys in zip(changes, ranges, strict=True)
    ]
    changes[0].require_queue()  # asked with the first keys: no round trip of its own
    return [change for change, first in zip(changes, asked, strict=True) if first.to_list()]


def in_batches(step: Callable[[int], int]) -> Iterator[int]:
    """Repeat `step` with a number of tasks until it has found none, and yield the number that it found.

    Tasks with long keys, many groups and limits may have too many bytes for one transaction: then the number
    is halved. An error of a single task is raised.
    """
    count = limits.VERB_BATCH
    while True:
        try:
            found = step(count)
        except engine_errors() as error:
            if error.code != TRANSACTION_TOO_LARGE or count == 1:
                raise
            count //= 2
            continue
        if not found:
            return
        yield found


def kick_one(change: Change, target: Target) -> Task:
    record = _buried(change, target)
    # Before the edge: the task may join another partition.
    data = shown(change.shape.codec, ask_payload(change.tr, change.shape.keys, record))
    return task_of(edges.kick(change, [record])[0], data)


def edit(change: Change, target: Target, data: Any, payload: bytes, kick: bool) -> Task:
    """Store `payload` in place of that of the task, which may be unreadable; kick it as well, if told."""
    return task_of(edges.edit(change, _buried(change, target), payload, kick), data)


def _buried(change: Change, target: Target) -> Record:
    [record] = change.read([target.id])
    # Without its sweep: a buried task needs none, and a refusal writes nothing.
    current = None if record is None else as_of(record, change.now_us)
    if current is None:
        change.require_sound(target.id)
        raise TaskNotFound(id=id_text(target.id), name=change.shape.name)
    if current.state != TaskState.BURIED:
        raise NotBuried(id=id_text(target.id), state=TaskState(current.state).name.lower())
    return current


DATABASE_AWAY = "the database was away when its lease ended: this does not count"
NOT_RECEIVED = "its lease ended before a call had received it: this does not count"


def excuse(change: Change, id_: bytes, token: bytes | None, attempt: int) -> bool:
    """Take back the count of a lost lease, or end the lease uncounted. True if there was something to do."""
    asked = ask_entries(change.tr, change.shape.keys, id_)
    [record] = change.read([id_])
    if record is None:
        return False
    if record.state == TaskState.TAKEN and record.token == token:
        edges.release(change, [record])
        return True
    return _take_back(change, record, asked(), attempt, DATABASE_AWAY)


def forgive_missed(change: Change, id_: bytes, attempt: int) -> None:
    """As `excuse`, for the count of a lease that ended before its call collected the task."""
    asked = ask_entries(change.tr, change.shape.keys, id_)
    [record] = change.read([id_])
    if record is not None:
        _take_back(change, record, asked(), attempt, NOT_RECEIVED)


def undo_lost_take(change: Change, task: Task) -> None:
    """As `forgive_missed`. The take may not have committed; its lease may be over and still stored."""
    id_ = id_bytes(task.id)
    asked = ask_entries(change.tr, change.shape.keys, id_)
    [record] = change.read([id_])
    if record is not None and record.state == TaskState.TAKEN and record.token == task.token:
        edges.give_back(change, [record])
    elif record is not None:
        # Without its commit, another take may have the number of the attempt. That began at another time.
        _take_back(change, record, asked(), task.attempts, NOT_RECEIVED, task.taken)


def _take_back(
    change: Change,
    record: Record,
    entries: Sequence[Entry],
    attempt: int,
    why: str,
    began: float | None = None,
) -> bool:
    lost = counted_loss(record, entries, attempt)
    if lost is None or began not in (None, lost.failure.began):
        return False
    keys = change.shape.keys
    buried = buried_for(record, entries)
    if buried is not None:
        rewrite(change.tr, keys, record.id, buried, outcome=LEASE_LOST)
        if runs_on(change.tr, change.shape.root, buried.run):  # a row that has gone has nothing to take back
            change.end_for(buried.run, "buried", -1)
    rewrite(change.tr, keys, record.id, lost, outcome=EXCUSED, message=why)
    edges.excuse(change, record, excused(record, entries, lost))
    return True


def counted_loss(record: Record, entries: Sequence[Entry], attempt: int) -> Entry | None:
    """The entry of the lost lease of that attempt, if it still counts."""
    return next(
        (
            entry
            for entry in entries
            if entry.number > record.forgiven
            and entry.failure.attempt == attempt
            and entry.failure.outcome in (LEASE_LOST, EXHAUSTED)
        ),
        None,
    )


def excused(record: Record, entries: Sequence[Entry], lost: Entry) -> Record:
    """The task as if `lost` had not been counted. If it was buried for that, it is ready again."""
    # A verb of a holder ends the series of lost leases.
    row_ended = any(entry.number > lost.number and entry.failure.outcome == RETRIED for entry in entries)
    right = replace(
        record,
        excused=record.excused + 1,
        orphaned=record.orphaned if row_ended else max(0, record.orphaned - 1),
    )
    return right if buried_for(record, entries) is None else edges.freed(right)


def buried_for(record: Record, entries: Sequence[Entry]) -> Entry | None:
    """The last lost lease of a task that was buried for too many failures."""
    if record.state != TaskState.BURIED:
        return None
    return next(
        (entry for entry in entries if entry.number > record.forgiven and entry.failure.outcome == EXHAUSTED),
        None,
    )


def cancel(change: Change, id_: bytes) -> Task:
    """End the task, or mark it if it is taken."""
    target = Target(id_)
    record = present(change, target)
    return done(change, target, record, lambda: edges.cancel_any(change, record))
