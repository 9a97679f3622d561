"""The broker: a message is a task, and a message that no worker can run is a buried task.

**Delivery.** A leased message is judged before a worker gets it, and acked when its task has ended. Taskiq
itself drops a message that it cannot read, and one of a task that it does not know. Here, these are buried:
`fdbqueue dead` shows them, and a kick sends them again.

The last worker of a *suspect* has died, and the message may have killed it. All messages of that worker come
back as suspects, and a worker runs one of them at a time, with no message in its hands that does not run yet.
So a message that kills its workers is soon alone with its deaths, and the others do not share its end.

**Schedules** lie in the database, and are fired once by any number of schedulers: the message of a schedule
is put in the transaction that notes the firing. Each scheduler of Taskiq decides for itself that a schedule
is due, and then sends the message by the broker. The source notes the schedule in the context of that send.
So the put of the broker finds it, and asks in its own transaction whether another scheduler was first.

This is the only file that builds or parses the keys of this room, which are below R["taskiq"] (root_keys.py
knows their shapes). The comment of a column has its parts and its value, and behind the semicolon its
readers. A schedule and its last firing go together.
"""

import asyncio
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduledTask, ScheduleSource
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.exceptions import ScheduledTaskCancelledError, SendTaskError

from fdbqueue.aio.database import Database
from fdbqueue.aio.database import Transaction as AioTransaction
from fdbqueue.aio.database import Transaction as AwaitedTransaction
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.aio.verbs import Session, target_of
from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_batch_count, checked_count, checked_instance, checked_items
from fdbqueue.core.columns import Table
from fdbqueue.core.database import is_away
from fdbqueue.core.errors import (
    InvalidArgument,
    NotTaken,
    PayloadTooLarge,
    QueueNotFound,
    TaskNotFound,
    UnknownSession,
)
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.root_keys import DEFAULT_ROOT, TASKIQ
from fdbqueue.core.runtime import Event
from fdbqueue.core.seam import ReadTransaction, Transaction, engine_errors
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import text_of
from fdbqueue.integrations.common import Within, passing_what_does_not_heal
from fdbqueue.integrations.taskiq.results import (
    Connection,
    Place,
    TaskQueues,
    WatchingTask,
    dumped,
    put_options,
    queue_name_of,
)
from fdbqueue.tasks.intake import Found
from fdbqueue.tasks.intake import Intake as BlockingIntake
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue

LEASE_OVER = (NotTaken, QueueNotFound, TaskNotFound, UnknownSession)
"""Errors of a verb whose lease has ended, or whose queue was dropped."""


class Leased(NamedTuple):
    queue: TaskQueue
    task: Task


class Intake:
    """The messages that a worker has leased and not asked for yet: few, as it may not run them soon."""

    def __init__(self, database: Database, batch: int) -> None:
        self._database = database
        self._batch = batch
        self._held: deque[Leased] = deque()
        self._intake = BlockingIntake[BlockingTaskQueue](database.blocking.runtime, {})

    async def next(self, queues: Sequence[TaskQueue], session: Session) -> Leased:
        """The next message of one of the queues; they have turns. Waits for ever. Raises: as a take."""
        while not self._held:
            await self._fetch(queues, session)
        return self._held.popleft()

    async def give_back(self) -> None:
        """Put back the messages that nothing has asked for: it counts no attempt."""
        while self._held:
            leased = self._held.popleft()
            with suppress(*LEASE_OVER):  # at the end of the session, all have come back
                await leased.queue.give_back(self._database, leased.task)

    def forget(self) -> None:
        """Drop the messages of a session that has ended: their leases are over."""
        self._held.clear()

    async def _fetch(self, queues: Sequence[TaskQueue], session: Session) -> None:
        database, hub = self._database.blocking, self._database.hub
        wanted, stop = {queue.blocking: self._batch for queue in queues}, database.runtime.event()

        def take(queue: BlockingTaskQueue, count: int, timeout_s: float, stop: Event) -> list[Task]:
            overtake = queue._shape.overtake_of()
            return queue.take_many(
                database, count, timeout_s, session=session.blocking, stop=stop, overtake=overtake
            )

        def hold(found: Found[BlockingTaskQueue]) -> None:
            self._held.extend(Leased(TaskQueue.over(queue, hub), task) for queue, task in found)

        # A cancelled call holds its messages, too: the end of the listener gives them back.
        taking = partial(self._intake.take, take, wanted, limits.WORKER_WAIT_S, stop)
        hold(await hub.call(taking, stop, hold))


