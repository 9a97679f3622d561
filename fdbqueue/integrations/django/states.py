"""States: all that Django's TaskResult tells of a task.

A task that waits, runs or is buried has its data, its lease and its failures, and nothing else is written of
it. So a status is never older than the task. The ack of a task that has succeeded stores its state as its
result.

The call of a task is the data of a task of ours: its function, its arguments and its settings.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string
from msgspec.structs import replace

from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, NoResult, ResultTimeout, TaskFailed
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.integrations.django.api import Task as DjangoTask
from fdbqueue.integrations.django.api import TaskError, TaskResult, TaskResultStatus, normalize_json
from fdbqueue.tasks.failures import EXCUSED
from fdbqueue.tasks.queue import TaskQueue

PRIORITY_MAX = 100


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call as stored. Append fields with a default."""

    task: str
    """The path of its function."""
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int = 0
    run_after: float | None = None
    """The earliest time at which it may run, in seconds since the epoch."""

    @classmethod
    def of(cls, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Call":
        run_after = None if task.run_after is None else task.run_after.timestamp()
        plain_args, plain_kwargs = normalize_json(list(args)), normalize_json(kwargs)
        return cls(task.module_path, plain_args, plain_kwargs, int(task.priority), run_after)

    @classmethod
    def stored(cls, data: Any) -> "Call":
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise SuspiciousOperation(f"this is no call of a task: {error}") from None

    def to_data(self) -> Any:
        return msgspec.to_builtins(self)

    def to_task(self, queue_name: str, alias: str) -> Any:
        """The Task that was enqueued. Raises: ImportError, or SuspiciousOperation for no Task."""
        found = import_string(self.task)
        if not isinstance(found, DjangoTask):
            raise SuspiciousOperation(f"{self.task} is no Task, and is not called")
        run_after = moment(self.run_after)
        return found.using(priority=self.priority, queue_name=queue_name, run_after=run_after, backend=alias)


def moment(seconds: float | None) -> datetime | None:
    """A time since the epoch as Django has it: in UTC with USE_TZ, else the local one without a zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC if settings.USE_TZ else None)


def pri_of(priority: int) -> int:
    """Our priority for one of Django: here the lowest comes first, and there the highest."""
    return PRIORITY_MAX - priority


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
    """The state of a task, as its ack stores it. Append fields with a default."""

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
        """The state of a task that has not succeeded; `worker` holds it. Raises: SuspiciousOperation."""
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
            errors=[
                TaskError(exception_class_path=error.path, traceback=error.traceback) for error in self.errors
            ],
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
    path = failure.error if "." in failure.error else f"fdbqueue.{failure.error}"
    return Error(path, failure.detail or f"{path}: {failure.message}\n")


def look(database: Any, queue: TaskQueue, id_: str) -> State | None:
    """The state of a task; None if it is not there, its result is over, or Django has not enqueued it."""
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
    holder = queue.holder(tr, task) if task.state == TaskState.TAKEN else None
    processes = () if holder is None else holder.processes
    return f"{processes[0].host}:{processes[0].process_id}" if processes else UNKNOWN_WORKER
