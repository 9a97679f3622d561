"""The messages that a channel holds: kombu's QoS, over leases.

A lease has no end of its own: it lasts as long as the session of the connection, which a thread renews. So no
task is delivered twice because it runs for long, and a dead worker's tasks come back after the session's ttr.
"""

from typing import Any, NamedTuple

from kombu.log import get_logger
from kombu.transport import virtual

from fdbqueue.celery.trouble import told_to_kombu
from fdbqueue.database import Database
from fdbqueue.errors import NotTaken, QueueNotFound, TaskNotFound
from fdbqueue.task import Failure, Task
from fdbqueue.tasks.queue import TaskQueue

_log = get_logger(__name__)
REJECTED = Failure("Rejected", "A consumer has rejected this message.")
NO_MESSAGE = Failure("NoMessage", "The data of this task are no message of kombu.")
_GONE = (NotTaken, QueueNotFound, TaskNotFound)


class Held(NamedTuple):
    queue: TaskQueue
    task: Task


class Leases(virtual.QoS):
    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        # Not the base's: its finalizer would put messages again, also in a forked child.
        self.channel = channel
        self.prefetch_count = prefetch_count
        self._held: dict[str, Held] = {}

    def credit(self, most: int) -> int:
        """Number of messages that may be taken now, at most `most`."""
        if not self.prefetch_count:
            return most
        return max(0, min(most, self.prefetch_count - len(self._held)))

    def can_consume(self) -> bool:
        return self.credit(1) > 0

    def can_consume_max_estimate(self) -> int | None:
        return self.credit(self.prefetch_count) if self.prefetch_count else None

    def hold(self, tag: str, queue: TaskQueue, task: Task) -> None:
        self._held[tag] = Held(queue, task)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Does nothing: the message is held since its task was taken."""

    def get(self, delivery_tag: str) -> Held:
        return self._held[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        self._end(delivery_tag, lambda held, db: held.queue.ack(db, held.task))

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Release the task to its old place, or bury it: rejected messages are dead letters."""
        if requeue:
            self._end(delivery_tag, lambda held, db: held.queue.release(db, held.task))
        else:
            self._end(delivery_tag, lambda held, db: held.queue.bury(db, held.task, failure=REJECTED))

    def give_back(self, delivery_tag: str) -> None:
        """Put a task back that no consumer has seen: it counts no attempt."""
        self._end(delivery_tag, lambda held, db: held.queue.give_back(db, held.task))

    def restore_unacked(self) -> list[Any]:
        for tag in list(self._held):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002  # the interface of kombu
        """Release all messages that are held, in the process that has taken them."""
        if self.channel.is_of_this_process:
            self.restore_unacked()

    def _end(self, tag: str, verb: Any) -> None:
        held = self._held.pop(tag, None)
        if held is None:
            return
        database: Database = self.channel.database
        try:
            with told_to_kombu():
                verb(held, database)
        except _GONE as error:
            # After a loss of the session, or of the queue. Another consumer has the message, or will get it.
            _log.warning("the lease of message %s has ended before it was settled: %s", tag, error)
        finally:
            self.channel.freed()
