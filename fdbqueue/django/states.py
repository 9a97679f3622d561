"""States: all that Django's TaskResult tells of a task.

A task that waits, runs or is buried has its data, its lease and its failures, and nothing else is written of
it. So a status is never older than the task. The ack of a task that has succeeded stores its state as its
result.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fdbqueue import errors
from fdbqueue.django.api import TaskError, TaskResult, TaskResultStatus
from fdbqueue.django.calls import Call, moment
from fdbqueue.task import Failure, Task, TaskState
from fdbqueue.tasks.failures import EXCUSED

UNKNOWN_WORKER = "unknown"
"""The worker of a lease that was lost: the process that found out does not know it."""

_STATUS = {
    TaskState.READY: TaskResultStatus.READY,
    TaskState.DELAYED: TaskResultStatus.READY,
    TaskState.TAKEN: TaskResultStatus.RUNNING,
    TaskState.BURIED: TaskResultStatus.FAILED,
}


class Error(msgspec.Struct, frozen=True):
    path: str
    """The path of its class."""
    traceback: str


class State(msgspec.Struct, frozen=True):
    """The state of a task, as its ack stores it. Times are seconds since the epoch.

    Append fields with a default.
    """

    call: Call
    status: str
    enqueued: float
    started: float | None
    """The begin of its first attempt."""
    attempted: float | None
    """The begin of its last attempt."""
    finished: float | None
    workers: list[str]
    errors: list[Error]
    """Those of the attempts that failed."""
    returned: Any = None

    @classmethod
    def of(cls, task: Task, failures: Sequence[Failure], worker: str = UNKNOWN_WORKER) -> "State":
        """The state of a task that has not succeeded. `worker` holds it, if it is taken.

        Raises: SuspiciousOperation for a task that Django has not enqueued.
        """
        failed = [failure for failure in failures if failure.outcome != EXCUSED]
        begins = [failure.began for failure in failed]
        workers = [failure.worker or UNKNOWN_WORKER for failure in failed]
        if task.state == TaskState.TAKEN:
            begins, workers = [*begins, task.taken], [*workers, worker]
        return cls(
            call=Call.stored(task.data),
            status=_STATUS[task.state].value,
            enqueued=task.created,
            started=begins[0] if begins else None,
            attempted=begins[-1] if begins else None,
            finished=failed[-1].when if task.state == TaskState.BURIED and failed else None,
            workers=workers,
            errors=[_error(failure) for failure in failed],
        )

    def succeeded(self, returned: Any, now: float) -> "State":
        status = TaskResultStatus.SUCCESSFUL.value
        return replace(self, status=status, finished=now, returned=returned)

    def failed(self, failure: Failure, now: float) -> "State":
        status = TaskResultStatus.FAILED.value
        return replace(self, status=status, finished=now, errors=[*self.errors, _error(failure)])

    def to_result(self, id_: str, queue_name: str, alias: str) -> Any:
        """Raises: ImportError, SuspiciousOperation if the task is not in this process."""
        result = TaskResult(
            task=self.call.to_task(queue_name, alias),
            id=id_,
            status=TaskResultStatus(self.status),
            enqueued_at=moment(self.enqueued),
            started_at=moment(self.started),
            last_attempted_at=moment(self.attempted),
            finished_at=moment(self.finished),
            args=self.call.args,
            kwargs=self.call.kwargs,
            backend=alias,
            errors=[_task_error(error) for error in self.errors],
            worker_ids=list(self.workers),
        )
        object.__setattr__(result, "_return_value", self.returned)  # frozen, and no argument of its class
        return result


def record_of(state: State) -> Any:
    """The result of the ack: a value of JSON, which `fdbqueue result` prints."""
    return msgspec.to_builtins(state)


def stored_state(record: Any) -> State | None:
    """None for the result of an ack that no worker of Django has made."""
    try:
        return msgspec.convert(record, State)
    except msgspec.ValidationError:
        return None


def _error(failure: Failure) -> Error:
    path = _path_of(failure.error)
    return Error(path, failure.detail or f"{path}: {failure.message}\n")


def _path_of(name: str) -> str:
    """The path of the class of an error. The names that a worker writes for itself are ours."""
    if "." in name:
        return name
    return f"fdbqueue.errors.{name}" if hasattr(errors, name) else f"fdbqueue.{name}"


def _task_error(error: Error) -> Any:
    return TaskError(exception_class_path=error.path, traceback=error.traceback)
