"""A kombu channel over task queues: what it publishes is put, what it consumes is taken under a lease.

The task queues of a broker have the names of Celery's queues: `fdbqueue tasks celery` shows one. All
processes share the bindings of exchanges to queues. A queue with `auto_delete` or `exclusive` belongs to the
session of the connection that declared it. After the death of that session no message is routed to it, and
the next declaration of such a queue removes it.

A tap takes messages in a thread of its own, for a channel on the event loop of a worker.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from queue import Empty
from typing import Any, NamedTuple

from kombu.log import get_logger
from kombu.transport import virtual

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueKindMismatch, QueueNotFound, TaskNotFound, heals
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Event, Runtime
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.integrations.celery import databases
from fdbqueue.integrations.celery.databases import BrokerLost, current, told_to_kombu
from fdbqueue.integrations.common import KIND, PRIORITY_MAX, QueueMap, passing_what_does_not_heal
from fdbqueue.tasks.queue import TaskQueue

_MS = 1000


def put_options(message: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """`pri`, `delay` and `ttl` of a message: its priority, the `eta` of its task, and its expiration."""
    properties, headers = message["properties"], message["headers"]
    delay_s = delay_of(headers.get("eta"), now_s)
    options: dict[str, Any] = {"pri": PRIORITY_MAX - priority_of(properties.get("priority"))}
    if delay_s > 0:
        options["delay"] = delay_s
    expiration_ms = properties.get("expiration")
    if expiration_ms is not None:
        # The life of a message begins with its publication, that of a task at the end of its delay.
        options["ttl"] = max(1 / _MS, float(expiration_ms) / _MS - delay_s)
    return options


def priority_of(given: Any) -> int:
    """The priority within its bounds; 0 for none."""
    with suppress(TypeError, ValueError):
        return max(0, min(int(given), PRIORITY_MAX))
    return 0


def delay_of(eta: Any, now_s: float) -> float:
    """Seconds until the `eta` of a task; 0 for none, and for one without a time zone. The worker holds such a
    task itself, as it knows the time zone of the application.
    """
    with suppress(TypeError, ValueError):
        due = datetime.fromisoformat(eta)
        return 0.0 if due.tzinfo is None else max(0.0, due.timestamp() - now_s)
    return 0.0


def is_message(data: Any) -> bool:
    return isinstance(data, dict) and isinstance(data.get("properties"), dict) and "body" in data


def delivered(queue: str, task: Task) -> dict[str, Any]:
    """The message of a taken task, with a delivery tag that no other delivery has."""
    properties = dict(task.data["properties"])
    delivery = dict(properties.get("delivery_info") or {})
    if task.attempts > 1:
        delivery["redelivered"] = True
    properties |= {"delivery_info": delivery, "delivery_tag": tag_of(queue, task)}
    return {**task.data, "properties": properties}


def tag_of(queue: str, task: Task) -> str:
    return f"{queue}/{task.id}/{task.attempts}"


_KINDS = (KIND, "limfifottl")
"""Kinds with the options of a message: priority, delay and expiration."""


def _require_kind(queue: TaskQueue) -> None:
    if queue.kind not in _KINDS:
        raise QueueKindMismatch(name=queue.name, found=queue.kind, wanted=" or ".join(_KINDS))


class Queues(QueueMap):
    """The queues of one database."""

    def __init__(self, database: Database) -> None:
        super().__init__(lambda: database, require=_require_kind)
        self.registry = Registry(DEFAULT_ROOT)

    def get(self, name: str) -> TaskQueue:
        """Raises: QueueKindMismatch for a queue that cannot carry messages."""
        return self.made(name, current())

    def declare_owned(self, name: str, owner: bytes) -> None:
        """Make a queue that goes with the session `owner`."""
        drop_dead(self.database(), self.registry)
        self.forget(name)
        self.get(name)
        run(self.database(), lambda tr: tr.set(databases.owned(name), owner))

    def put(self, names: list[str], message: Mapping[str, Any]) -> None:
        """In the transaction of the program if there is one."""
        options = put_options(message, self.database().runtime.now())
        target = current() or self.database()
        for name in names:
            self.use(name, lambda queue: queue.put(target, dict(message), **options), current())

    def size(self, name: str) -> int:
        return self.use(name, lambda queue: queue.statistics(self.database())["tasks"]["ready"])

    def purge(self, name: str) -> int:
        """Remove the messages that are not held, in bounded transactions. Return their number."""
        removed = 0
        while more := self.use(name, self._purge_some):
            removed += more
        return removed

    def _purge_some(self, queue: TaskQueue) -> int:
        return self.registry.write(self.database().at("background"), lambda tr: _purge_some(tr, queue))

    def exists(self, name: str) -> bool:
        return self.registry.look(self.database(), name) is not None

    def drop(self, name: str) -> None:
        """Remove the queue with its messages and bindings. Does nothing without a queue of that name."""
        self.forget(name)
        self.registry.write(self.database(), lambda tr: _drop(tr, self.registry, [name]))


def _purge_some(tr: Transaction, queue: TaskQueue) -> int:
    """Remove a page of ready or delayed messages. Return their number, 0 if there are none."""
    for state in (TaskState.READY, TaskState.DELAYED):
        after: str | None = None
        while True:
            page = queue.tasks(tr, state, limits.VERB_BATCH, after=after)
            for task in page:
                queue.delete(tr, task.id)
            if page or page.next is None:
                break
            after = page.next
        if page:
            return len(page)
    return 0


Binding = tuple[str, str]
"""A routing key and a queue."""


def bind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    """Route messages of `exchange` with `routing_key` to `queue`. Reads: the owner of the queue."""

    def body(tr: Transaction) -> None:
        tr.set(databases.binding(exchange, routing_key, queue), tr.get(databases.owned(queue)).value or b"")

    run(target, body)


def unbind(target: DatabaseOrTransaction, exchange: str, routing_key: str, queue: str) -> None:
    run(target, lambda tr: tr.clear(databases.binding(exchange, routing_key, queue)))


def bound(target: DatabaseOrTransaction, exchange: str) -> list[Binding]:
    """The bindings of `exchange`, without those of queues with a dead session."""
    return run(target, lambda tr: _bound(tr, exchange))


def _bound(tr: Transaction, exchange: str) -> list[Binding]:
    under, roots = databases.bindings(exchange), RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [
        (databases.binding_of(row.key), tr.get(roots.session(row.value)) if row.value else None)
        for row in rows
    ]
    return [found[1:] for found, owner in asked if found and (owner is None or owner.present())]


def forget_exchange(db: AnyDatabase, exchange: str) -> None:
    under = databases.bindings(exchange)
    run(db, lambda tr: tr.clear_range(under.start, under.stop))


def drop_dead(db: AnyDatabase, registry: Registry) -> None:
    """Remove some queues with a dead session. Their number has a bound for each call."""
    if run(db, _dead):
        # Looked at again in the transaction that removes them: another process may have declared one of them.
        registry.write(db, lambda tr: _drop(tr, registry, _dead(tr)))


def _dead(tr: Transaction) -> list[str]:
    under, roots = databases.all_owned, RootKeys(DEFAULT_ROOT)
    rows = tr.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX).to_list()
    asked = [(row.key, tr.get(roots.session(row.value))) for row in rows]
    return [databases.owned_of(key) for key, owner in asked if not owner.present()][
        : limits.DEAD_QUEUES_DROPPED
    ]


def _drop(tr: Transaction, registry: Registry, queues: Sequence[str]) -> None:
    under = databases.all_bindings
    for row in tr.snapshot.get_range(under.start, under.stop, limit=limits.BINDINGS_MAX):
        if databases.bound_queue_of(row.key) in queues:
            tr.clear(row.key)
    for queue in queues:
        tr.clear(databases.owned(queue))
        if registry.look(tr, queue) is not None:
            registry.drop(tr, queue)


class Want(NamedTuple):
    """A queue from which messages are wanted for a channel."""

    channel: Any
    name: str
    queue: TaskQueue


Wants = Mapping[Want, int]
"""The largest number of messages of each queue."""


class Found(NamedTuple):
    want: Want
    task: Task


WAIT_S = 30.0


class Tap:
    """A thread that takes messages for one channel, and wakes the event loop of a worker. `wants()` tells
    from where to `take`. Messages wait here until the loop calls `drawn`.
    """

    def __init__(
        self,
        runtime: Runtime,
        take: Callable[[Wants, float, Event], Sequence[Found]],
        wants: Callable[[], Wants],
        receive: Callable[[Found], bool],
    ) -> None:
        self._runtime = runtime
        self._take = take
        self._wants = wants
        self._receive = receive
        self._inbox: deque[Found] = deque()
        self._error: Exception | None = None
        self._changed = self._runtime.event()
        self._stop: Event = self._runtime.event()
        self._ended = False
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that is readable when there is something to draw."""
        self._thread = self._runtime.spawn(self._run, "fdbqueue-celery-tap")

    def changed(self) -> None:
        """Look again from where to take, and end a wait that is under way."""
        self._changed.set()
        self._stop.set()

    def freed(self) -> None:
        """Look again from where to take, after a wait that is under way."""
        self._changed.set()

    def drawn(self) -> list[Found]:
        """The messages that have come. Raises the error that ended the takes, as BrokerLost if it heals."""
        os.eventfd_read(self.bell)
        if self._error is not None:
            if not heals(self._error):
                raise self._error
            raise BrokerLost(str(self._error)) from self._error
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def end(self) -> list[Found]:
        """Stop taking. Return the messages that have not been drawn."""
        self._ended = True
        self.changed()
        self._thread.join()
        os.close(self.bell)
        return list(self._inbox)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._take_some()
        except Exception as error:
            self._error = error
            self._ring()

    def _take_some(self) -> None:
        self._changed.clear()
        # Before the look: a change after it ends the wait.
        stop = self._stop = self._runtime.event()
        wants = self._wants()
        if not wants or self._ended:
            if not self._ended:
                self._changed.wait()
            return
        taken = self._take(wants, WAIT_S, stop)
        if held := [found for found in taken if self._receive(found)]:
            self._inbox.extend(held)
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self.bell, 1)


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
