"""Queues and their grants, those of fdbqueue, awaited.

The verbs of producers and of consumers are halves of a queue.

Tasks also come one by one: a loop takes, acks after the body, and releases if the body was left. While a body
runs, a heartbeat renews the lease of its task. One heartbeat serves all bodies of a database.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fdbqueue.aio.database import Database, Transaction
from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.runtime import in_fiber
from fdbqueue.aio.verbs import (
    AsideFace,
    Face,
    HandleFace,
    Maker,
    Verb,
    awaited,
    constructor_of,
    database_of,
    plain,
    target_of,
)
from fdbqueue.aio.worker import HeldTask
from fdbqueue.core import limits
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument, NotGranted, NotTaken
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction
from fdbqueue.core.sessions.keeper import Silence
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.settling import ITS_THREAD, Heartbeat
from fdbqueue.queues.fair import FairConsumer as BlockingFairConsumer
from fdbqueue.queues.fair import FairProducer as BlockingFairProducer
from fdbqueue.queues.fair import FairPutting as BlockingFairPutting
from fdbqueue.queues.fair import FairQueue as BlockingFairQueue
from fdbqueue.queues.fair import FairTaking as BlockingFairTaking
from fdbqueue.queues.fair import Handed
from fdbqueue.queues.recipe.queue import Dequeuing as BlockingDequeuing
from fdbqueue.queues.recipe.queue import Enqueuing as BlockingEnqueuing
from fdbqueue.queues.recipe.queue import Queue as BlockingQueue
from fdbqueue.queues.recipe.queue import QueueConsumer as BlockingQueueConsumer
from fdbqueue.queues.recipe.queue import QueueProducer as BlockingQueueProducer
from fdbqueue.tasks.dead_letters import DeadLetters as BlockingDeadLetters
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.handle import Putting as BlockingPutting
from fdbqueue.tasks.handle import Taking as BlockingTaking
from fdbqueue.tasks.queue import Leaving as BlockingLeaving
from fdbqueue.tasks.queue import TaskConsumer as BlockingTaskConsumer
from fdbqueue.tasks.queue import TaskProducer as BlockingTaskProducer
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue


class Leases:
    """A heartbeat for the bodies that run: the heartbeat of workers. A service of the database."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._runtime = database.runtime
        silence = Silence(database.runtime)
        self._heartbeat = heartbeat = Heartbeat(database, silence, None, _unused, self._next_chore, _unused)
        heartbeat.start()
        self.add, self.remove, self.holds = heartbeat.add, heartbeat.remove, heartbeat.holds

    def close(self) -> None:
        self._heartbeat.end(limits.CLOSE_TIMEOUT_S)

    def is_needed(self) -> bool:
        """True: its fibers run until it is closed."""
        return True

    def _next_chore(self) -> float:
        return self._runtime.monotonic() + limits.WORKER_WAIT_S


def _unused(_: object) -> None:
    """Do nothing: the code around a body knows for how long it may run, and its next take meets the error."""


def leases_of(database: BlockingDatabase) -> Leases:
    return database.service("consumed leases", Leases)


class Consumption:
    """An asynchronous iterator over the tasks of a queue. It also is a context manager: its end releases.

    An `async for` does not tell its iterator that the body was left by a break or an exception. The iterator
    is then dropped, and releases the task in a fiber of its own; with the context manager, the release has
    happened when the block is left.
    """

    __slots__ = ("_ack", "_database", "_hold", "_holder", "_is_asked", "_options", "_queue", "_take")

    def __init__(
        self,
        queue: HandleFace[Any],
        take: Callable[..., Awaitable[Any]],
        ack: Callable[..., Awaitable[Any]],
        db: Database,
        options: dict[str, Any],
    ) -> None:
        self._queue = queue
        self._take = take
        self._ack = ack
        self._database = db
        self._options = options
        self._holder: tuple[Leases, Session] | None = None
        self._hold: Hold | None = None
        self._is_asked = False

    def __aiter__(self) -> "Consumption":
        return self

    async def __anext__(self) -> HeldTask:
        if self._is_asked:  # it would ack the task of the other loop, or lose it
            raise InvalidArgument(name="consume", wanted="called once for each loop", got=self)
        self._is_asked = True
        try:
            return await self._next()
        finally:
            self._is_asked = False

    async def _next(self) -> HeldTask:
        leases, session = self._holder = self._holder or await self._find_holder()
        await self._end_body(leases)
        task = await self._take(self._database, **self._options)
        if task is None:
            raise StopAsyncIteration
        taken_at = task.taken or self._database.blocking.runtime.now()
        self._hold = Hold(self._queue.blocking, task, self._database.blocking, session, taken_at)
        leases.add(self._hold)
        return HeldTask.of(task, self._queue.name, self._hold)

    async def _find_holder(self) -> tuple[Leases, Session]:
        given, queue = plain(self._options["session"]), self._queue.blocking

        def find(db: BlockingDatabase) -> tuple[Leases, Session]:
            return leases_of(db), queue._own_session(db) if given is None else given

        return await self._database.hub.call(partial(find, self._database.blocking), Unheard())

    async def _end_body(self, leases: Leases) -> None:
        hold = self._hold
        if hold is None:
            return
        hold.claim(ITS_THREAD)  # from now on, a renewal that finds no lease is no loss
        try:
            await self._ack(self._database, hold.lease)
        except NotTaken:
            if hold.ended_by is None:
                raise
        self._hold = None  # only now: an ack that was cancelled may have left the task taken
        leases.remove(hold)

    async def aclose(self) -> None:
        """Release the task of the body that was left. If it is cancelled, it goes on to its end."""
        if self._hold is not None:
            leave, self._hold = self._leave_of(self._hold), None
            await self._database.hub.call(leave, Unheard())

    async def __aenter__(self) -> "Consumption":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        hub = self._database.hub
        if self._hold is not None and not self._database.closed and not hub.loop.is_closed():
            hub.finish(self._leave_of(self._hold))

    def _leave_of(self, hold: Hold) -> Any:
        assert self._holder is not None, "there is one before the first take"
        return partial(_leave, hold, self._holder[0])


