"""Futures of a transaction, to be awaited: those of either engine, one callback each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fdbqueue.aio.hub import Hub
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
