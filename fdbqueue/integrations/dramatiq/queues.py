"""The task queues behind the queues of Dramatiq, made at their first use; and errors of their database.

The worker of Dramatiq tries again after an error of a connection.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dramatiq.errors import ConnectionClosed

from fdbqueue.core.database import is_away
from fdbqueue.core.error_root import FdbQueueError, heals
from fdbqueue.core.errors import QueueNotFound, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.common.opening import Opening
from fdbqueue.tasks.queue import TaskQueue

T = TypeVar("T")

KIND, CODEC = "fifottl", "bytes"
"""Priorities and delays; and the bytes that Dramatiq's own encoder has made."""


class TaskQueues:
    """Handles by the names that Dramatiq knows. A queue `mails` is the task queue `dramatiq.mails`."""

    def __init__(self, opening: Opening, namespace: str, root: Any = DEFAULT_ROOT) -> None:
        self._opening = opening
        self._namespace = namespace
        self._root = root
        self._known: dict[tuple[int, str], TaskQueue] = {}

    def named(self, name: str) -> TaskQueue:
        database = self._opening.database()
        key = id(database), name
        queue = self._known.get(key)
        if queue is None:
            queue = self._known[key] = TaskQueue.create(
                database, f"{self._namespace}.{name}", KIND, codec=CODEC, if_not_exists=True, root=self._root
            )
        return queue

    def use(self, name: str, verb: Callable[[TaskQueue], T]) -> T:
        """Call `verb` with the queue. One that was dropped meanwhile is made again."""
        try:
            return verb(self.named(name))
        except QueueNotFound:
            self._known.clear()
            return verb(self.named(name))


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
    """The end of a worker process whose database does not heal: Dramatiq would start consumers for ever."""

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
