"""Bounds: a queue never exceeds its capacity, and no task key its number of taken tasks (I5)."""

from collections.abc import Iterator

from fdbqueue.tasks.shape import Shape
from tests.system.audit.model import TaskStep, is_taken


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
