"""The legal steps of a task, the calls that count them, and the order of takes (docs/tests.md).

A transaction may make several steps of one task: a take sweeps first, and a transaction of a caller may have
several calls. So each rule holds for one step and for several. The calls alone tell of a task that is put and
ended at once. The order is a model, apart from fdbqueue/tasks/disciplines.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from fdbqueue.core.line.decision import Delivery, LineKeys
from fdbqueue.core.partitions import FLAG, SharedKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.failures import NOT_COMPLETED
from fdbqueue.tasks.limits.lanes import keyed_limit, limits_named
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.discipline import Bag
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import (
    HANDED_OFF,
    NEVER_US,
    NUMBER,
    SESSION_BYTES,
    Record,
    TaskKeys,
    id_text,
)
from tests.system.audit.line import LineStep, Liveness, Requests
from tests.system.audit.model import Mirror, Step, TaskStep, is_taken

SLACK_US = 2
"""Times are rounded to microseconds."""
_FIXED = ("id", "pri", "created_us", "size_bytes", "payload", "key", "cost", "trace")
"""Fields of a task that no call changes, except for the payload of a buried one."""
_PAYLOAD = ("size_bytes", "payload")
_OVERWRITTEN = (*_PAYLOAD, "trace")

Rule = Callable[[Record, Record, TaskStep], Iterator[str]]


class Lives:
    """The lives of all tasks of one queue."""

    def __init__(self) -> None:
        self._ended: set[bytes] = set()
        self._tokens: dict[bytes, int] = {}
        """The commit that has taken tasks under each token."""

    def judge(self, step: TaskStep) -> Iterator[str]:
        for record in step.written():
            yield from _told(record, _whole(record))
        for record in step.created():
            yield from _told(record, _born(record, is_moved=step.commit.verb.startswith("move ")))
            if record.id in self._ended:
                yield f"the task {id_text(record.id)} has ended, and is there again"
        for before, after in step.changed():
            for rule in _RULES:
                yield from _told(after, rule(before, after, step))
        yield from self._token_twice(step)
        self._ended.update(record.id for record in step.removed())

    def _token_twice(self, step: TaskStep) -> Iterator[str]:
        for before, after in step.moves.values():
            if after is None or after.state != TaskState.TAKEN or (before and before.token == after.token):
                continue
            if after.session == HANDED_OFF:
                continue
            first = self._tokens.setdefault(after.token, step.commit.version)
            if first != step.commit.version:
                yield f"the task {id_text(after.id)} is taken by a token of the commit {first}"


def _told(record: Record, errors: Iterator[str]) -> Iterator[str]:
    return (f"the task {id_text(record.id)} {error}: {record}" for error in errors)


def _whole(record: Record) -> Iterator[str]:
    """Check one record by itself."""
    is_taken = record.state == TaskState.TAKEN
    if (
        bool(record.session) != is_taken
        or bool(record.token) != (is_taken and record.session != HANDED_OFF)
        or bool(record.taken_us) != is_taken
    ):
        yield "has a lease, and is not taken, or is taken without a lease"
    if not is_taken and (record.cancelled_us or record.fraction is not None or record.told_us):
        yield "has a cancel or a progress, and is not taken"
    if record.state in (TaskState.READY, TaskState.BURIED) and record.until_us != NEVER_US:
        yield "has an end of a delay or lease, and no delay and no lease"
    if record.failures_counted < 0 or record.orphaned > record.attempts:
        yield "has fewer failures than were forgiven, or more lost leases than attempts"
    if record.state == TaskState.BURIED and record.error is None:
        yield "is buried without a class of failure"


def _born(record: Record, *, is_moved: bool) -> Iterator[str]:
    """A task that `TaskQueue.change` has moved keeps failures that count, and begins with no attempt."""
    if record.failures != record.forgiven + record.excused and not (record.attempts or is_moved):
        yield "is new, and has failures that count"
    if record.state == TaskState.DELAYED and record.until_us <= record.created_us:
        yield "is delayed to a time before its put"


def _is_overwritten(before: Record, step: TaskStep) -> bool:
    """True if a later put with the unique key of the task may have changed it."""
    return bool(step.calls["other"] and before.extra and before.extra.unique)


def _is_changed(before: Record, after: Record, step: TaskStep) -> bool:
    """True if `TaskQueue.change` may have given a waiting task other options."""
    return bool(step.calls["other"] and TaskState.TAKEN not in (before.state, after.state))


def _is_started(before: Record, after: Record) -> bool:
    """True if the task has waited for a group, and waits no more (the workload of groups judges the time)."""
    return bool(before.extra and before.extra.waits and not (after.extra and after.extra.waits))


def keeps_its_put(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    was_buried = before.state == after.state == TaskState.BURIED
    free: Collection[str] = _PAYLOAD if was_buried else ()
    if _is_overwritten(before, step):
        free = _OVERWRITTEN
    if _is_changed(before, after, step):
        free = (*free, "pri")
    for name in _FIXED:
        if getattr(before, name) != getattr(after, name) and name not in free:
            yield f"had another {name}: {getattr(before, name)!r}"


def failures_grow(before: Record, after: Record, _: TaskStep) -> Iterator[str]:
    for name in ("failures", "forgiven"):
        if getattr(after, name) < getattr(before, name):
            yield f"had more {name}: {getattr(before, name)}"
    ended = after.attempts - before.attempts + (before.state == TaskState.TAKEN)
    if after.failures - before.failures > max(ended, before.state == TaskState.TAKEN):
        yield f"has failed more often than it was taken, from {before}"


def attempts_count_takes(before: Record, after: Record, _: TaskStep) -> Iterator[str]:
    same_lease = before.token == after.token
    if before.state == after.state == TaskState.TAKEN and same_lease and after.attempts != before.attempts:
        yield f"had another number of attempts under the same lease: {before.attempts}"
    if after.attempts < before.attempts - (before.state == TaskState.TAKEN):
        yield f"had more attempts: {before.attempts}"
    is_taken_anew = after.state == TaskState.TAKEN and not same_lease
    if is_taken_anew and before.state != TaskState.TAKEN and after.attempts <= before.attempts:
        yield "was taken, and has no attempt more"


def stays_cancelled(before: Record, after: Record, _: TaskStep) -> Iterator[str]:
    if before.cancelled_us and (not after.cancelled_us or after.token != before.token):
        yield f"was cancelled, and goes on: {before}"


def waits_for_its_time(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """A delay ends at its time, by the clock of the process that ends it, or by a burial."""
    ends = before.state == TaskState.DELAYED and after.state in (TaskState.READY, TaskState.TAKEN)
    if any((_is_overwritten(before, step), _is_changed(before, after, step), _is_started(before, after))):
        return
    if ends and not step.calls["kick"] and before.until_us > step.commit.now_us + SLACK_US:
        yield f"was delayed until {before.until_us}, and it is {step.commit.now_us}"


def renewed_in_time(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """The same lease goes on only if it was not over. A renewal stores the time of its own clock."""
    if before.state != after.state or before.state != TaskState.TAKEN or before.token != after.token:
        return
    if (before.session, before.taken_us) != (after.session, after.taken_us):
        yield f"had another session under the same lease: {before}"
    now_us = after.until_us - after.ttr_us
    was_renewed = after.until_us not in (before.until_us, after.expires_us) and after.ttr_us == before.ttr_us
    if was_renewed and now_us >= before.until_us + SLACK_US:
        yield f"was renewed at {now_us}, and its lease was over at {before.until_us}"
    if was_renewed and now_us > step.commit.now_us + SLACK_US:
        yield f"was renewed at {now_us}, in the future of {step.commit.now_us}"
    added_us = after.ttr_us - before.ttr_us
    if added_us < 0 or (added_us and after.until_us not in (before.until_us + added_us, NEVER_US)):
        yield f"was touched, and its lease not: {before}"


def lapses_in_time(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """A sweep ends a lease that is over. The end of a session releases those that go on, and counts that."""
    was_lost = before.state == TaskState.TAKEN and after.orphaned > before.orphaned
    if was_lost and not step.calls["release"] and before.until_us > step.commit.now_us + SLACK_US:
        yield f"has lost a lease that lasts until {before.until_us}, and it is {step.commit.now_us}"


def leased_for_its_ttr(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """A new lease begins at its take, by the clock of the taker, and ends after the ttr or with the ttl."""
    if after.state != TaskState.TAKEN or before.token == after.token or after.session == HANDED_OFF:
        return
    if after.until_us not in (min(after.taken_us + after.ttr_us, NEVER_US), after.expires_us):
        yield "has a lease of another length than its ttr"
    if after.taken_us > step.commit.now_us + SLACK_US:
        yield f"was taken in the future of {step.commit.now_us}"


def handed_off_by_its_holder(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """A hand-off is a part of an attempt. Nothing moves its time, and a sweep ends it then."""
    was, is_now = (one.state == TaskState.TAKEN and one.session == HANDED_OFF for one in (before, after))
    if before.attempts == after.attempts and after.state == TaskState.TAKEN:
        if was and (not is_now or after.until_us != before.until_us):
            yield f"was handed off, and has another lease in that attempt: {before}"
        if is_now and before.state != TaskState.TAKEN:
            yield f"is handed off, and was not taken: {before}"
    is_over = was and after.error == NOT_COMPLETED and after.failures > before.failures
    if is_over and before.until_us > step.commit.now_us + SLACK_US:
        yield f"was handed off until {before.until_us}, and it is {step.commit.now_us}"


def expires_later(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """The end of a ttl moves with a touch, and with a release by its delay."""
    added_us = after.expires_us - before.expires_us
    if any((_is_overwritten(before, step), _is_changed(before, after, step), _is_started(before, after))):
        return
    if before.state != TaskState.TAKEN and added_us and not step.calls["take"]:
        yield f"had another end of its ttl: {before.expires_us}"
    if before.state != TaskState.TAKEN or before.expires_us == NEVER_US:
        return
    if added_us < 0:
        yield f"has lost a part of its ttl, which ended at {before.expires_us}"
    if after.state == TaskState.DELAYED and after.until_us - added_us > step.commit.now_us + SLACK_US:
        yield f"was released with a delay, which its ttl has not got: {before.expires_us}"


def forgiven_by_a_kick(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """A kick forgives the failures and the lost leases so far. An excuse may do less."""
    if before.state != TaskState.BURIED or after.state != TaskState.READY or after.excused > before.excused:
        return
    if (after.forgiven, after.excused, after.orphaned) != (before.failures, 0, 0):
        yield f"was kicked, and its failures count: {before}"
    if not step.calls["kick"]:
        yield "was buried, and is ready without a kick"


def ends_the_row(before: Record, after: Record, _: TaskStep) -> Iterator[str]:
    """A failure that the holder reports ends the row of lost leases."""
    has_failed = after.failures > before.failures and after.excused == before.excused
    is_back = before.state == TaskState.TAKEN and after.state in (TaskState.READY, TaskState.DELAYED)
    if is_back and has_failed and 0 < after.orphaned <= before.orphaned:
        yield f"has failed, and its {after.orphaned} lost leases before that still count in a row"


_RULES: tuple[Rule, ...] = (
    keeps_its_put,
    failures_grow,
    attempts_count_takes,
    stays_cancelled,
    waits_for_its_time,
    renewed_in_time,
    lapses_in_time,
    leased_for_its_ttr,
    handed_off_by_its_holder,
    expires_later,
    forgiven_by_a_kick,
    ends_the_row,
)


Place = tuple[int, bytes]
_FIRST: Place = (-1, b"")


@dataclass
class Order:
    shape: Shape
    registered: bool
    overtake: Callable[[], int] = lambda: 0
    """The number of older tasks that a take may leave behind, where arrival decides the order."""
    _there_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which each task came."""
    _ready_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which each ready task became ready."""
    _key_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which a task of each task key has changed last."""

    def judge(self, step: TaskStep, line: LineStep, requests: Requests) -> Iterator[str]:
        taken, seen = self._taken(step), step.commit.read_version
        yield from self.put_behind(step, requests, seen or 0)
        if taken and seen is not None:
            if self._is_keyed:
                yield from self.overtaken_in_key(step, taken, seen)
            passed = self._passed(step, taken, seen)
            overtaken = self.overtake() if self.shape.may_overtake else 0
            last = max(map(self.place, taken))
            shares = requests.items_asked_at(seen) - min(line.served, len(taken))
            urgent = sum(pri < last[0] for pri, _ in passed)
            if len(passed) > shares + overtaken or urgent > max(0, shares):
                yield f"the task {id_text(last[1])} is taken before the task {id_text(min(passed)[1])}"
        self._note(step)

    def put_behind(self, step: TaskStep, requests: Requests, seen: int) -> Iterator[str]:
        """A new task stands behind all tasks that its put has seen, except for those that end with it, and
        behind the items of a FairQueue that lie ready for requests. An item that comes back keeps its place.
        """
        created = [record.id for record in step.created() if record.id not in requests.laid]
        if created:
            known = [id_ for id_, since in self._there_since.items() if since <= seen and id_ in step.after]
            if not self.registered:
                known += [id_ for id_, since in requests.laid.items() if since <= seen]
            last, first = max(known, default=b""), min(created)
            if first < last:
                yield f"the task {id_text(first)} is put before the task {id_text(last)}"

    @property
    def _is_keyed(self) -> bool:
        return isinstance(self.shape.discipline, Keyed)

    def place(self, record: Record) -> Place:
        return (record.pri if self.shape.kind.supports("pri") else 0), record.id

    def _taken(self, step: TaskStep) -> list[Record]:
        """The tasks that were ready, and that the commit has taken. Items of a FairQueue are gone then."""
        moves = ((before, after) for before, after in step.moves.values() if before is not None)
        return [
            before
            for before, after in moves
            if before.state == TaskState.READY
            and (
                after is None if not self.registered else after is not None and after.state == TaskState.TAKEN
            )
        ]

    def _waiting(self, step: TaskStep) -> Iterator[Record]:
        """The tasks that were ready, and still are, and have not expired; none that the commit gave back."""
        for record in step.after.values():
            is_there = record.state == TaskState.READY and record.expires_us > step.commit.now_us
            is_touched = record.id in step.moves or record.id in step.kept
            if is_there and record.id in self._ready_since and not is_touched:
                yield record

    def overtaken_in_key(self, step: TaskStep, taken: Sequence[Record], seen: int) -> Iterator[str]:
        """A task of a put that overlaps the take may stand before the second task that the take has seen."""
        last: dict[bytes, Place] = {}
        for record in taken:
            last[record.key] = max(self.place(record), last.get(record.key, (0, b"")))
        for record in self._waiting(step):
            is_known = self._there_since.get(record.id, seen) <= seen
            if is_known and record.key in last and self.place(record) < last[record.key]:
                overtook = id_text(last[record.key][1])
                yield f"the task {overtook} is taken before {id_text(record.id)} of the same task key"

    def _passed(self, step: TaskStep, taken: Sequence[Record], seen: int) -> list[Place]:
        """The places of the tasks that a take at the version `seen` must not have passed over."""
        if self.shape.kind.supports("cost"):
            return []  # the order of its task keys is that of their rounds
        if isinstance(self.shape.discipline, Bag):
            return []  # any task may be next
        waiting = [record for record in self._waiting(step) if self._ready_since[record.id] <= seen]
        if self._is_keyed:
            waiting = [record for record in waiting if self._is_open_head(step, record, seen)]
        return [
            self.place(record)
            for record in waiting
            if self.place(record) < max(map(self.place, _beside(record, taken)), default=_FIRST)
        ]

    def _is_open_head(self, step: TaskStep, record: Record, seen: int) -> bool:
        """True if the task was the first of a task key that was open, at `seen` and ever since.

        A transaction may end a lease after its take: it has opened the key then.
        """
        changed = {task.key for task in step.records()}
        if record.key in changed or self._key_since[record.key] > seen:
            return False
        others = [other for other in step.after.values() if other.key == record.key]
        taken = sum(other.state == TaskState.TAKEN for other in others)
        ready = (self.place(other) for other in others if other.state == TaskState.READY)
        settings = self.shape.settings
        if settings.settling is not None:  # it may have no pointer yet
            return False
        return taken < settings.key_concurrency and min(ready) == self.place(record)

    def _note(self, step: TaskStep) -> None:
        for id_, (before, after) in step.moves.items():
            if after is None:
                self._there_since.pop(id_, None)
            elif before is None:
                self._there_since[id_] = step.commit.version
            if after is None or after.state != TaskState.READY:
                self._ready_since.pop(id_, None)
            elif before is None or before.state != TaskState.READY or before.pri != after.pri:
                self._ready_since[id_] = step.commit.version
            for record in (before, after):
                if record is not None:
                    self._key_since[record.key] = step.commit.version


