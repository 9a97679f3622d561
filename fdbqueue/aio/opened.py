"""Objects that read the database when they are made: await them, or enter them."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.verbs import Face, awaited, named_after, place_of, plain, plain_each
from fdbqueue.core.sessions.session import Session as BlockingSession

P = ParamSpec("P")
B = TypeVar("B")


class Opened(Face[B]):
    """A face that has its blocking object once it was awaited or entered."""

    __slots__ = ("_open", "_opening")

    _open: Callable[[], Any] | None
    """Makes the blocking object; None once it is made."""
    _opening: asyncio.Lock

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def _opened(self) -> Self:
        async with self._opening:  # a second await at once waits for the first
            if self._open is not None:
                hub = self._hub
                assert hub is not None, "the database of a face that is opened has one"
                # A cancelled opening goes on to its end: only then it is known what there is to undo.
                self._blocking = await hub.call(self._open, Unheard(), self._undo)
                self._open = None
        return self

    async def __aenter__(self) -> Self:
        return await self._opened()

    @abstractmethod
    async def __aexit__(self, *exc: object) -> None: ...

    @staticmethod
    def _undo(blocking: Any) -> None:
        """End the object of a cancelled opening."""


def opened_as(
    blocking_class: Callable[P, Any],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """Make `__init__` of a face. The await of the face makes the blocking object."""

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        def construct(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            _, self._hub = place_of(None, args, kwargs)
            self._open = partial(blocking_class, *map(plain, args), **plain_each(kwargs))
            self._opening = asyncio.Lock()

        return named_after(construct, blocking_class)

    return decorate


class Session(Opened[BlockingSession]):
    """`fdbqueue.Session`, awaited: `async with aio.Session(db, "worker-1") as session`."""

    __slots__ = ()

    @opened_as(BlockingSession)
    def __init__(self) -> None: ...

    end = awaited(BlockingSession.end, finishes=True)
    end_within = awaited(BlockingSession.end_within, finishes=True)
    beat = awaited(BlockingSession.beat)
    beat_if_due = awaited(BlockingSession.beat_if_due)

    @property
    def name(self) -> str | None:
        return self._blocking.name

    @property
    def ttr(self) -> float:
        """Seconds after the last heartbeat for which its tasks stay taken."""
        return self._blocking.ttr

    @property
    def lost(self) -> bool:
        """True once the session has ended, or was taken away."""
        return self._blocking.lost

    @staticmethod
    def _undo(blocking: BlockingSession) -> None:
        blocking.end()

    async def __aexit__(self, *exc: object) -> None:
        await self.end()
