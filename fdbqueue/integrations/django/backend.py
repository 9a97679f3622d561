"""The backend: a task of Django is a task of ours, and its result the state of that task.

Django makes a backend for each thread and each request of an asynchronous server. They share the database,
the queues and the program's transaction.

States: all that Django's TaskResult tells of a task. A task that waits, runs or is buried has its data, its
lease and its failures, and nothing else is written of it. So a status is never older than the task. The ack
of a task that has succeeded stores its state as its result. The call of a task is the data of a task of ours:
its function, its arguments and its settings.

Attempts: the handler of a worker. It runs a task of Django, and ends its lease.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.core import checks
from django.core.exceptions import SuspiciousOperation
from django.db import close_old_connections, reset_queries
from django.utils.module_loading import import_string
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_span, checked_text
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import (
    InvalidArgument,
    LeaseLost,
    NoResult,
    NotTaken,
    QueueNotFound,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    UnknownUrl,
)
from fdbqueue.core.logger import traceback_of
from fdbqueue.core.once import run_once
from fdbqueue.core.open import DIRECTORY_SCHEMES, PRIVATE_URL, checked_url, place_of
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import parent_only
from fdbqueue.core.seam import AnyDatabase, AnyTransaction, Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.visible import text_of
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Bury, Done, Effect, Retry, Snooze, beyond_us, is_away
from fdbqueue.integrations.common import KIND, Opening, QueueMap, Within
from fdbqueue.integrations.django.api import (
    DEFAULT_TASK_BACKEND_ALIAS,
    LOGGER,
    BaseTaskBackend,
    InvalidTaskBackend,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from fdbqueue.integrations.django.api import Task as DjangoTask
from fdbqueue.tasks.failures import EXCUSED
from fdbqueue.tasks.options import kind_named
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


_openings: dict[str | None, Opening] = {}
within = Within()


def opening_of(place: str | AnyDatabase | None) -> Opening:
    """The opening of an open database; the one opening of this process for a URL, or the environment."""
    if place is None or isinstance(place, str):
        return _openings.setdefault(place, Opening(place))
    return Opening(place)


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Enqueue the tasks of the block within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the backend. The block may run again, with the whole body of
    `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. Do not wait for a result
    inside: the task is not there before the commit.
    """
    return within.block(tr)


NEEDED = frozenset({"pri", "delay"})
CODECS = ("json", "msgpack")


_shared: dict[tuple[Opening, str], QueueMap] = {}


def queues_of(place: str | AnyDatabase | None, namespace: str) -> QueueMap:
    """The handles that all backends of this process with the same URL and namespace share.

    Raises, as they are used: InvalidTaskBackend for a queue without priorities or delays.
    """
    opening = opening_of(place)
    queues = QueueMap(opening.database, namespace, require=_require_usable)
    return _shared.setdefault((opening, namespace), queues)


def _require_usable(queue: TaskQueue) -> None:
    if not kind_named(queue.kind).options >= NEEDED:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} is of the kind {queue.kind!r}, without priorities or delays: "
            f"Django's tasks need one of the kind {KIND!r}, or another namespace."
        )
    if queue.options["codec"] not in CODECS:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} has the codec {queue.options['codec']!r}: Django's tasks need json or "
            "msgpack, or another namespace."
        )


NAMESPACE_BYTES_MAX = 100


@dataclass(frozen=True)
class Options:
    """The OPTIONS of a backend in the setting TASKS."""

    url: str | AnyDatabase | None = None
    """As for `fdbqueue.open`, or an open database; None for the database of the environment."""
    namespace: str = "django"
    """The queue `mails` is the task queue `NAMESPACE.mails`."""
    result_ttl: float = 86_400
    """Time for which the result of a task that has succeeded is kept, in seconds."""
    attempts: int = 5
    """Number of attempts that a task may fail before it is buried: its worker died, or it raised Retry."""
    session_ttr: float = limits.SESSION_TTR_S
    """Time from the death of a worker until its tasks are ready again, in seconds."""

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> "Options":
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise InvalidArgument(name="OPTIONS", wanted=f"some of {', '.join(names)}", got=name)
        options = cls(**given)
        checked_text("namespace", options.namespace, NAMESPACE_BYTES_MAX)
        checked_span("result_ttl", options.result_ttl)
        checked_count("attempts", options.attempts)
        checked_span("session_ttr", options.session_ttr)
        if options.url is None or isinstance(options.url, str):
            require_known(checked_url(options.url, shared_directory=False))
        return options