def _beside(record: Record, taken: Sequence[Record]) -> Sequence[Record]:
    """The taken tasks that `record` comes before, if its place is better.

    A task that names limits may be over one of them: then only tasks that name the same ones, with the same
    keys, wait for it.
    """
    named = _named(record)
    return [one for one in taken if _named(one) == named] if named[0] else taken


def _named(record: Record) -> tuple[Sequence[str], object]:
    return limits_named(record), keyed_limit(record)


def within_capacity(shape: Shape, step: TaskStep) -> Iterator[str]:
    capacity = shape.settings.capacity
    if capacity and step.created() and len(step.after) > capacity:
        yield f"{len(step.after)} tasks are in a queue for {capacity}"


def within_concurrency(shape: Shape, step: TaskStep) -> Iterator[str]:
    """Check the task keys of the tasks that the commit has taken."""
    if not shape.kind.supports("key_concurrency"):
        return
    most = shape.settings.key_concurrency
    keys = {
        after.key
        for before, after in step.moves.values()
        if after is not None and is_taken(after) and not is_taken(before)
    }
    for key in keys:
        taken = sum(is_taken(record) and record.key == key for record in step.after.values())
        if taken > most:
            yield f"{taken} tasks of the task key {key!r} are taken, and {most} may be"


def taken_in_a_pause(keys: TaskKeys, step: TaskStep, mirror: Mirror) -> Iterator[str]:
    """`keys`: those of the whole queue; a pause is of all partitions."""
    changed = step.changes.changes.get(keys.paused)
    before, after = changed or (mirror.value(keys.paused),) * 2
    if before is None or after is None:
        return
    for id_, (old, new) in step.moves.items():
        goes_on = old is not None and new is not None and old.token == new.token
        if is_taken(new) and not goes_on:
            yield f"the task {id_text(id_)} is taken, and the queue is paused"


