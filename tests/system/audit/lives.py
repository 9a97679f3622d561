"""The legal steps of a task, from the record before a commit to the record after it.

A transaction may make several steps of one task: a take sweeps first, and a transaction of a caller may have
several calls. So each rule holds for one step and for several.
"""

from collections.abc import Callable, Collection, Iterator

from fdbqueue.core.task import TaskState
from fdbqueue.tasks.stored.records import NEVER_US, Record, id_text
from tests.system.audit.model import TaskStep

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
            yield from _told(record, _born(record))
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
        or bool(record.token) != is_taken
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


def _born(record: Record) -> Iterator[str]:
    if record.failures != record.forgiven + record.excused and not record.attempts:
        yield "is new, and has failures that count"
    if record.state == TaskState.DELAYED and record.until_us <= record.created_us:
        yield "is delayed to a time before its put"


def _is_overwritten(before: Record, step: TaskStep) -> bool:
    """True if a later put with the unique key of the task may have changed it."""
    return bool(step.calls["other"] and before.extra and before.extra.unique)


def _is_started(before: Record, after: Record) -> bool:
    """True if the task has waited for a group, and waits no more (the workload of groups judges the time)."""
    return bool(before.extra and before.extra.waits and not (after.extra and after.extra.waits))


def keeps_its_put(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    was_buried = before.state == after.state == TaskState.BURIED
    free: Collection[str] = _PAYLOAD if was_buried else ()
    if _is_overwritten(before, step):
        free = _OVERWRITTEN
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
    if _is_overwritten(before, step) or _is_started(before, after):
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
    if after.state != TaskState.TAKEN or before.token == after.token:
        return
    if after.until_us not in (min(after.taken_us + after.ttr_us, NEVER_US), after.expires_us):
        yield "has a lease of another length than its ttr"
    if after.taken_us > step.commit.now_us + SLACK_US:
        yield f"was taken in the future of {step.commit.now_us}"


def expires_later(before: Record, after: Record, step: TaskStep) -> Iterator[str]:
    """The end of a ttl moves with a touch, and with a release by its delay."""
    added_us = after.expires_us - before.expires_us
    if _is_overwritten(before, step) or _is_started(before, after):
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
    expires_later,
    forgiven_by_a_kick,
    ends_the_row,
)