def _leave(hold: Hold, leases: Leases) -> None:
    hold.claim(ITS_THREAD)
    leases.remove(hold)
    # The body has ended its lease, or it is over. If the database is closed, its session gives the task back.
    with suppress(NotTaken, DatabaseClosed):
        hold.queue.release(hold.database, hold.lease)


D = TypeVar("D")
E = TypeVar("E", bound=BlockingEnqueuing)
Q = TypeVar("Q", bound=BlockingDequeuing)
P = TypeVar("P", bound=BlockingPutting)
T = TypeVar("T", bound=BlockingTaking)
FP = TypeVar("FP", bound=BlockingFairPutting)
FT = TypeVar("FT", bound=BlockingFairTaking)

_NOTHING: Any = object()  # an item may be equal to any default, and be None


def _release(
    queue: BlockingTaking, db: BlockingDatabase, taken: Task | Sequence[Task] | None, *_: Any, **__: Any
) -> None:
    """The tasks of a cancelled take are ready again, and no attempt has ended."""
    for task in [taken] if isinstance(taken, Task) else taken or ():
        queue.give_back(db, task)


def _prepend(queue: BlockingDequeuing, db: BlockingDatabase, value: Any, *_: Any, **__: Any) -> None:
    if value is not _NOTHING:
        queue.give_back(db, [value])


def _prepend_all(
    queue: BlockingDequeuing, db: BlockingDatabase, values: list[Any], *_: Any, **__: Any
) -> None:
    if values:
        queue.give_back(db, values)


class Enqueuing(Face[E]):
    """Verbs that add items."""

    __slots__ = ()

    enqueue = awaited(BlockingEnqueuing.enqueue)
    enqueue_many = awaited(BlockingEnqueuing.enqueue_many)


class Dequeuing(Face[Q]):
    """Verbs that take items."""

    __slots__ = ()

    _taken = Verb[Any, Any](BlockingDequeuing.dequeue, None, _prepend, name="dequeue")

    async def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
        overtake: int = 0,
    ) -> Any | D | None:
        """As `fdbqueue.Queue.dequeue`."""
        found = await self._taken(tr, _NOTHING, timeout, stop=stop, overtake=overtake)
        return default if found is _NOTHING else found

    dequeue_many = awaited(BlockingDequeuing.dequeue_many, undo=_prepend_all)
    give_back = awaited(BlockingDequeuing.give_back)
    peek = awaited(BlockingDequeuing.peek)
    empty = awaited(BlockingDequeuing.empty)
    size = awaited(BlockingDequeuing.size)


class Putting(HandleFace[P]):
    """Verbs that put tasks."""

    __slots__ = ()

    put = awaited(BlockingPutting.put)
    put_many = awaited(BlockingPutting.put_many)


