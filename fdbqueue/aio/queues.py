"""Queues: those of fdbqueue, awaited."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fdbqueue.aio.aside import AsideFace
from fdbqueue.aio.consuming import Consumption
from fdbqueue.aio.database import Database
from fdbqueue.aio.handle import HandleFace
from fdbqueue.aio.stepping import in_fiber
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import Maker, Verb, awaited, constructor_of, database_of, plain, target_of
from fdbqueue.database import Database as BlockingDatabase
from fdbqueue.fair.items import Handed
from fdbqueue.fair.queue import FairQueue as BlockingFairQueue
from fdbqueue.recipe.queue import Queue as BlockingQueue
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnySession, DatabaseOrTransaction
from fdbqueue.task import Task
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.queue import TaskQueue as BlockingTaskQueue

D = TypeVar("D")

_NOTHING: Any = object()  # an item may be equal to any default, and be None


def _release(
    queue: BlockingTaskQueue, db: BlockingDatabase, taken: Task | Sequence[Task] | None, *_: Any, **__: Any
) -> None:
    """The tasks of a cancelled take are ready again, and no attempt has ended."""
    for task in [taken] if isinstance(taken, Task) else taken or ():
        queue.give_back(db, task)


def _prepend(queue: BlockingQueue, db: BlockingDatabase, value: Any, *_: Any, **__: Any) -> None:
    if value is not _NOTHING:
        queue.give_back(db, [value])


def _prepend_all(queue: BlockingQueue, db: BlockingDatabase, values: list[Any], *_: Any, **__: Any) -> None:
    if values:
        queue.give_back(db, values)


def _put_again(
    queue: BlockingFairQueue, db: BlockingDatabase, handed: Handed | None, *_: Any, **__: Any
) -> None:
    if handed is not None:
        queue.give_back(db, handed.item, cost=handed.cost)


class Queue(AsideFace[BlockingQueue]):
    """`fdbqueue.Queue`, awaited."""

    @constructor_of(BlockingQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingQueue.named)

    enqueue = awaited(BlockingQueue.enqueue)
    enqueue_many = awaited(BlockingQueue.enqueue_many)
    _taken = Verb[Any, Any](BlockingQueue.dequeue, None, _prepend, name="dequeue")

    async def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
    ) -> Any | D | None:
        """As `fdbqueue.Queue.dequeue`."""
        found = await self._taken(tr, _NOTHING, timeout, stop=stop)
        return default if found is _NOTHING else found

    dequeue_many = awaited(BlockingQueue.dequeue_many, undo=_prepend_all)
    give_back = awaited(BlockingQueue.give_back)
    peek = awaited(BlockingQueue.peek)
    items = awaited(BlockingQueue.items)
    empty = awaited(BlockingQueue.empty)
    size = awaited(BlockingQueue.size)
    partitions = awaited(BlockingQueue.partitions)
    repartition = awaited(BlockingQueue.repartition)
    clear = awaited(BlockingQueue.clear)


class FairQueue(AsideFace[BlockingFairQueue]):
    """`fdbqueue.FairQueue`, awaited."""

    @constructor_of(BlockingFairQueue)
    def __init__(self) -> None: ...

    put = awaited(BlockingFairQueue.put)

    async def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """As `fdbqueue.FairQueue.get`."""
        return (await self.take_item(tr, timeout, stop=stop))[1]

    _taken = Verb[Any, Handed | None](BlockingFairQueue._take_handed, None, _put_again, name="_take_handed")

    async def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """As `fdbqueue.FairQueue.take_item`."""
        handed = await self._taken(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    give_back = awaited(BlockingFairQueue.give_back)
    size = awaited(BlockingFairQueue.size)
    key_statistics = awaited(BlockingFairQueue.key_statistics)
    snapshot = awaited(BlockingFairQueue.snapshot)


class TaskQueue(HandleFace[BlockingTaskQueue]):
    """`fdbqueue.TaskQueue`, awaited."""

    create = Maker(BlockingTaskQueue.create)
    open = Maker(BlockingTaskQueue.open)

    put = awaited(BlockingTaskQueue.put)
    put_many = awaited(BlockingTaskQueue.put_many)
    take = awaited(BlockingTaskQueue.take, undo=_release)
    take_many = awaited(BlockingTaskQueue.take_many, undo=_release)
    end_waits = awaited(BlockingTaskQueue.end_waits)

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
        return Consumption(self, database_of(db), {"timeout": timeout, "session": session, "stop": stop})

    ack = awaited(BlockingTaskQueue.ack)
    release = awaited(BlockingTaskQueue.release)
    defer = awaited(BlockingTaskQueue.defer)
    touch = awaited(BlockingTaskQueue.touch)
    bury = awaited(BlockingTaskQueue.bury)
    cancel = awaited(BlockingTaskQueue.cancel)
    delete = awaited(BlockingTaskQueue.delete)

    give_back = awaited(BlockingTaskQueue.give_back)
    renew = awaited(BlockingTaskQueue.renew)
    progress = awaited(BlockingTaskQueue.progress)

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

    exhaust = awaited(BlockingTaskQueue.exhaust)
    excuse = awaited(BlockingTaskQueue.excuse)

    peek = awaited(BlockingTaskQueue.peek)
    wait_for_progress = awaited(BlockingTaskQueue.wait_for_progress)
    result = awaited(BlockingTaskQueue.result)
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
    tasks = awaited(BlockingTaskQueue.tasks)

    kick = awaited(BlockingTaskQueue.kick)
    release_all = awaited(BlockingTaskQueue.release_all)
    release_some = awaited(BlockingTaskQueue.release_some)
    truncate = awaited(BlockingTaskQueue.truncate)
    truncate_some = awaited(BlockingTaskQueue.truncate_some)
    pause = awaited(BlockingTaskQueue.pause)
    resume = awaited(BlockingTaskQueue.resume)
    repartition = awaited(BlockingTaskQueue.repartition)
    busy = awaited(BlockingTaskQueue.busy)
    drop = awaited(BlockingTaskQueue.drop)

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """As `fdbqueue.TaskQueue.on_task_change`: `callback` is a plain function, called in a fiber."""
        return self._blocking.on_task_change(callback)
