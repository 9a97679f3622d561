"""Pauses: a commit behind that of a pause takes no task, until a resume.

A transaction that pauses the queue itself may have taken before, and one that resumes it may take afterwards.
"""

from collections.abc import Iterator

from fdbqueue.tasks.stored.records import TaskKeys, id_text
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import TaskStep, is_taken


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
