"""A look at the state of a task, at one version of the database."""

from typing import Any

from django.core.exceptions import SuspiciousOperation

from fdbqueue.database import run
from fdbqueue.django.states import UNKNOWN_WORKER, State, stored_state
from fdbqueue.errors import InvalidArgument, NoResult, ResultTimeout, TaskFailed
from fdbqueue.seam import Transaction
from fdbqueue.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue


def look(database: Any, queue: TaskQueue, id_: str) -> State | None:
    """The state of a task; None if it is not there, its result is over, or Django has not enqueued it.

    Reads: the task, its failures and its session, or its result.
    Round trips: 1 for a task that has succeeded, 2 to 4 for others.
    """
    try:
        return run(database, lambda tr: _look(tr, queue, id_))
    except (NoResult, InvalidArgument, SuspiciousOperation):
        return None


def _look(tr: Transaction, queue: TaskQueue, id_: str) -> State | None:
    try:
        return stored_state(queue.result(tr, id_))
    except (ResultTimeout, TaskFailed):
        task = queue.peek(tr, id_)
    failures = queue.failures(tr, id_) if task.failures or task.attempts > 1 else []
    return State.of(task, failures, _holder(tr, queue, task))


def _holder(tr: Transaction, queue: TaskQueue, task: Task) -> str:
    """The process that holds the task."""
    holder = queue.holder(tr, task) if task.state == TaskState.TAKEN else None
    processes = () if holder is None else holder.processes
    return f"{processes[0].host}:{processes[0].process_id}" if processes else UNKNOWN_WORKER
