"""The backend: a task of Django is a task of ours, and its result the state of that task.

Django makes a backend for each thread and each request of an asynchronous server. They share the database,
the queues and the program's transaction.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields
from typing import Any

from django.core import checks

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_span, checked_text
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, NoResult, QueueNotFound, TaskFailed, UnknownUrl
from fdbqueue.core.open import DIRECTORY_SCHEMES, PRIVATE_URL, checked_url, place_of
from fdbqueue.core.seam import AnyDatabase, AnyTransaction
from fdbqueue.core.task import Task
from fdbqueue.integrations.common.opening import Opening, Within
from fdbqueue.integrations.common.queue_map import KIND, QueueMap
from fdbqueue.integrations.django.api import (
    DEFAULT_TASK_BACKEND_ALIAS,
    BaseTaskBackend,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from fdbqueue.integrations.django.states import Call, State, look, pri_of
from fdbqueue.tasks.options import kind_named
from fdbqueue.tasks.queue import TaskQueue

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
    max_attempts: int = 5
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
        checked_count("max_attempts", options.max_attempts)
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
