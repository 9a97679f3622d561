"""Steps of an attempt: a step that is done is not run again by a later attempt at its task.

The result of a step is stored under the lease of the attempt. Given a transaction, the step runs in it, so
its effect and its result are committed together.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.errors import PayloadTooLarge, PayloadUnreadable, StepUnderWay, TaskNotFound, TooManySteps
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import TaskCalls
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import Encode
from fdbqueue.tasks.records.keys import Extra, Record, id_text
from fdbqueue.tasks.steps import Step, has_steps, step_of, to_bytes
from fdbqueue.tasks.verbs import Target, held

Running = tuple[bytes, bytes | None, bytes, str]
"""A step that runs now: its task, token and session, and its name."""


@contextmanager
def only(calls: TaskCalls, target: Target, name: str) -> Iterator[None]:
    """Run no step twice under one lease.

    Raises StepUnderWay if that step runs already, in another thread or around this call.
    """
    key = (target.id, target.token, target.session, name)
    with calls.steps_lock:
        if key in calls.steps:
            raise _under_way(calls.shape.name, target, name)
        calls.steps.add(key)
    try:
        yield
    finally:
        with calls.steps_lock:
            calls.steps.discard(key)


def find(change: Change, target: Target, name: str) -> Step | None:
    """The stored step of a held task; None if it is not done.

    Reads: the task and the step, serialisably.
    Conflicts: a change of the task.
    Raises: NotTaken, PayloadUnreadable.
    """
    asked = change.tr.get(change.shape.keys.step(target.id, name))
    held(change, target)
    if not asked.present():
        return None
    try:
        return step_of(asked.value)
    except DAMAGED as error:
        raise PayloadUnreadable(codec="any", reason=f"the step {name!r} cannot be read") from error


def store(change: Change, target: Target, name: str, encode: Encode | None) -> None:
    """Store the result of a step of a held task; `encode` is None for the result None.

    Reads: the task and the step, serialisably.
    Writes: the task, the step.
    Conflicts: a change of the task.
    Raises: NotTaken; StepUnderWay if it is there already; TooManySteps, PayloadTooLarge, PayloadUnsupported.
    """
    key = change.shape.keys.step(target.id, name)
    asked = change.tr.get(key)
    record = held(change, target)
    if asked.present():
        raise _under_way(change.shape.name, target, name)
    payload = None if encode is None else encode()
    if payload is not None and len(payload) > limits.STEP_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.STEP_BYTES_MAX)
    value = to_bytes(Step(payload))
    extra = _with_step(change, record, name, len(value) + len(name.encode()))
    change.tr.set(key, value)
    edges.step(change, record, extra)


def names(change: Change, id_: bytes) -> list[str]:
    """The names of the steps of a task that are done, sorted.

    Reads: the task, serialisably; its steps by snapshot.
    Conflicts: a change of the task.
    Raises: TaskNotFound, RecordUnreadable.
    """
    [record] = change.read([id_])
    if record is None:
        change.require_sound(id_)
        raise TaskNotFound(id=id_text(id_), name=change.shape.name)
    if not has_steps(record):
        return []
    under = change.shape.keys.steps_of(id_)
    rows = change.tr.snapshot.get_range(under.start, under.stop)
    return sorted(change.shape.keys.step_name(row.key) for row in rows)


def _with_step(change: Change, record: Record, name: str, size_bytes: int) -> Extra:
    """The extra parts of the record, with one step more. Raises TooManySteps."""
    extra = record.extra or Extra()
    steps, total = extra.steps + 1, extra.steps_bytes + size_bytes
    if steps > limits.STEPS_MAX or total > limits.STEPS_BYTES_MAX:
        raise TooManySteps(
            id=id_text(record.id),
            name=change.shape.name,
            step=name,
            steps_max=limits.STEPS_MAX,
            bytes_max=limits.STEPS_BYTES_MAX,
        )
    return extra.with_steps(steps, total)


def _under_way(queue: str, target: Target, name: str) -> StepUnderWay:
    return StepUnderWay(id=id_text(target.id), name=queue, step=name)