ALONE_S = 5.0
"""Longest time for which a worker asks for no message after a suspect has begun."""

AWAY_S = 1.0
"""Seconds until a call is tried again after an outage of the database."""

SUSPECT_S = 60.0
"""Time for which no other suspect begins. A longer task should not keep them waiting."""

_log = logger("fdbqueue.taskiq")


class Delivery:
    def __init__(self, broker: AsyncBroker, orphaned_max: int) -> None:
        self._broker = broker
        self._orphaned_max = orphaned_max
        self._suspect: tuple[str, float, asyncio.Event] | None = None

    async def begins(self, database: Database, leased: Leased) -> bool:
        """True if a worker runs the message now. Otherwise it is put off for a moment, or buried."""
        failure = self._failure_of(leased)
        if failure is not None:
            _log.warning("message %s is buried: %s", _id_of(leased), failure.message)
        try:
            if failure is not None:
                await leased.queue.bury(database, leased.task, failure=failure)
            elif leased.task.orphaned and not self._may_begin(database, leased):
                runtime = database.blocking.runtime
                await leased.queue.give_back(
                    database, leased.task, delay=limits.SUSPECT_DELAY_S * (0.5 + runtime.random())
                )
            else:
                return True
        except LEASE_OVER:
            self._say_over(leased)
        return False

    def _may_begin(self, database: Database, leased: Leased) -> bool:
        """True if no other suspect runs. Then this one does."""
        now = database.blocking.runtime.monotonic()
        if self._suspect is not None and now - self._suspect[1] < SUSPECT_S:
            return False
        self._suspect = leased.task.id, now, asyncio.Event()
        return True

    async def until_no_suspect_begins(self) -> None:
        """Wait for the ack of the suspect that has begun, if there is one, for at most ALONE_S."""
        if self._suspect is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._suspect[2].wait(), ALONE_S)

    def _failure_of(self, leased: Leased) -> Failure | None:
        orphaned = leased.task.orphaned
        if orphaned >= self._orphaned_max:
            return Failure("WorkerLost", f"{orphaned} attempts in a row have lost their workers.")
        try:
            message = self._broker.formatter.loads(leased.task.data)
            message.parse_labels()
        except Exception as error:  # of any formatter
            return Failure(type(error).__name__, text_of(error), traceback_of(error, error.__traceback__))
        if self._broker.find_task(message.task_name) is None:
            return Failure("UnknownTask", f"No task {message.task_name!r} is registered in this worker.")
        return None

    async def ack(self, database: Database, leased: Leased) -> None:
        """End the lease. After a loss of the lease, the outcome of the next attempt counts. An outage of the
        database passes: without its ack, this worker would hold the message until its end.
        """
        while True:
            try:
                await leased.queue.ack(database, leased.task)
                break
            except LEASE_OVER:
                self._say_over(leased)
                break
            except Exception as error:
                if database.closed or not is_away(error):
                    raise
                await asyncio.sleep(AWAY_S)
        if self._suspect is not None and self._suspect[0] == leased.task.id:
            self._suspect[2].set()
            self._suspect = None

    def _say_over(self, leased: Leased) -> None:
        _log.warning("the lease of message %s was over before its end", _id_of(leased))


def _id_of(leased: Leased) -> str:
    return leased.task.headers.get("message", leased.task.id)


T = Table()
SCHEDULE = T.packed(0, str)  # id: bytes by the serializer of its source; schedulers, and its firing
FIRED = T.packed(1, str)  # id: microseconds of the last firing, no key before the first; the same
_TIME = struct.Struct("<Q")

_PREFIX = DEFAULT_ROOT.pack((TASKIQ,))
schedule_key, schedule_id_of = SCHEDULE.key(_PREFIX), SCHEDULE.first(_PREFIX)
fired_key = FIRED.key(_PREFIX)


def schedules_after(schedule_id: str) -> slice:
    """The schedules behind that id; all for an empty one."""
    under = SCHEDULE.all(_PREFIX)
    return slice(schedule_key(schedule_id) + b"\x00" if schedule_id else under.start, under.stop)


def time_bytes(time_us: int) -> bytes:
    return _TIME.pack(time_us)