def require_known(url: str) -> None:
    """Raises UnknownUrl for a URL that names no database. Opens nothing: a system check asks."""
    scheme, colon, rest = url.partition(":")
    if scheme in DIRECTORY_SCHEMES and rest:
        place_of(url)
    elif url != PRIVATE_URL and not (colon and scheme == "fdb"):
        raise UnknownUrl(url=url)


_BETWEEN = ":"


class FdbQueueBackend(BaseTaskBackend):
    """Tasks in a database of fdbqueue: a directory, or a FoundationDB cluster (docs/django.md)."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Opens nothing, as modules with tasks are imported before the checks of the settings."""
        super().__init__(alias, params)
        self._settings: Options | None = None
        self._queues: QueueMap | None = None

    @property
    def settings(self) -> Options:
        """The OPTIONS. Raises: InvalidTaskBackend."""
        if self._settings is None:
            try:
                self._settings = Options.checked(self.options)
            except (InvalidArgument, UnknownUrl) as error:
                raise InvalidTaskBackend(f"The task backend {self.alias!r}: {error}") from error
        return self._settings

    @property
    def task_queues(self) -> QueueMap:
        if self._queues is None:
            self._queues = queues_of(self.settings.url, self.settings.namespace)
        return self._queues

    @property
    def database(self) -> Database:
        """The open database of this process. To close it does nothing. Raises: as fdbqueue.open."""
        return self.task_queues.database().lent()

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put a task, in the transaction of the block around the caller if there is one.

        Without such a block it is stored when this call returns, also in a transaction of the SQL database.
        Raises: InvalidTask; TypeError for arguments that JSON does not have; PayloadTooLarge.
        """
        self.validate_task(task)
        call = Call.of(task, args, kwargs)
        database = self.database
        delay_s = 0.0 if call.run_after is None else max(0.0, call.run_after - database.runtime.now())
        options: dict[str, Any] = {
            "pri": pri_of(call.priority),
            "delay": delay_s,
            "result_ttl": self.settings.result_ttl,
        }
        tr, data = within.current(), call.to_data()
        put = self.task_queues.use(
            task.queue_name, lambda queue: queue.put(tr or database, data, **options), tr
        )
        result = State.of(put, []).to_result(
            self.result_id(task.queue_name, put), task.queue_name, self.alias
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def result_id(self, queue_name: str, task: Task) -> str:
        """The id that Django knows: the name of the queue, and the id of the task in it."""
        return f"{queue_name}{_BETWEEN}{task.id}"

    def get_result(self, result_id: str) -> Any:
        """The result of a task, as it is now. Raises: TaskResultDoesNotExist."""
        queue_name, _, id_ = str(result_id).rpartition(_BETWEEN)
        is_ours = bool(queue_name) and (not self.queues or queue_name in self.queues)
        state = self._look(queue_name, id_) if is_ours else None
        if state is None:
            raise TaskResultDoesNotExist(result_id)
        return state.to_result(result_id, queue_name, self.alias)

    def wait(self, result_id: str, timeout_s: float | None) -> None:
        """Wait for the end of a task, on a watch. Raises: ResultTimeout."""
        queue_name, _, id_ = str(result_id).rpartition(_BETWEEN)
        with suppress(NoResult, TaskFailed):
            self.task_queues.there(queue_name).result(self.database, id_, timeout_s)

    def _look(self, queue_name: str, id_: str) -> State | None:
        try:
            return look(self.database, self.task_queues.there(queue_name), id_)
        except QueueNotFound:
            return None

    def check(self, **kwargs: Any) -> list[Any]:
        """One error for settings that this backend cannot use. Opens nothing."""
        found = list(super().check(**kwargs))
        try:
            _ = self.settings
        except InvalidTaskBackend as error:
            found.append(checks.Error(str(error), obj=type(self).__name__, id="fdbqueue.E001"))
        return found


def backend_of(alias: str) -> FdbQueueBackend:
    found = task_backends[alias]
    if not isinstance(found, FdbQueueBackend):
        raise InvalidTaskBackend(f"The task backend {alias!r} is no backend of fdbqueue.")
    return found


def database(alias: str = DEFAULT_TASK_BACKEND_ALIAS) -> Database:
    """The open database of a backend of TASKS, for a program's own transactions. To close it does nothing.

    Raises: InvalidTaskBackend; as fdbqueue.open.
    """
    return backend_of(alias).database


def wait(result: Any, timeout: float | None = None) -> None:
    """Wait up to `timeout` seconds, None for ever, for the end of a task; then refresh its result.

    The wait is a watch, and not a poll.
    Raises: ResultTimeout, a TimeoutError; TaskResultDoesNotExist.
    """
    backend_of(result.backend).wait(result.id, timeout)
    result.refresh()


_log = logging.getLogger(LOGGER)

OF_THE_WORKER = (Retry, Snooze, Bury, NotTaken, LeaseLost, TaskCancelled, KeyboardInterrupt)
"""Errors that mean to the worker what they mean from each handler (docs/workers.md)."""


_held: ContextVar[HeldTask | None] = ContextVar("fdbqueue_django_task", default=None)


def held_task() -> HeldTask | None:
    """The task of fdbqueue behind the task that runs, with `step`, `progress`, `check` and `database`.

    None outside of a worker, such as in a test that calls the function itself.
    """
    return _held.get()


class Returned(NamedTuple):
    """The end of a function: its value, and the effect of a Done that it raised."""

    value: Any
    effect: Effect | None


class Attempts:
    """The handler of a worker for some queues of a backend."""

    def __init__(self, backend: FdbQueueBackend, queues: Mapping[str, TaskQueue]) -> None:
        self._backend = backend
        self._queues = {queue.name: (name, queue) for name, queue in queues.items()}
        runtime = backend.database.runtime
        self._worker = f"{runtime.host_name()}:{runtime.process_id()}"

    def __call__(self, task: HeldTask) -> None:
        name, queue = self._queues[task.queue]
        attempt = Attempt(self._backend, name, queue, task, self._worker)
        with _fresh_connections(), _holding(task):
            attempt.run()


class Attempt:
    def __init__(
        self, backend: FdbQueueBackend, queue_name: str, queue: TaskQueue, task: HeldTask, worker: str
    ) -> None:
        self._backend = backend
        self._queue_name = queue_name
        self._queue = queue
        self._task = task
        self._worker = worker
        self._state: State | None = None
        """The state while the function runs; None before its Task is found."""

    def run(self) -> None:
        """Run the task, and end its lease: an ack with its state, or a burial with its error."""
        try:
            state = self._begin()
            ended = self._succeed(state, self._call(state))
        except OF_THE_WORKER:
            raise
        except BaseException as error:  # SystemExit, too: a task must not end the worker
            if is_away(error):
                raise
            self._fail(error)
        else:
            self._tell_finished(ended)

    def _begin(self) -> State:
        """Announce the start of a task, unless this process cannot import or run it."""
        failures = self._queue.failures(self._task.database, self._task) if self._task.attempts > 1 else []
        state = State.of(self._task, failures, self._worker)
        result = self._result(state)
        self._state = state
        task_started.send(sender=type(self._backend), task_result=result)
        return state

    def _call(self, state: State) -> Returned:
        """Call the function; a coroutine function runs in an event loop of this thread."""
        result = self._result(state)
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        try:
            with parent_only(self._task.database.runtime):
                returned = result.task.call(*context, *result.args, **result.kwargs)
            return Returned(normalize_json(returned), None)
        except Done as done:
            return Returned(normalize_json(done.result), done.effect)

    def _succeed(self, state: State, returned: Returned) -> State:
        """Ack the task. Raises: PayloadTooLarge, PayloadUnsupported, NotTaken; the errors of the effect."""
        database, effect = self._task.database, returned.effect
        ended = state.succeeded(returned.value, database.runtime.now())
        record = record_of(ended)
        if effect is None:
            self._queue.ack(database, self._task, result=record)
            return ended

        def body(tr: Transaction) -> None:
            self._queue.ack(tr, self._task, result=record)
            with parent_only(database.runtime):
                effect(tr)

        run_once(database, RootKeys(DEFAULT_ROOT), body)
        return ended

    def _fail(self, error: BaseException) -> None:
        """Bury the task. The error is being handled meanwhile, so Django's log shows it."""
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        failure = Failure(
            path, text_of(error), traceback_of(error, beyond_us(error.__traceback__)), self._worker
        )
        self._queue.bury(self._task.database, self._task, failure=failure)
        if self._state is None:
            _log.exception("Task id=%s cannot be run", self._id)
        else:
            self._tell_finished(self._state.failed(failure, self._task.database.runtime.now()))

    def _tell_finished(self, state: State) -> None:
        task_finished.send(sender=type(self._backend), task_result=self._result(state))

    def _result(self, state: State) -> Any:
        return state.to_result(self._id, self._queue_name, self._backend.alias)

    @property
    def _id(self) -> str:
        return self._backend.result_id(self._queue_name, self._task)


@contextmanager
def _holding(task: HeldTask) -> Iterator[None]:
    token = _held.set(task)
    try:
        yield
    finally:
        _held.reset(token)


@contextmanager
def _fresh_connections() -> Iterator[None]:
    """Connections to SQL databases, as Django has them around a request."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
