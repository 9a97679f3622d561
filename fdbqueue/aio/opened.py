"""Objects that read the database when they are made: await them, or enter them."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fdbqueue.aio.hub import Unheard
from fdbqueue.aio.verbs import Face, named_after, place_of, plain, plain_each

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