def time_of(value: bytes) -> int:
    time_us: int = _TIME.unpack(value)[0]
    return time_us


_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US


def fires_once(schedule: ScheduledTask) -> bool:
    """True for a schedule with a time: it is gone after its firing."""
    return schedule.time is not None


def turn_of(schedule: ScheduledTask, last_us: int | None, now_us: int) -> int | None:
    """The time to note for a firing at `now_us`; None if it is that of the last firing, or too early. A cron
    expression has a turn in each minute. An interval is counted in whole seconds, as schedulers do.
    """
    if schedule.cron is not None:
        turn_us = now_us - now_us % _MINUTE_US
        return turn_us if last_us is None or turn_us > last_us else None
    if schedule.interval is not None and last_us is not None:
        wanted = schedule.interval
        wanted_s = wanted.total_seconds() if isinstance(wanted, timedelta) else wanted
        return now_us if round((now_us - last_us) / _SECOND_US) >= round(wanted_s) else None
    return now_us


class Firing:
    def __init__(self, schedule: ScheduledTask, now_us: int) -> None:
        self.schedule = schedule
        self._now_us = now_us
        self.has_come = False
        """True once a broker has got its message."""

    async def put(self, target: Database | AioTransaction, put: Callable[[Any], object]) -> None:
        """Put the message, unless another scheduler has fired this turn, or the schedule has changed."""

        def body(tr: Transaction) -> None:
            if self._claim(tr):
                put(tr)

        if isinstance(target, Database):
            await target.run(body)
        else:
            await target.run_blocking(body)

    def is_open(self, tr: ReadTransaction) -> bool:
        return self._turn(tr) is not None

    def _turn(self, tr: ReadTransaction) -> int | None:
        schedule_id = self.schedule.schedule_id
        stored, last = tr.get(schedule_key(schedule_id)), tr.get(fired_key(schedule_id))
        if not stored.present():  # deleted, or fired for good
            return None
        last_us = time_of(bytes(last.value)) if last.present() else None
        return turn_of(self.schedule, last_us, self._now_us)

    def _claim(self, tr: Transaction) -> bool:
        turn_us, schedule_id = self._turn(tr), self.schedule.schedule_id
        if turn_us is None:
            return False
        if fires_once(self.schedule):
            tr.clear(schedule_key(schedule_id))
        else:
            tr.set(fired_key(schedule_id), time_bytes(turn_us))
        return True


class FiringNow:
    """The firing that the running send belongs to."""

    def __init__(self) -> None:
        self._current: ContextVar[Firing | None] = ContextVar("fdbqueue_firing", default=None)

    def begin(self, firing: Firing) -> None:
        self._current.set(firing)

    def of(self, message: BrokerMessage) -> Firing | None:
        """The firing of `message`; None for a message that a program sends, also during a firing."""
        firing = self._current.get()
        if firing is None or message.labels.get("schedule_id") != firing.schedule.schedule_id:
            return None
        firing.has_come = True
        return firing

    def end(self) -> Firing | None:
        """The firing that has begun in this context."""
        firing = self._current.get()
        self._current.set(None)
        return firing


NAMESPACE, QUEUE_NAME = "taskiq", "default"
BATCH = 10
ORPHANED_MAX = 10


