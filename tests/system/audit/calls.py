"""Calls: the counters of a queue grow by the calls of the commit, and these are the steps of its tasks.

A transaction of a caller may put a task and end it, or bury it and kick it. Only the calls tell of such a
task.
"""

from collections.abc import Iterator

from fdbqueue.core.line.decision import Delivery
from fdbqueue.core.partitions import FLAG, SharedKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import TaskKeys
from tests.system.audit.commit import Step
from tests.system.audit.line import LineStep
from tests.system.audit.model import TaskStep, is_taken

READY, TAKEN, DELAYED, BURIED = TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED


def counted(step: TaskStep, line: LineStep) -> Iterator[str]:
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
