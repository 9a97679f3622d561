"""The broker: a message is a task, and a dead letter is a buried task.

The consumer: one thread of a worker takes messages of one queue; its other threads ack them. The worker of
Dramatiq tries again after an error of a connection.

The result backend, and the backend of rate limiters and barriers: values and counters with an end.
"""

import signal
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from fdbqueue.core.arguments import writable
from fdbqueue.core.database import Database, is_away
from fdbqueue.core.errors import FdbQueueError, NotTaken, UnknownSession, heals
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase, AnyTransaction, DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import text_of
from fdbqueue.integrations.common import Opening, Place, QueueMap, Results, Store, Within
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
                overtake = self._queue._shape.overtake_of()
                found = self._queue.take_many(
                    self._database, room, self._timeout_s, session=self._session, overtake=overtake
                )
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


SPACE = "dramatiq"


class FdbQueueResults(ResultBackend):
    """Results of actors, for the middleware `dramatiq.results.Results`; a watch waits for them.

    `url`: as in FdbQueueBroker, or a broker, to use its database.
    """

    def __init__(self, url: Place | FdbQueueBroker = None, **options: Any) -> None:
        """`options`: `namespace`, `encoder` and `use_namespace_prefix_keys` of dramatiq's ResultBackend."""
        super().__init__(**options)
        self._opening = url.opening if isinstance(url, FdbQueueBroker) else Opening(url)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message. With `block`, wait up to `timeout` milliseconds for it, on a watch.

        Raises: ResultMissing, ResultTimeout; the error of the actor, as ResultFailure.
        """
        name = self.build_message_key(message)
        if not block:
            return self._unwrapped(self._get(name), ResultMissing(message))
        with as_dramatiq():
            found = self._results().wait_for(
                name.encode(), (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
            )
        return self._unwrapped(self._decoded(found), ResultTimeout(message))

    def _unwrapped(self, found: Any, otherwise: Exception) -> Any:
        if found is Missing:
            raise otherwise
        return self.unwrap_result(found)  # type: ignore[no-untyped-call]  # it has no types

    def _get(self, message_key: str) -> Any:
        with as_dramatiq():
            return self._decoded(self._results().get([message_key.encode()])[0])

    def _decoded(self, encoded: bytes | None) -> Any:
        return Missing if encoded is None else self.encoder.decode(encoded)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        """Store a result for `ttl` milliseconds. Storing it twice is storing it once."""
        encoded = self.encoder.encode(result)
        with as_dramatiq():
            self._results().store(message_key.encode(), encoded, ttl / 1000)

    def _results(self) -> Results:
        return Results(self._opening.database(), SPACE)


COUNTERS, EVENTS = "dramatiq-counters", "dramatiq-events"
"""The spaces of counters, and of events: an event is the number of its calls, and each wakes its waits."""

_NUMBER = struct.Struct(">q")


class FdbQueueRateLimits(RateLimiterBackend):
    """Counters for `dramatiq.rate_limits`, exact among any number of processes."""

    def __init__(self, url: Place | FdbQueueBroker = None) -> None:
        """`url`: as in FdbQueueBroker, or a broker, to use its database."""
        self._opening = url.opening if isinstance(url, FdbQueueBroker) else Opening(url)
        self._root = RootKeys(DEFAULT_ROOT)

    def add(self, key: str, value: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: value if now is None else None)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: _within((now or 0) + amount, high=maximum))

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: _within((now or 0) - amount, low=minimum))

    def incr_and_sum(
        self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        """Increase a counter, unless it or the sum of all `keys` would be above `maximum`.

        Conflicts: a change of any of these keys, so the sum is exact.
        """
        names = list(keys())

        def decide(tr: Transaction, now: int | None) -> int | None:
            now_us, counters = self._opening.database().runtime.now_us(), Store(COUNTERS)
            asked = [counters.ask(tr, name.encode(), now_us) for name in names]
            total = sum(_number(value()) or 0 for value in asked) + amount
            return None if total > maximum else _within((now or 0) + amount, high=maximum)

        return self._change(key, ttl, decide)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait up to `timeout` milliseconds, None for ever, for `wait_notify`; True if it has been called.

        A call before this one counts, too: it may come between the count of a barrier and its wait.
        """
        timeout_s = None if timeout is None else timeout / 1000
        with as_dramatiq():
            return Results(self._opening.database(), EVENTS).wait_for(key.encode(), timeout_s) is not None

    def wait_notify(self, key: str, ttl: int) -> None:
        self._change(key, ttl, lambda _, told: (told or 0) + 1, EVENTS)

    def _change(
        self,
        key: str,
        ttl_ms: int,
        decide: Callable[[Transaction, int | None], int | None],
        space: str = COUNTERS,
    ) -> bool:
        """Give a counter the number that `decide` returns for its present one. None changes nothing."""
        with as_dramatiq():
            database = self._opening.database()
            return run_once(database, self._root, _changed(database, Store(space), key, ttl_ms, decide))


def _changed(
    database: Database,
    store: Store,
    key: str,
    ttl_ms: int,
    decide: Callable[[Transaction, int | None], int | None],
) -> Callable[[Transaction], bool]:
    """The body of a change of a counter. True if it has changed."""
    name = key.encode()

    def body(tr: Transaction) -> bool:
        now_us = database.runtime.now_us()
        number = decide(tr, _number(store.ask(tr, name, now_us)()))
        if number is None:
            return False
        store.sweep(tr, now_us)
        store.write(tr, name, _NUMBER.pack(number), now_us + ttl_ms * 1000)
        return True

    return body


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(_NUMBER.unpack(value)[0])


def _within(number: int, *, low: int | None = None, high: int | None = None) -> int | None:
    is_beyond = (low is not None and number < low) or (high is not None and number > high)
    return None if is_beyond else number