class Taking(HandleFace[T]):
    """Verbs that take tasks, and end their leases."""

    __slots__ = ()

    take = awaited(BlockingTaking.take, undo=_release)
    take_many = awaited(BlockingTaking.take_many, undo=_release)
    end_waits = awaited(BlockingTaking.end_waits)

    def consume(
        self,
        db: Database,
        timeout: float | None = None,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> Consumption:
        """The tasks as they come: `async for task in emails.consume(db)`.

        A task is acked when the body has run to its end, before the next one is taken. It is released after
        an exception, a break, a return or a cancellation: then another consumer gets it. If the body has
        ended the lease itself (ack, release, bury ...), nothing more is done.

        While the body runs, the lease is renewed, and the `aio.HeldTask` tells if it was `lost` all the same.
        Then the next step of the loop raises NotTaken.

        The other arguments are those of `take`. The loop ends when a take has waited for `timeout` seconds
        in vain; without a timeout, it has no end. Each loop needs a call of its own.
        Raises: WrongFace, NotADatabase; InvalidArgument for a transaction.
        """
        options = {"timeout": timeout, "session": session, "stop": stop}
        return Consumption(self, self.take, self.ack, database_of(db), options)

    ack = awaited(BlockingTaking.ack)
    release = awaited(BlockingTaking.release)
    defer = awaited(BlockingTaking.defer)
    touch = awaited(BlockingTaking.touch)
    bury = awaited(BlockingTaking.bury)

    give_back = awaited(BlockingTaking.give_back)
    renew = awaited(BlockingTaking.renew)
    detach = awaited(BlockingLeaving.detach)
    leased = awaited(BlockingLeaving.leased)
    hand_off = awaited(BlockingLeaving.hand_off)
    progress = awaited(BlockingTaking.progress)

    async def step(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        name: str,
        function: Callable[..., Any],
        *,
        session: AnySession | None = None,
    ) -> Any:
        """As `fdbqueue.TaskQueue.step`; `function` may be a coroutine function."""
        target, hub = target_of(tr), target_of(tr).hub
        given = (target,) if isinstance(target, Transaction) else ()
        step = partial(self._blocking.step, plain(target), task, name, in_fiber(hub, function, *given))
        return await hub.call(partial(step, session=plain(session)))

    exhaust = awaited(BlockingTaking.exhaust)
    excuse = awaited(BlockingTaking.excuse)


def _put_again(
    queue: BlockingFairTaking, db: BlockingDatabase, handed: Handed | None, *_: Any, **__: Any
) -> None:
    if handed is not None:
        queue.give_back(db, handed.item, cost=handed.cost)


class FairPutting(Face[FP]):
    """The verb that puts items."""

    __slots__ = ()

    put = awaited(BlockingFairPutting.put)


class FairTaking(Face[FT]):
    """Verbs that take items."""

    __slots__ = ()

    async def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """As `fdbqueue.FairQueue.get`."""
        return (await self.take_item(tr, timeout, stop=stop))[1]

    _taken = Verb[Any, Handed | None](BlockingFairTaking._take_handed, None, _put_again, name="_take_handed")

    async def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """As `fdbqueue.FairQueue.take_item`."""
        handed = await self._taken(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    give_back = awaited(BlockingFairTaking.give_back)
    peek = awaited(BlockingFairTaking.peek)
    size = awaited(BlockingFairTaking.size)


class _Grant:
    __slots__ = ()

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=f"aio.{kind}", verb=name)


class QueueProducer(_Grant, Enqueuing[BlockingQueueProducer]):
    """`fdbqueue.QueueProducer`, awaited."""

    __slots__ = ()


class QueueConsumer(_Grant, Dequeuing[BlockingQueueConsumer]):
    """`fdbqueue.QueueConsumer`, awaited."""

    __slots__ = ()


class TaskProducer(_Grant, Putting[BlockingTaskProducer]):
    """`fdbqueue.TaskProducer`, awaited."""

    __slots__ = ()


class TaskConsumer(_Grant, Taking[BlockingTaskConsumer]):
    """`fdbqueue.TaskConsumer`, awaited."""

    __slots__ = ()


class FairProducer(_Grant, FairPutting[BlockingFairProducer]):
    """`fdbqueue.FairProducer`, awaited."""

    __slots__ = ()


class FairConsumer(_Grant, FairTaking[BlockingFairConsumer]):
    """`fdbqueue.FairConsumer`, awaited."""

    __slots__ = ()


class Queue(Enqueuing[BlockingQueue], Dequeuing[BlockingQueue], AsideFace[BlockingQueue]):
    """`fdbqueue.Queue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingQueue.named)

    def producer(self) -> QueueProducer:
        """As `fdbqueue.Queue.producer`."""
        return QueueProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> QueueConsumer:
        """As `fdbqueue.Queue.consumer`."""
        return QueueConsumer.over(self._blocking.consumer(), self._hub)

    items = awaited(BlockingQueue.items)
    waiting = awaited(BlockingQueue.waiting)
    partitions = awaited(BlockingQueue.partitions)
    repartition = awaited(BlockingQueue.repartition)
    clear = awaited(BlockingQueue.clear)


class FairQueue(FairPutting[BlockingFairQueue], FairTaking[BlockingFairQueue], AsideFace[BlockingFairQueue]):
    """`fdbqueue.FairQueue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingFairQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingFairQueue.named)

    def producer(self) -> FairProducer:
        """As `fdbqueue.FairQueue.producer`."""
        return FairProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> FairConsumer:
        """As `fdbqueue.FairQueue.consumer`."""
        return FairConsumer.over(self._blocking.consumer(), self._hub)

    key_statistics = awaited(BlockingFairQueue.key_statistics)
    snapshot = awaited(BlockingFairQueue.snapshot)
    waiting = awaited(BlockingFairQueue.waiting)


class TaskQueue(Putting[BlockingTaskQueue], Taking[BlockingTaskQueue], AsideFace[BlockingTaskQueue]):
    """`fdbqueue.TaskQueue`, awaited."""

    __slots__ = ()

    create = Maker(BlockingTaskQueue.create)
    open = Maker(BlockingTaskQueue.open)

    def producer(self) -> TaskProducer:
        """As `fdbqueue.TaskQueue.producer`."""
        return TaskProducer.over(self._blocking.producer(), self._hub)

    def consumer(self) -> TaskConsumer:
        """As `fdbqueue.TaskQueue.consumer`."""
        return TaskConsumer.over(self._blocking.consumer(), self._hub)

    complete = awaited(BlockingTaskQueue.complete)
    fail = awaited(BlockingTaskQueue.fail)
    cancel = awaited(BlockingTaskQueue.cancel)
    delete = awaited(BlockingTaskQueue.delete)

    peek = awaited(BlockingTaskQueue.peek)
    wait_for_progress = awaited(BlockingTaskQueue.wait_for_progress)
    result = awaited(BlockingTaskQueue.result)
    forget_result = awaited(BlockingTaskQueue.forget_result)
    explain = awaited(BlockingTaskQueue.explain)
    holder = awaited(BlockingTaskQueue.holder)
    ended_task = awaited(BlockingTaskQueue.ended_task)
    ended_tasks = awaited(BlockingTaskQueue.ended_tasks)
    ended_tasks_of = awaited(BlockingTaskQueue.ended_tasks_of)
    paused = awaited(BlockingTaskQueue.paused)
    failures = awaited(BlockingTaskQueue.failures)
    steps = awaited(BlockingTaskQueue.steps)
    statistics = awaited(BlockingTaskQueue.statistics)
    key_statistics = awaited(BlockingTaskQueue.key_statistics)
    partitions = awaited(BlockingTaskQueue.partitions)
    waiting = awaited(BlockingTaskQueue.waiting)
    tasks = awaited(BlockingTaskQueue.tasks)

    kick = awaited(BlockingTaskQueue.kick)
    change = awaited(BlockingTaskQueue.change)
    search = awaited(BlockingTaskQueue.search)
    release_all = awaited(BlockingTaskQueue.release_all)
    release_some = awaited(BlockingTaskQueue.release_some)
    truncate = awaited(BlockingTaskQueue.truncate)
    truncate_some = awaited(BlockingTaskQueue.truncate_some)
    pause = awaited(BlockingTaskQueue.pause)
    resume = awaited(BlockingTaskQueue.resume)
    repartition = awaited(BlockingTaskQueue.repartition)
    alter = awaited(BlockingTaskQueue.alter)
    alterations = awaited(BlockingTaskQueue.alterations)
    busy = awaited(BlockingTaskQueue.busy)
    drop = awaited(BlockingTaskQueue.drop)

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """As `fdbqueue.TaskQueue.on_task_change`: `callback` is a plain function, called in a fiber."""
        return self._blocking.on_task_change(callback)


class DeadLetters(HandleFace[BlockingDeadLetters], AsideFace[BlockingDeadLetters]):
    """`fdbqueue.DeadLetters`, awaited."""

    __slots__ = ()

    open = Maker(BlockingDeadLetters.open)

    classes = awaited(BlockingDeadLetters.classes)
    tasks = awaited(BlockingDeadLetters.tasks)
    kick = awaited(BlockingDeadLetters.kick)
    kick_matching = awaited(BlockingDeadLetters.kick_matching)
    kick_some = awaited(BlockingDeadLetters.kick_some)
    edit = awaited(BlockingDeadLetters.edit)
    redrive = awaited(BlockingDeadLetters.redrive)
    begin_redrive = awaited(BlockingDeadLetters.begin_redrive)
    run_redrive = awaited(BlockingDeadLetters.run_redrive)
    step_redrive = awaited(BlockingDeadLetters.step_redrive)
    pause_redrive = awaited(BlockingDeadLetters.pause_redrive)
    resume_redrive = awaited(BlockingDeadLetters.resume_redrive)
    stop_redrive = awaited(BlockingDeadLetters.stop_redrive)
