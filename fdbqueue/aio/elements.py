"""Element queues and persistent queues, awaited. In place of a thread, these know the task that awaits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from fdbqueue.aio.database import Database, Transaction
from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.verbs import (
    AsideFace,
    Face,
    Iteration,
    Maker,
    Opened,
    awaited,
    constructor_of,
    giving,
    opened_as,
    plain,
    target_of,
)
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.queues.elements.base import ElementBase, LockToken
from fdbqueue.queues.elements.queue import ElementQueue as BlockingElementQueue
from fdbqueue.queues.elements.queue import NullQueue as BlockingNullQueue
from fdbqueue.queues.elements.queue import QueueSet as BlockingQueueSet
from fdbqueue.queues.elements.queue import SimpleElementQueue as BlockingSimpleElementQueue
from fdbqueue.queues.persistent import PersistentQueue as BlockingPersistentQueue
from fdbqueue.queues.persistent import Proxy as BlockingProxy

E = TypeVar("E", bound=ElementBase)

Pair = tuple["ElementFace[Any] | NullQueue", str] | tuple[None, None]


def _unlock(
    queue: ElementBase, db: BlockingDatabase, locked: LockToken | bool | None, name: str, *_: Any, **__: Any
) -> None:
    if locked:
        token = locked if isinstance(locked, str) else None
        queue.unlock(db, name, permissive=True, token=token)


class ElementFace(AsideFace[E]):
    """The verbs that all element queues have. One task at a time may use the cursor of an object."""

    __slots__ = ()

    acquire = awaited(ElementBase.acquire, undo=_unlock)
    lock = awaited(ElementBase.lock, undo=_unlock)
    unlock = awaited(ElementBase.unlock)
    touch = awaited(ElementBase.touch)
    remove = awaited(ElementBase.remove)
    count = awaited(ElementBase.count)
    first = awaited(ElementBase.first)
    next = awaited(ElementBase.next)
    names = Iteration(ElementBase.names)
    purge = awaited(ElementBase.purge)

    @property
    def id(self) -> str:
        """The same for all objects on the same queue."""
        return self._blocking.id

    @property
    def path(self) -> str:
        return self._blocking.path

    def copy(self) -> Self:
        """An independent object on the same queue, without a pass."""
        return self.over(self._blocking.copy(), self._hub)


class ElementQueue(ElementFace[BlockingElementQueue]):
    """`fdbqueue.ElementQueue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingElementQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingElementQueue.named)
    add = awaited(BlockingElementQueue.add)
    enqueue = awaited(BlockingElementQueue.enqueue)
    get = awaited(BlockingElementQueue.get)
    dequeue = awaited(BlockingElementQueue.dequeue)
    get_element = awaited(BlockingElementQueue.get_element)


class SimpleElementQueue(ElementFace[BlockingSimpleElementQueue]):
    """`fdbqueue.SimpleElementQueue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingSimpleElementQueue)
    def __init__(self) -> None: ...

    named = Maker(BlockingSimpleElementQueue.named)
    add = awaited(BlockingSimpleElementQueue.add)
    add_ref = awaited(BlockingSimpleElementQueue.add_ref)
    add_path = awaited(BlockingSimpleElementQueue.add_path)
    enqueue = awaited(BlockingSimpleElementQueue.enqueue)
    get = awaited(BlockingSimpleElementQueue.get)
    get_ref = awaited(BlockingSimpleElementQueue.get_ref)
    get_path = awaited(BlockingSimpleElementQueue.get_path)
    dequeue = awaited(BlockingSimpleElementQueue.dequeue)
    get_element = awaited(BlockingSimpleElementQueue.get_element)