def delivered(shape: Shape, step: TaskStep, line: LineStep, mirror: Mirror) -> Iterator[str]:
    for handed in line.laid:
        for item in handed.items:
            if _held(step, item) is None:
                yield f"the task {id_text(item.id)} is delivered without a lease"
    for handed in line.collected:
        for item in handed.items:
            record = _held(step, item)
            if record is None:
                continue
            told = f"the task {id_text(record.id)} is collected"
            if not handed.by_owner:
                yield f"the task {id_text(record.id)} is returned for {handed.owner}, and is taken still"
            elif record.cancelled_us:
                yield f"{told}, and was cancelled"
            elif mirror.value(shape.root.session(record.session)) is None:
                yield f"{told}, and its session has ended"


def _held(step: TaskStep, item: Delivery) -> Record | None:
    """The task, if it still has the lease of the delivery."""
    record = step.after.get(item.id)
    params = item.value[: -NUMBER.size]
    if record is None or record.state != TaskState.TAKEN:
        return None
    return (
        record if (record.session, record.token) == (params[:SESSION_BYTES], params[SESSION_BYTES:]) else None
    )


READY, TAKEN, DELAYED, BURIED = TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED


def calls_counted(step: TaskStep, line: LineStep) -> Iterator[str]:
    calls, removed = step.calls, len(step.removed())
    passing = calls["put"] - len(step.created())
    """Tasks that the commit has put and ended."""
    if passing < 0:
        yield f"{len(step.created())} new tasks, and {calls['put']} puts are counted"
    if calls["done"] != calls["ack"] + calls["delete"] + calls["cancel"]:
        yield f"the ends of tasks are counted in two ways: {dict(calls)}"
    if calls["done"] > removed + passing or (calls["done"] < removed + passing and not calls["other"]):
        yield f"{removed} tasks have ended, and {calls['done']} are counted: {dict(calls)}"
    takes = sum(after.attempts - before.attempts for before, after in step.changed())
    takes += sum(record.attempts for record in step.created())
    undone = undone_with_their_tasks(step, line)
    missed = missed_on_their_way(step, line)
    takes, removed = takes - undone - missed, removed - undone
    if not -removed <= calls["take"] - takes <= removed + passing:
        yield f"{takes} takes, and {calls['take']} are counted"
    if not step.removed() and not passing:
        yield from _of_survivors(step, calls["take"] + missed)


