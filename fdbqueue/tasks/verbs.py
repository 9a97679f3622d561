"""The verbs of task queues, each in one transaction: check the right to an edge, and take it (edges.py)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from fdbqueue import tasks as late
from fdbqueue.core.errors import NotTaken, RecordUnreadable, TaskNotFound
from fdbqueue.core.sessions.ending import run_of, runs_on
from fdbqueue.core.task import TAKEN, Failure, Renewed, Task, TaskState
from fdbqueue.core.unreadable import Unreadable, shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import EXHAUSTED, LEASE_LOST, ask_entries, ask_failures, rewrite
from fdbqueue.tasks.feature import REMOVED, Encode
from fdbqueue.tasks.mending import NO_RECORD
from fdbqueue.tasks.payloads import ask_payload, seconds_or_never, task_of
from fdbqueue.tasks.records.keys import NEVER_US, Record, id_in, id_text, sound_record
from fdbqueue.tasks.sweep import apply, as_of, catch_up, plan

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


def release(change: Change, target: Target, delay_us: int, failure: Failure | None) -> Task:
    """Make a held task ready, or delayed."""
    record = held(change, target)
    snoozed = failure is None
    return done(change, target, record, lambda: edges.release(change, [record], delay_us, failure, snoozed))


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
    ready = {record.id for record in edges.give_back(change, _still_held(change, targets))}
    return [target.id in ready for target in targets]


def renew(change: Change, targets: Sequence[Target]) -> list[Held | None]:
    """Lease the held tasks for a whole ttr from now. Return the lease of each; None if it is not held."""
    held = _still_held(change, targets)
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


def release_taken(change: Change, under: slice, count: int, died: bool = False) -> int:
    """Release the first taken tasks that have their keys in the range `under`. Return the number of keys
    read.

    If the holder `died`, the attempts have failed, except those of tasks that no caller has received.
    Reads: the keys and the deliveries of the line by snapshot, the tasks serialisably.
    Conflicts: a change of the tasks.
    """
    is_uncollected = late.uncollected.ask_uncollected(change.tr, change.shape)
    looked_at, found = _swept(change, under, count)
    forsaken, kept = list[Record](), list[Record]()
    for task in in_state(found, TaskState.TAKEN):
        (forsaken if died and not is_uncollected(task) else kept).append(task)
    edges.forsake(change, forsaken)
    edges.release(change, kept)
    return looked_at


def truncate(change: Change) -> None:
    """Remove every task. Writes: clears their range. Conflicts: every call on a task of the queue."""
    change.require_queue()
    keys = change.shape.keys
    for under in (keys.contents, keys.failures, keys.classed, keys.class_counts, keys.all_steps):
        change.tr.clear_range(under.start, under.stop)
    change.tr.clear(keys.live)
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


def _still_held(change: Change, targets: Sequence[Target]) -> list[Record]:
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
    apply(change, plan(records, change.now_us))
    return [record if record.timer_us > change.now_us else edges.freed(record) for record in records]


def in_state(records: Sequence[Record], state: TaskState) -> list[Record]:
    return [record for record in records if record.state == state]
