"""Functions with a body that their call does not run, and functions that return unfinished work."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from fdbqueue import Hooks


async def coroutine(*_: Any) -> None: ...


def generator(*_: Any) -> Any:
    yield


async def async_generator(*_: Any) -> Any:
    yield


class AsyncCall:
    async def __call__(self, *_: Any) -> None: ...

    async def method(self, *_: Any) -> None: ...


class GeneratorCall:
    def __call__(self, *_: Any) -> Any:
        yield


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines: its wrapper is a plain function."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for coroutine functions: its wrapper is one."""

    @functools.wraps(function)
    async def wrapper(*arguments: Any) -> Any:
        return await function(*arguments)

    return wrapper


class Promise:
    """An awaitable that is no coroutine."""

    def __await__(self) -> Any:
        yield


REFUSED: dict[str, Any] = {
    "coroutine": coroutine,
    "generator": generator,
    "async_generator": async_generator,
    "lambda": lambda *_: (yield),
    "async_call": AsyncCall(),
    "generator_call": GeneratorCall(),
    "async_method": AsyncCall().method,
    "partial": functools.partial(coroutine, 1),
    "partial_of_a_partial": functools.partial(functools.partial(AsyncCall(), 1), 2),
    "async_wrapper": timed(coroutine),
}
RETURNING: dict[str, Any] = {
    "coroutine": lambda *_: coroutine(),
    "sync_wrapper": logged(coroutine),
    "cached": functools.lru_cache(coroutine),
    "generator": lambda *_: generator(),
    "generator_expression": lambda *_: (n for n in range(3)),
    "async_generator": lambda *_: async_generator(),
    "awaitable": lambda *_: Promise(),
    "context_manager": contextlib.contextmanager(generator),
    "async_context_manager": contextlib.asynccontextmanager(async_generator),
}


# Named by tests of fleets.
def async_factory(_: Any) -> Any:
    return coroutine()


def factory_of_generator(_: Any) -> Any:
    return generator


def make_hooks() -> Hooks:
    return Hooks(buried=coroutine)  # type: ignore[arg-type]
