"""Persistent queues, awaited. Where the blocking classes know a thread, these know the task that awaits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar

from fdbqueue.aio.handle import AsideFace
from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.opened import Opened, opened_as
from fdbqueue.aio.verbs import Face, awaited, giving
from fdbqueue.queues.persistent.proxy import Proxy as BlockingProxy
from fdbqueue.queues.persistent.queue import PersistentQueue as BlockingPersistentQueue

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