class FdbQueueBroker(AsyncBroker):
    """A broker for Taskiq over a database of fdbqueue, on the event loop of its process.

    A message waits, with its delay, in the database. A worker leases it for as long as the worker lives, so
    no timeout has to be longer than the longest task.
    """

    def __init__(
        self,
        url: Place = None,
        *,
        queue_name: str = QUEUE_NAME,
        queues: Iterable[str] | None = None,
        namespace: str = NAMESPACE,
        batch: int = BATCH,
        session_ttr_s: float | None = None,
        orphaned_max: int = ORPHANED_MAX,
    ) -> None:
        """`url`: as for fdbqueue.open, or an open database of fdbqueue.aio. It is opened at the startup.

        `queue_name`: the queue of a message without the label `queue_name`; the queue `mails` is the task
        queue `NAMESPACE.mails`. `queues`: those that a worker listens to; by default, that one and those in
        the labels of its tasks. `batch`: messages that a worker takes at once. `session_ttr_s`: for this time
        after a worker died, its messages stay leased; by default that of the database. `orphaned_max`: a
        message is buried if its workers have died this many times in a row.
        Raises: UnknownUrl, InvalidArgument.
        """
        super().__init__()
        checked_batch_count("batch", batch)
        self.connection = Connection(url)
        self.firing = FiringNow()
        self._queue_name = queue_name
        self._listens_to = None if queues is None else _checked_names(queues)
        self._queues = TaskQueues(self.connection, namespace)
        self._batch = batch
        self._session_ttr_s = session_ttr_s
        self._delivery = Delivery(self, checked_count("orphaned_max", orphaned_max))
        self._session: Session | None = None
        self._within = Within()
        self.decorator_class = WatchingTask

    async def database(self) -> Database:
        """The open database of the running loop. To close it does nothing.

        Raises: as fdbqueue.open; DatabaseNotFound.
        """
        return (await self.connection.database()).lent()

    async def task_queue(self, queue_name: str | None = None) -> TaskQueue:
        """The task queue behind a queue of Taskiq, to be looked at, paused, or redriven."""
        return await self._queues.named(queue_name or self._queue_name)

    @contextmanager
    def within(self, tr: AwaitedTransaction) -> Iterator[None]:
        """Put the messages that this block sends within `tr`: they are there if and only if `tr` commits.

        `tr` is a transaction of the database of this broker. The block may run again, with the whole body of
        `tr`: then the messages of the earlier run are gone, and the new ones have new ids. Do not wait for a
        result inside. An error of `tr` leaves the block as it is: its retry loop needs it.
        Raises: WrongFace, NotADatabase, InvalidArgument.
        """
        if not isinstance(target_of(tr), AwaitedTransaction):
            raise InvalidArgument(name="tr", wanted="an aio.Transaction", got=tr)
        with self._within.block(tr):
            try:
                yield
            except SendTaskError as error:
                if isinstance(error.__cause__, engine_errors()):
                    raise error.__cause__ from error
                raise

    def current(self) -> AwaitedTransaction | None:
        """The transaction of the block around the caller; None outside."""
        found: AwaitedTransaction | None = self._within.current()
        return found

    async def startup(self) -> None:
        """Open the database, and start the result backend. Raises: as fdbqueue.open; DatabaseNotFound."""
        await self.database()
        await super().startup()

    async def shutdown(self) -> None:
        """End the session: messages not acked are ready again. Close the database that was opened here."""
        session, self._session = self._session, None
        try:
            if session is not None:
                with passing_what_does_not_heal():  # such an error has ended the listener before
                    await session.end()
            await super().shutdown()
        finally:
            self._queues.forget()
            await self.connection.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Put a message: once, whatever becomes of a commit's result.

        Raises: InvalidArgument, PayloadTooLarge; as TaskQueue.put.
        """
        options = put_options(message)
        firing = self.firing.of(message)
        target = self.current() or await self.database()

        async def put(queue: TaskQueue) -> None:
            if firing is None:
                await queue.put(target, message.message, **options)
            else:
                await firing.put(target, partial(queue.blocking.put, data=message.message, **options))

        await self._queues.use(queue_name_of(message.labels, self._queue_name), put)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """The messages for this worker. Messages that it has not asked for are given back at the end."""
        database = await self.database()
        intake = Intake(database, self._batch)
        try:
            while True:
                leased = await self._next(database, intake)
                if not await self._delivery.begins(database, leased):
                    continue
                if leased.task.orphaned:  # it may end this process, with all that the process holds
                    await intake.give_back()
                yield AckableMessage(data=leased.task.data, ack=partial(self._delivery.ack, database, leased))
                if leased.task.orphaned:
                    await self._delivery.until_no_suspect_begins()
        finally:
            await intake.give_back()

    async def _next(self, database: Database, intake: Intake) -> Leased:
        """The next message. An outage of the database, and the loss of the session, pass."""
        while True:
            try:
                queues = [await self._queues.named(name) for name in self._names()]
                return await intake.next(queues, await self._open_session(database))
            except UnknownSession:
                _log.warning("the session of this worker has ended: its messages go to other workers, too")
                self._session = None
                intake.forget()
            except QueueNotFound:
                self._queues.forget()
            except Exception as error:
                if database.closed or not is_away(error):
                    raise
                _log.warning("the database is away: %s", error)
                await asyncio.sleep(AWAY_S)

    def _names(self) -> list[str]:
        if self._listens_to is not None:
            return self._listens_to
        labels = [task.labels for task in self.get_all_tasks().values()]
        return sorted({self._queue_name, *(queue_name_of(each, self._queue_name) for each in labels)})

    async def _open_session(self, database: Database) -> Session:
        """The session of this worker. Two listeners that ask at once get the same one."""
        if self._session is None:
            self._session = Session(database, ttr=self._session_ttr_s)
        try:
            return await self._session
        except BaseException:  # it is not open: there is nothing to end
            self._session = None
            raise


def _checked_names(queues: Iterable[str]) -> list[str]:
    names = sorted(set(checked_items("queues", queues)))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(name="queues", wanted="a list of names", got=queues)
    return names


READ_AT_ONCE = 1_000
"""Schedules that one transaction reads."""


class FdbQueueScheduleSource(ScheduleSource):
    """Schedules for `TaskiqScheduler`, with the same broker."""

    def __init__(self, broker: FdbQueueBroker, *, serializer: TaskiqSerializer | None = None) -> None:
        """`broker`: its database has the schedules. `serializer`: by default that of the broker."""
        self._broker = checked_instance("broker", broker, FdbQueueBroker)
        self._own_serializer = serializer

    @property
    def _serializer(self) -> TaskiqSerializer:
        return self._broker.serializer if self._own_serializer is None else self._own_serializer

    async def startup(self) -> None:
        """Open the database. Raises: as fdbqueue.open; DatabaseNotFound."""
        await self._broker.database()

    async def get_schedules(self) -> list[ScheduledTask]:
        """All schedules. One that this serializer cannot read is left out, and logged."""
        db = await self._broker.database()
        found: list[ScheduledTask] = []
        after = ""
        while True:
            rows = await db.run(partial(_read, after=after))
            found += [schedule for key, value in rows if (schedule := self._loaded(key, value)) is not None]
            if len(rows) < READ_AT_ONCE:
                return found
            after = schedule_id_of(rows[-1][0])

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Store a schedule, in place of one with its id. Within `broker.within(tr)`, it is part of `tr`.

        Writes: the schedule. Conflicts: its firing.
        Raises: InvalidArgument for several of cron, interval and time; PayloadTooLarge.
        """
        given = [schedule.cron, schedule.interval, schedule.time]
        if sum(each is not None for each in given) != 1:
            raise InvalidArgument(name="schedule", wanted="one of cron, interval and time", got=schedule)
        value = dumped(schedule, self._serializer)
        if len(value) > limits.PAYLOAD_PIECE_BYTES_MAX:
            raise PayloadTooLarge(size_bytes=len(value), limit_bytes=limits.PAYLOAD_PIECE_BYTES_MAX)
        key, current = schedule_key(schedule.schedule_id), self._broker.current()
        if current is not None:
            current.set(key, value)
        else:
            await (await self._broker.database()).set(key, value)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule. Messages that it has sent stay."""
        db = await self._broker.database()

        def body(tr: Transaction) -> None:
            tr.clear(schedule_key(schedule_id))
            tr.clear(fired_key(schedule_id))

        await db.run(body)

    async def pre_send(self, task: ScheduledTask) -> None:
        """Begin a firing. Raises: ScheduledTaskCancelledError if another scheduler has fired it."""
        db = await self._broker.database()
        firing = Firing(task, db.blocking.runtime.now_us())
        if not await db.run(lambda tr: firing.is_open(tr.snapshot)):
            raise ScheduledTaskCancelledError
        self._broker.firing.begin(firing)

    def post_send(self, task: ScheduledTask) -> None:
        """Raises: InvalidArgument if another broker has sent the message: each scheduler has sent one."""
        firing = self._broker.firing.end()
        if firing is not None and not firing.has_come:
            raise InvalidArgument(
                name="broker", wanted="in the scheduler, too, the one of its source", got=task.task_name
            )

    def _loaded(self, key: bytes, value: bytes) -> ScheduledTask | None:
        try:
            return ScheduledTask.model_validate(self._serializer.loadb(value))
        except Exception as error:  # of any serializer
            _log.warning("the schedule %s cannot be read: %s", schedule_id_of(key), error)
            return None


def _read(tr: Transaction, after: str) -> list[tuple[bytes, bytes]]:
    under = schedules_after(after)
    rows = tr.snapshot.get_range(under.start, under.stop, limit=READ_AT_ONCE)
    return [(bytes(row.key), bytes(row.value)) for row in rows]
