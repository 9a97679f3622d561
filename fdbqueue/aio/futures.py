"""Futures of a transaction, to be awaited: those of either engine, one callback each.

A future of the official binding that a fiber waits for parks the fiber: this module replaces the one method
through which the binding waits. Code in a thread waits as before, so a program may use both. Code that takes
the binding's transactions (its directory layer, a program's own functions) works in a fiber as it is.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fdbqueue.aio.fiber import current_fiber
from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.runtime import LoopEvent
from fdbqueue.aio.threads import in_thread
from fdbqueue.core.open import open_cluster
from fdbqueue.core.seam import KeyValue

T = TypeVar("T")


class Ready:
    """The coroutine that awaits one future. A `Wakeable`."""

    __slots__ = ("_awaited",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._awaited: asyncio.Future[None] = loop.create_future()

    def wake(self, turn: int) -> None:  # noqa: ARG002  # it waits once
        if not self._awaited.done():
            self._awaited.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        return self._awaited.__await__()


class Future(Generic[T]):
    """The result of a step of a transaction: await it. Cancelling the await cancels the step.

    Raises: the engine's FDBError.
    """

    __slots__ = ("_hub", "_owner", "_raw")

    def __init__(self, hub: Hub, raw: Any, owner: object = None) -> None:
        """`owner`: the transaction. The binding cancels the reads of one that nothing refers to."""
        self._hub = hub
        self._raw = raw
        self._owner = owner

    def __await__(self) -> Generator[Any, None, T]:
        raw, hub = self._raw, self._hub
        hub.require_here()
        if not raw.is_ready():
            ready = Ready(hub.loop)
            raw.on_ready(lambda _: hub.wake(ready, 0))
            try:
                yield from ready.__await__()
            except (asyncio.CancelledError, GeneratorExit):  # cancelled, or its coroutine was closed
                raw.cancel()
                raise
        result: T = raw.wait()
        return result

    def is_ready(self) -> bool:
        return bool(self._raw.is_ready())

    def cancel(self) -> None:
        self._raw.cancel()

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"A future has no {name!r}, but its result may: await it first.")


class Range:
    """The rows of a range: `async for row in ...` reads them as they are needed, `await ...` gives a list."""

    __slots__ = ("_hub", "_owner", "_raw")

    def __init__(self, hub: Hub, raw: Any, owner: object) -> None:
        self._hub = hub
        self._raw = raw
        self._owner = owner

    def __await__(self) -> Generator[Any, None, list[KeyValue]]:
        return self.to_list().__await__()

    async def to_list(self) -> list[KeyValue]:
        """All rows. Raises: the engine's FDBError."""
        rows: Callable[[], list[KeyValue]] = self._raw.to_list
        return await self._hub.call(rows)

    def __aiter__(self) -> AsyncIterator[KeyValue]:
        return self._hub.iterate(lambda: self._raw)


def open_on(hub: Hub, cluster_file: str | None) -> Any:
    """The binding's database, in a fiber. Raises: ClientLibraryMissing, ClientLibraryTooOld."""
    database = in_thread(hub, partial(open_cluster, cluster_file))  # loads a library, and reads files
    let_fibers_park()
    return database


def let_fibers_park() -> None:
    """From now on, the binding's futures park the fibers that wait for them."""
    future: Any = importlib.import_module("fdb.impl").Future
    waits = future.block_until_ready
    if hasattr(waits, "__wrapped__"):
        return

    @wraps(waits)
    def block_until_ready(self: Any) -> None:
        fiber = current_fiber()
        if fiber is None:
            waits(self)
        elif not self.is_ready():
            ready = LoopEvent(hub_of(fiber.loop))
            self.on_ready(lambda _: ready.set())
            ready.wait()

    future.block_until_ready = block_until_ready