class NullQueue(ElementFace[Any]):
    """`fdbqueue.NullQueue`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingNullQueue)
    def __init__(self) -> None: ...

    add = awaited(BlockingNullQueue.add)
    add_ref = awaited(BlockingNullQueue.add_ref)
    add_path = awaited(BlockingNullQueue.add_path)
    enqueue = awaited(BlockingNullQueue.enqueue)
    get = awaited(BlockingNullQueue.get)
    get_ref = awaited(BlockingNullQueue.get_ref)
    get_path = awaited(BlockingNullQueue.get_path)


class QueueSet(Face[BlockingQueueSet]):
    """`fdbqueue.QueueSet`, awaited. Its members are element queues of fdbqueue.aio."""

    __slots__ = ()

    @constructor_of(BlockingQueueSet)
    def __init__(self) -> None: ...

    count = awaited(BlockingQueueSet.count)

    def add(self, *queues: Any) -> None:
        """Add copies of more queues, all or none; a new pass begins. Raises WrongType, QueueInSet."""
        self._blocking.add(*map(plain, queues))

    def remove(self, queue: ElementFace[Any]) -> None:
        """Take a queue out, also in the middle of a pass; no effect if it is not in. Raises WrongType."""
        self._blocking.remove(plain(queue))

    async def first(self, tr: Database | Transaction) -> Pair:
        """Start a pass: the first element of all queues, with its queue; (None, None) if there is none."""
        return _pair(await target_of(tr).run_blocking(self._blocking.first))

    async def next(self, tr: Database | Transaction) -> Pair:
        """The next element of the pass; (None, None) at its end, or if there is no pass."""
        return _pair(await target_of(tr).run_blocking(self._blocking.next))

    async def names(self, tr: Database | Transaction) -> AsyncIterator[Pair]:
        """Every element: a pass, with the same cursor as `first` and `next`."""
        pair = await self.first(tr)
        while pair[0] is not None:
            yield pair
            pair = await self.next(tr)


def _pair(found: tuple[Any, Any]) -> Pair:
    queue, name = found
    if isinstance(queue, BlockingElementQueue):
        return ElementQueue.over(queue, None), name
    if isinstance(queue, BlockingSimpleElementQueue):
        return SimpleElementQueue.over(queue, None), name
    return queue, name


B = TypeVar("B", bound=BlockingProxy)


class ProxyFace(Face[B]):
    """The verbs of a persistent queue and of its proxies."""

    __slots__ = ()

    put = awaited(BlockingProxy.put)
    put_nowait = awaited(BlockingProxy.put_nowait)
    get = awaited(BlockingProxy.get)
    get_nowait = awaited(BlockingProxy.get_nowait)
    ack = awaited(BlockingProxy.ack)
    task_done = awaited(BlockingProxy.task_done)
    join = awaited(BlockingProxy.join)
    qsize = awaited(BlockingProxy.qsize)
    empty = awaited(BlockingProxy.empty)
    full = awaited(BlockingProxy.full)
    close = awaited(BlockingProxy.close, finishes=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Commit the gets, puts and acks of this task inside the block together, at its end."""
        hub = self._hub
        assert hub is not None, "a proxy has the hub of its database"
        block = self._blocking.transaction()
        await hub.call(block.__enter__)
        try:
            yield self
        except BaseException as error:
            left = partial(block.__exit__, type(error), error, error.__traceback__)
            if not await hub.call(left, Unheard()):
                raise
        else:
            # A cancel interrupts a commit that waits for room: then nothing has happened.
            await hub.call(lambda: block.__exit__(None, None, None))

    @property
    def name(self) -> str:
        return self._blocking.name

    @property
    def maxsize(self) -> int:
        return self._blocking.maxsize

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        self._blocking.maxsize = maxsize

    @property
    def id(self) -> str | None:
        return self._blocking.id

    @property
    def unacked(self) -> list[Any]:
        """The items that were fetched here, and are not acked."""
        return self._blocking.unacked

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Proxy(ProxyFace[BlockingProxy]):
    """`fdbqueue.Proxy`, awaited: `async with await queue.connect() as proxy`."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self


class PersistentQueue(
    ProxyFace[BlockingPersistentQueue], Opened[BlockingPersistentQueue], AsideFace[BlockingPersistentQueue]
):
    """`fdbqueue.PersistentQueue`, awaited: `async with aio.PersistentQueue(db, "spool") as spool`."""

    __slots__ = ()

    @opened_as(BlockingPersistentQueue)
    def __init__(self) -> None: ...

    connect = giving(Proxy, BlockingPersistentQueue.connect)

    @staticmethod
    def _undo(blocking: BlockingPersistentQueue) -> None:
        blocking.close()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
