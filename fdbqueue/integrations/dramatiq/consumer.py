"""The consumer: one thread of a worker takes messages of one queue; its other threads ack them.

The worker of Dramatiq tries again after an error of a connection.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError

from fdbqueue.core.database import Database, is_away
from fdbqueue.core.errors import FdbQueueError, NotTaken, UnknownSession, heals
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import text_of
from fdbqueue.tasks.queue import TaskQueue

REFUSED = 2


@contextmanager
def as_dramatiq() -> Iterator[None]:
    """Raises: ConnectionClosed for a database that is away, and for a session that has ended meanwhile."""
    try:
        yield
    except UnknownSession as error:
        raise ConnectionClosed(error) from error
    except Exception as error:
        if is_away(error):
            raise ConnectionClosed(error) from error
        raise


class ProcessEnd:
    """Ends a worker process whose database does not heal: Dramatiq would start consumers for ever."""

    def __init__(self) -> None:
        self.is_worker = False
        """True in a process of the command `dramatiq`. A program with a worker of its own goes on."""
        self._has_begun = False

    @contextmanager
    def as_dramatiq(self) -> Iterator[None]:
        """As the function of that name. Raises ConnectionClosed also for an error that does not heal."""
        try:
            with as_dramatiq():
                yield
        except FdbQueueError as error:
            if self.begins_with(error):
                raise ConnectionClosed(error) from error
            raise

    def begins_with(self, error: Exception) -> bool:
        """True if the error does not heal. Then the main thread hears a signal, and runs the actors out."""
        if heals(error):
            return False
        if self.is_worker and not self._has_begun:
            self._has_begun = True  # a second signal would not wait for the actors
            signal.raise_signal(signal.SIGTERM)
        return True

    def complete(self) -> None:
        """At the end of the process: raises SystemExit, so that Dramatiq does not take it for a good end."""
        if self._has_begun:
            raise SystemExit(REFUSED)


_log = logger("fdbqueue.dramatiq")


class LeasedMessage(dramatiq.MessageProxy):
    def __init__(self, message: dramatiq.Message[Any], task: Task) -> None:
        super().__init__(message)
        self.task = task


@dataclass(frozen=True)
class _Unread:
    """The data of this task are no message."""

    task: Task
    _exception: DecodeError


class FdbQueueConsumer(dramatiq.Consumer):
    """Leases up to `prefetch` messages at a time, in a session that a thread of this process renews."""

    def __init__(
        self,
        queue: TaskQueue,
        database: Database,
        session: Session,
        prefetch: int,
        timeout_s: float,
        end: ProcessEnd,
    ) -> None:
        """`session`: ends with this consumer. `timeout_s`: time after which an iteration returns None.
        `end`: of this process, if its database does not heal.
        """
        self._queue = queue
        self._database = database
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._process_end = end
        self._session = session
        self._fetched: deque[Task] = deque()
        self._lock = database.runtime.lock()
        self._held: set[str] = set()
        self._freed = database.runtime.event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LeasedMessage | None:
        while self._fetched or self._fetch():
            message = self._read(self._fetched.popleft())
            if message is not None:
                return message
        return None

    def _fetch(self) -> bool:
        """Take as many messages as there is room for; True if there were any."""
        room = self._prefetch - len(self._held)
        if room <= 0:
            self._freed.wait(self._timeout_s)
            self._freed.clear()
            room = self._prefetch - len(self._held)
        if room > 0:
            with self._process_end.as_dramatiq():
                found = self._queue.take_many(self._database, room, self._timeout_s, session=self._session)
            with self._lock:
                self._held.update(task.id for task in found)
            self._fetched.extend(found)
        return bool(self._fetched)

    def _read(self, task: Task) -> LeasedMessage | None:
        """The message of a task; a task that is none is buried, as no attempt would read it."""
        try:
            return LeasedMessage(dramatiq.Message.decode(task.data), task)
        except DecodeError as error:
            self.nack(_Unread(task, error))
            return None

    def ack(self, message: Any) -> None:
        self._end(message, self._queue.ack)

    def nack(self, message: Any) -> None:
        """Bury the task, with the error of its actor. Raises: dramatiq.errors.ConnectionClosed."""
        failure = _failure_of(getattr(message, "_exception", None))
        self._end(message, partial(self._queue.bury, failure=failure))

    def requeue(self, messages: Iterable[Any]) -> None:
        """Give back messages that have not begun. Raises: dramatiq.errors.ConnectionClosed."""
        for message in messages:
            self._end(message, self._queue.give_back)

    def close(self) -> None:
        """End the session: messages that are still held are ready again."""
        with self._process_end.as_dramatiq():
            self._session.end()

    def _end(self, message: Any, verb: Callable[[Database, Task], object]) -> None:
        """End the lease of a message that this consumer holds. Others are passed over."""
        task = getattr(message, "task", None)
        if not isinstance(task, Task) or task.id not in self._held:
            return
        message_id = task.headers.get("message", task.id)
        try:
            with as_dramatiq():
                verb(self._database, task)
        except NotTaken:
            # A standstill of this process: another one has the message. Its outcome counts.
            _log.warning("the lease of message %s was over before its end", message_id)
        except FdbQueueError as error:
            if not self._process_end.begins_with(error):
                raise
            # Dramatiq would repeat the call, and wait for it at the end.
            _log.error("the outcome of message %s is lost: %s", message_id, error)
        with self._lock:
            self._held.discard(task.id)
        self._freed.set()


def _failure_of(error: BaseException | None) -> Failure:
    if error is None:
        return Failure("Rejected")
    return Failure(type(error).__name__, text_of(error), traceback_of(error, error.__traceback__))
