"""Attempts: the handler of a worker. It runs a task of Django, and ends its lease."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from django.db import close_old_connections, reset_queries

from fdbqueue.core.errors import LeaseLost, NotTaken, TaskCancelled
from fdbqueue.core.logger import traceback_of
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import parent_only
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure
from fdbqueue.core.visible import text_of
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Bury, Done, Effect, Retry, Snooze, beyond_us, is_away
from fdbqueue.integrations.django.api import LOGGER, TaskContext, normalize_json, task_finished, task_started
from fdbqueue.integrations.django.backend import FdbQueueBackend
from fdbqueue.integrations.django.states import State, record_of
from fdbqueue.tasks.queue import TaskQueue

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
