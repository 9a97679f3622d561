"""The broker: a message is a task, and a dead letter is a buried task."""

from contextlib import AbstractContextManager
from typing import Any

import dramatiq
from dramatiq.errors import QueueJoinTimeout, QueueNotFound

from fdbqueue.core.arguments import writable
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase, AnyTransaction, DatabaseOrTransaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.integrations.common.opening import Opening, Within
from fdbqueue.integrations.common.queue_map import QueueMap
from fdbqueue.integrations.dramatiq.consumer import FdbQueueConsumer, ProcessEnd, as_dramatiq
from fdbqueue.tasks.queue import TaskQueue

NAMESPACE = "dramatiq"
_JOIN_LOOK_S = 0.05


class FdbQueueBroker(dramatiq.Broker):
    """A broker for Dramatiq over a database of fdbqueue.

    A message waits, with its delay, in the database. A worker leases it for as long as the worker lives, so
    no timeout has to be longer than the longest actor. A message that fails for good is a buried task.
    """

    def __init__(
        self,
        url: str | AnyDatabase | None = None,
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        namespace: str = NAMESPACE,
        session_ttr_s: float | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """`url`: as for fdbqueue.open, or an open database. Nothing is opened before the first message.

        `namespace`: the queue `mails` is the task queue `NAMESPACE.mails`. `session_ttr_s`: for this time
        after a worker died, its messages stay leased; by default that of the database.
        """
        super().__init__(middleware)
        self.opening = Opening(url)
        self._queues = QueueMap(self.opening.database, namespace, "bytes", root=root)
        self._session_ttr_s = session_ttr_s
        self._root = root
        self._within = Within()
        self._process_end = ProcessEnd()

    @property
    def database(self) -> Any:
        """The database of this process, opened if it was not. To close it does nothing."""
        return self.opening.database().lent()

    def task_queue(self, queue_name: str) -> TaskQueue:
        """The task queue behind a queue of Dramatiq, to be looked at, paused, or redriven.

        Raises: dramatiq.errors.QueueNotFound.
        """
        self._require_declared(queue_name)
        return self._queues.made(queue_name)

    def within(self, tr: AnyTransaction) -> AbstractContextManager[None]:
        """Put the messages that this thread sends in the block within `tr`: with it, or not at all.

        The block may run again with the body of `tr`; then the messages of the earlier run are gone.
        """
        return self._within.block(writable(tr))

    def declare_queue(self, queue_name: str) -> None:
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues[queue_name] = None
        self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Put a message. `delay`: milliseconds until a worker may take it.

        Given a database, a message is put once, whatever becomes of a commit's result.
        Raises: dramatiq.errors.QueueNotFound, ConnectionClosed; PayloadTooLarge.
        """
        self._require_declared(message.queue_name)
        self.emit_before("enqueue", message, delay)
        with as_dramatiq():
            self._queues.use(message.queue_name, lambda queue: self._put(queue, message, delay))
        self.emit_after("enqueue", message, delay)
        return message

    def _put(self, queue: TaskQueue, message: dramatiq.Message[Any], delay: int | None) -> None:
        target: DatabaseOrTransaction = self._within.current() or self.database
        actor = self.actors.get(message.actor_name)
        queue.put(
            target,
            message.encode(),
            delay=(delay or 0) / 1000,
            pri=0 if actor is None else actor.priority,
            headers={"actor": message.actor_name, "message": message.message_id},
        )

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> FdbQueueConsumer:
        """Raises: dramatiq.errors.QueueNotFound, ConnectionClosed."""
        self._require_declared(queue_name)
        with self._process_end.as_dramatiq():
            queue, database = self._queues.made(queue_name), self.database
            session = Session(database, ttr=self._session_ttr_s, root=self._root)
            return FdbQueueConsumer(queue, database, session, prefetch, timeout / 1000, self._process_end)

    def flush(self, queue_name: str) -> None:
        """Remove all messages of a queue, also those that workers hold, and dead letters."""
        self._require_declared(queue_name)
        with as_dramatiq():
            self._queues.use(queue_name, lambda queue: queue.truncate(self.database))

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until every message has been processed, also the delayed ones. Meant for tests.

        Raises: QueueJoinTimeout after `timeout` milliseconds; dramatiq.errors.QueueNotFound.
        """
        self._require_declared(queue_name)
        runtime = self.database.runtime
        until = None if timeout is None else runtime.monotonic() + timeout / 1000
        while self._queues.use(queue_name, self._unfinished):
            if until is not None and runtime.monotonic() > until:
                raise QueueJoinTimeout(queue_name)
            runtime.sleep(_JOIN_LOOK_S)

    def _unfinished(self, queue: TaskQueue) -> int:
        tasks = queue.statistics(self.database)["tasks"]
        return tasks["ready"] + tasks["taken"] + tasks["delayed"]

    def emit_after(self, signal: str, *args: Any, **options: Any) -> None:
        """As every broker does. `process_boot` tells that this is a process of the command `dramatiq`."""
        self._process_end.is_worker |= signal == "process_boot"
        super().emit_after(signal, *args, **options)

    def close(self) -> None:
        """Close the database that this broker has opened. One that it was given stays open.

        Raises: SystemExit in a process of the command `dramatiq` whose database does not heal in it.
        """
        self.opening.close()
        self._process_end.complete()

    def _require_declared(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
