"""Paused queues, and the limits for which ready tasks wait, as the progress of a fleet tells them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import NamedTuple

from fdbqueue.core.errors import RecordUnreadable, TaskNotFound
from fdbqueue.core.explanation import Explanation, Why
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.cli.show import Row
from fdbqueue.operate.verify.values import command
from fdbqueue.tasks.queue import TaskQueue


class Waiting(NamedTuple):
    """Why a fleet takes nothing from a queue: it is paused, or its first ready task waits for a limit."""

    queue: str
    paused: bool
    limited: Explanation | None
    """Of that task; None if it waits for no limit."""


def waiting(tr: Transaction, queues: Iterable[TaskQueue]) -> list[Waiting]:
    """Look at each queue: is it paused, and does its first ready task wait for a limit?

    A queue without limits costs one read.
    """
    seen = [Waiting(queue.name, queue.paused(tr), _explained(tr, queue)) for queue in queues]
    return [found for found in seen if found.paused or found.limited is not None]


def _explained(tr: Transaction, queue: TaskQueue) -> Explanation | None:
    options = queue.options
    if options.get("limits") or options.get("task_limits"):
        for task in queue.tasks(tr, TaskState.READY, 1):
            with suppress(TaskNotFound, RecordUnreadable):  # a task whose ttl is over, or a damaged one
                found = queue.explain(tr, task)
                return found if found.reached else None
    return None


def told(found: Waiting) -> str:
    text = " ".join(_sentences(found))
    return f"{found.queue!r} waits: {text[:1].lower()}{text[1:]}"


def _sentences(found: Waiting) -> Iterator[str]:
    if found.paused:
        yield f"The queue is paused. {command('resume', found.queue)} ends the pause."
    for reason in () if found.limited is None else found.limited.reasons:
        if reason.why is Why.LIMIT_REACHED:
            yield f"{reason.text} {reason.cure}"


def reached_rows(found: Waiting) -> list[Row]:
    limits = () if found.limited is None else found.limited.reached
    return [{"queue": found.queue, **asdict(limit)} for limit in limits]
