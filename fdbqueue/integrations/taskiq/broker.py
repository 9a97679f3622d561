"""The broker: a message is a task, and a message that no worker can run is a buried task."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from taskiq import AckableMessage, AsyncBroker, BrokerMessage
from taskiq.exceptions import SendTaskError

from fdbqueue.aio.database import Database
from fdbqueue.aio.opened import Session
from fdbqueue.aio.queues import TaskQueue
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import target_of
from fdbqueue.core.arguments import checked_batch_count, checked_count, checked_items
from fdbqueue.core.database import is_away
from fdbqueue.core.errors import InvalidArgument, QueueNotFound, UnknownSession
from fdbqueue.core.logger import logger
from fdbqueue.core.seam import engine_errors
from fdbqueue.integrations.common.opening import Within, passing_what_does_not_heal
from fdbqueue.integrations.taskiq.connection import Connection, Place, TaskQueues, put_options, queue_name_of
from fdbqueue.integrations.taskiq.delivery import AWAY_S, Delivery, Intake, Leased
from fdbqueue.integrations.taskiq.firing import FiringNow
from fdbqueue.integrations.taskiq.results import WatchingTask

NAMESPACE, QUEUE_NAME = "taskiq", "default"
BATCH = 10
ORPHANED_MAX = 10

_log = logger("fdbqueue.taskiq")


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
    def within(self, tr: Transaction) -> Iterator[None]:
        """Put the messages that this block sends within `tr`: they are there if and only if `tr` commits.

        `tr` is a transaction of the database of this broker. The block may run again, with the whole body of
        `tr`: then the messages of the earlier run are gone, and the new ones have new ids. Do not wait for a
        result inside. An error of `tr` leaves the block as it is: its retry loop needs it.
        Raises: WrongFace, NotADatabase, InvalidArgument.
        """
        if not isinstance(target_of(tr), Transaction):
            raise InvalidArgument(name="tr", wanted="an aio.Transaction", got=tr)
        with self._within.block(tr):
            try:
                yield
            except SendTaskError as error:
                if isinstance(error.__cause__, engine_errors()):
                    raise error.__cause__ from error
                raise

    def current(self) -> Transaction | None:
        """The transaction of the block around the caller; None outside."""
        found: Transaction | None = self._within.current()
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
