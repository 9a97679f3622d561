"""A kombu channel over task queues: what it publishes is put, what it consumes is taken under a lease."""

from collections.abc import Iterable
from queue import Empty
from typing import Any, NamedTuple

from kombu.log import get_logger
from kombu.transport import virtual

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, QueueNotFound, TaskNotFound
from fdbqueue.core.task import Failure, Task
from fdbqueue.integrations.celery.databases import current, told_to_kombu
from fdbqueue.integrations.celery.queues import (
    bind,
    bound,
    delivered,
    forget_exchange,
    is_message,
    tag_of,
    unbind,
)
from fdbqueue.integrations.celery.tap import Found, Want
from fdbqueue.integrations.common.opening import passing_what_does_not_heal
from fdbqueue.tasks.queue import TaskQueue

_log = get_logger(__name__)
REJECTED = Failure("Rejected", "A consumer has rejected this message.")
NO_MESSAGE = Failure("NoMessage", "The data of this task are no message of kombu.")
_GONE = (NotTaken, QueueNotFound, TaskNotFound)


class Held(NamedTuple):
    queue: TaskQueue
    task: Task


class Leases(virtual.QoS):
    """The messages that a channel holds: kombu's QoS, over leases.

    A lease has no end of its own: it lasts as long as the session of the connection, which a thread renews.
    So no task is delivered twice because it runs for long, and a dead worker's tasks come back after the
    session's ttr.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        # Not the base's: its finalizer would put messages again, also in a forked child.
        self.channel = channel
        self.prefetch_count = prefetch_count
        self._held: dict[str, Held] = {}

    def credit(self, most: int) -> int:
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


BATCH = 100
"""Messages that a channel without a prefetch count takes at once."""


class Channel(virtual.Channel):
    QoS = Leases
    supports_fanout = True

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection  # the base forgets it at closing, and a later ack needs it
        self._unasked: set[str] = set()
        self._owned: set[str] = set()
        self._dropped: set[str] = set()

    @property
    def database(self) -> Database:
        database: Database = self._transport.database
        return database

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child: leases and queues are those of the parent."""
        return bool(self._transport.is_of_this_process)

    # Bodies are text where they can be, so that listings of the queue show them.

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        if isinstance(body, str):
            return body, "utf-8"
        try:
            return bytes(body).decode(), "utf-8"
        except UnicodeDecodeError:
            encoded: tuple[Any, str | None] = super().encode_body(body, encoding)
            return encoded

    # Queues.

    def _new_queue(self, queue: str, auto_delete: bool = False, exclusive: bool = False, **_: Any) -> None:
        self._dropped.discard(queue)
        with told_to_kombu():
            if auto_delete or exclusive:
                self._owned.add(queue)
                self._transport.queues.declare_owned(queue, self._transport.session.id)
            else:
                self._transport.queues.get(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        with told_to_kombu():
            return bool(self._transport.queues.exists(queue))

    def _size(self, queue: str) -> int:
        if current() is not None:  # a look at the database would not see a queue of the transaction
            return 0
        with told_to_kombu():
            return int(self._transport.queues.size(queue))

    def _purge(self, queue: str) -> int:
        with told_to_kombu():
            return int(self._transport.queues.purge(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Remove the queue with its messages, held ones too, and its bindings."""
        if (if_empty and self._size(queue)) or (if_unused and queue in self._active_queues):
            return
        self._dropped.add(queue)
        self._owned.discard(queue)
        self._transport.consumers_changed(self)
        self.state.queue_bindings_delete(queue)
        with told_to_kombu():
            self._transport.queues.drop(queue)

    # Exchanges.

    def get_table(self, exchange: str) -> list[tuple[str, Any, str]]:
        with told_to_kombu():
            rows = bound(current() or self.database, exchange)
        kind = self.typeof(exchange)
        return [kind.prepare_bind(queue, exchange, routing_key, None) for routing_key, queue in rows]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:  # noqa: ARG002
        with told_to_kombu():
            bind(self.database, exchange, routing_key or "", queue)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *_: Any, **__: Any
    ) -> None:
        self.state.binding_delete(queue, exchange, routing_key)
        with told_to_kombu():
            unbind(self.database, exchange or "amq.direct", routing_key or "", queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:  # noqa: ARG002
        self.state.exchanges.pop(exchange, None)
        with told_to_kombu():
            forget_exchange(self.database, exchange)

    # Messages out.

    def _put(self, queue: str, message: Any, **_: Any) -> None:
        with told_to_kombu():
            self._transport.queues.put([queue], message)

    def _put_fanout(self, exchange: str, message: Any, routing_key: str, **_: Any) -> None:
        queues = self._lookup(exchange, routing_key)
        with told_to_kombu():
            self._transport.queues.put(sorted(queues), message)

    # Messages in.

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        if no_ack:
            self._unasked.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._transport.consumers_changed(self)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue not in self._active_queues:
            self._unasked.discard(queue)
        if not self.closed:
            self._transport.consumers_changed(self)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.freed()

    @property
    def consumes(self) -> bool:
        return bool(self._active_queues)

    def freed(self) -> None:
        self._transport.freed(self)

    def wants(self) -> Iterable[tuple[Want, int]]:
        credit = self.qos.credit(BATCH)
        for name in list(self._active_queues) if credit else ():
            if name not in self._dropped:
                yield Want(self, name, self._transport.queues.get(name)), credit

    def receive(self, found: Found) -> bool:
        """Hold a taken task. False if it is none for a consumer: it has gone back, or is buried."""
        is_wanted = found.want.name in self._active_queues and self.qos.can_consume()
        if not self._hold_one(found):
            return False
        if not is_wanted:  # several queues had a message at the same moment, or a consumer has gone
            self.qos.give_back(self.tag(found))
        return is_wanted

    def deliver(self, found: Found) -> None:
        """Back into its queue if its consumer has gone."""
        tag, name = self.tag(found), found.want.name
        if name not in self._active_queues:
            self.qos.give_back(tag)
            return
        if name in self._unasked:
            self.qos.ack(tag)
        self._transport._deliver(delivered(name, found.task), name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:  # noqa: ARG002  # the interface of kombu
        with told_to_kombu():
            found = self._transport.take_one(self, queue)
        if found is None or not self._hold_one(found):
            raise Empty
        return delivered(queue, found.task)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _hold_one(self, found: Found) -> bool:
        """False for a task that is no message: it is buried."""
        if not is_message(found.task.data):
            found.want.queue.bury(self.database, found.task, failure=NO_MESSAGE)
            return False
        self.qos.hold(self.tag(found), found.want.queue, found.task)
        return True

    @staticmethod
    def tag(found: Found) -> str:
        return tag_of(found.want.name, found.task)

    def close(self) -> None:
        """End the consumers, release the messages that are held, and remove the queues of this channel."""
        self._transport.end_tap(self)
        owned = set() if self.closed or not self.is_of_this_process else set(self._owned)
        super().close()
        for queue in owned:
            with told_to_kombu(), passing_what_does_not_heal():
                self._transport.queues.drop(queue)