def _of_survivors(step: TaskStep, takes: int) -> Iterator[str]:
    calls = step.calls
    moves = [(before.state, after.state) for before, after in step.changed()]
    buried = sum((after == BURIED) - (before == BURIED) for before, after in moves)
    if calls["bury"] - calls["kick"] != buried:
        yield f"{buried} more tasks are buried, and {calls['bury']} burials and {calls['kick']} kicks counted"
    if calls["bury"] or calls["kick"]:
        return
    due = sum(before == DELAYED and after != DELAYED for before, after in moves)
    if due > calls["delay"]:
        yield f"{due} delays are over, and {calls['delay']} are counted"
    if not any(record.state == TAKEN for record in step.written()):
        # A lease may also have ended before a take of this commit, whose lease has ended, too.
        freed = sum(
            is_taken(before) and after.attempts >= before.attempts for before, after in step.changed()
        )
        if freed != calls["release"] + calls["ttr"] - takes - given_back(step):
            yield f"{freed} leases have ended, and counted are {dict(calls)}"


def undone_with_their_tasks(step: TaskStep, line: LineStep) -> int:
    """The number of undone takes of tasks that were cancelled on their way to a request, and ended.

    A lease that was over may have ended in a sweep, which undoes no take.
    """
    delivered = {item.id: item.value for handed in line.collected for item in handed.items}
    return sum(
        delivered.get(record.id, b"").startswith(record.session + record.token)
        for record in step.removed()
        if is_taken(record) and record.cancelled_us and record.until_us > step.commit.now_us
    )


