"""Leases that the line has delivered: a call that collects its tasks gets live leases, or gives them back."""

from collections.abc import Iterator

from fdbqueue.core.line.decision import Delivery
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import NUMBER, SESSION_BYTES, Record, id_text
from tests.system.audit.line import LineStep
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import TaskStep


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
