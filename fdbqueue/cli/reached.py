"""The limits for which ready tasks wait, as the progress of a fleet tells them."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict

from fdbqueue.cli.show import Row
from fdbqueue.errors import RecordUnreadable, TaskNotFound
from fdbqueue.explanation import Explanation, Why
from fdbqueue.seam import Transaction
from fdbqueue.task import TaskState
from fdbqueue.tasks.queue import TaskQueue


def explained(tr: Transaction, queues: Iterable[TaskQueue]) -> list[Explanation]:
    """Explain the first ready task of each queue, if it waits for a limit.

    A queue without limits costs no read.
    """
    return [found for queue in queues if (found := _explained(tr, queue)) is not None and found.reached]


def _explained(tr: Transaction, queue: TaskQueue) -> Explanation | None:
    options = queue.options
    if options.get("limits") or options.get("task_limits"):
        for task in queue.tasks(tr, TaskState.READY, 1):
            with suppress(TaskNotFound, RecordUnreadable):  # a task whose ttl is over, or a damaged one
                return queue.explain(tr, task)
    return None


def told(found: Explanation) -> str:
    reasons = [reason for reason in found.reasons if reason.why is Why.LIMIT_REACHED]
    texts = (f"{reason.text[0].lower()}{reason.text[1:]} {reason.cure}" for reason in reasons)
    return f"{found.queue!r} waits: {' '.join(texts)}"


def reached_rows(found: Explanation) -> list[Row]:
    return [{"queue": found.queue, **asdict(limit)} for limit in found.reached]