def missed_on_their_way(step: TaskStep, line: LineStep) -> int:
    """The number of collected tasks with a lease that had ended: no caller received their takes."""
    return sum(_is_missed(step, item) for handed in line.collected for item in handed.items)


def _is_missed(step: TaskStep, item: Delivery) -> bool:
    after = step.after.get(item.id)
    before, after = step.moves.get(item.id, (after, after))
    if before is None or not is_taken(before) or not item.value.startswith(before.session + before.token):
        return True
    # A sweep of this commit has ended the lease, and noted a failure.
    return after is not None and after.failures > before.failures


def given_back(step: TaskStep) -> int:
    """The number of takes that the commit has undone."""
    return sum(is_taken(before) and after.attempts < before.attempts for before, after in step.changed())


def bell_rung(keys: TaskKeys, shared: SharedKeys, step: Step) -> Iterator[str]:
    """In a queue with partitions: a flag that is raised rings the bell, and so does the end of a pause.

    The doorbell of a partition tells of each task that can be taken, and no take waits for it.
    """
    if shared.bell in step.changes:
        return
    for key, values in step.changes.items():
        if shared.column_of(key) == FLAG and values.after is not None:
            yield f"the bell is not rung, though the partition {shared.flagged(key)} has a flag now"
    if keys.paused in step.changes and step.changes[keys.paused].after is None:
        yield "the bell is not rung, though the queue goes on"


def rung(keys: TaskKeys, doorbell: bytes, step: TaskStep) -> Iterator[str]:
    """A task that can be taken rings the doorbell, and so does a delay that ends before all other times."""
    if doorbell in step.changes.changes:
        return
    for key, values in step.changes.changes.items():
        column, _ = keys.parts_of(key)
        if column == records.READY and values.before is None:
            yield f"the doorbell is not rung, though a task can be taken (key {key.hex()})"
        if column == records.PAUSED and values.after is None:
            yield "the doorbell is not rung, though the queue goes on"


@dataclass
class History:
    liveness: Liveness
    lives: Lives = field(default_factory=Lives)
    """The lives of its tasks."""
    high: int = 1
    """The largest number of partitions that it has had."""
    came_in: dict[bytes, int] = field(default_factory=dict)
    """Of a queue with partitions, the version in which each stored task came."""
    _lines: dict[bytes, Requests] = field(default_factory=dict)

    def requests(self, line: bytes) -> Requests:
        found = self._lines.get(line)
        if found is None:
            found = self._lines[line] = Requests(LineKeys(line), self.liveness)
        return found
