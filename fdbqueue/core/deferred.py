"""Deferred bodies: a call of a coroutine function or a generator function runs no line of its body.

Called as a plain function, such a handler does nothing and looks as if it had succeeded. So a function is
checked where it is handed over. A plain function may still return a coroutine, as a decorated one does: its
result is checked at each call.
"""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any, TypeVar

from fdbqueue.core.errors import DeferredBody, DeferredResult, InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

IN_A_PLAIN_FUNCTION = "A plain function may run a coroutine with asyncio.run()."
NOT_YIELDING = "A plain function returns, and does not yield."

_BODIES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.isasyncgenfunction, "an asynchronous generator function"),
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
# The code of a function that contextlib.contextmanager has made.
_MANAGERS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)


def checked_function(name: str, function: F, wanted: str = "a function") -> F:
    """`function`. Raises InvalidArgument if it cannot be called, DeferredBody if a call runs no body."""
    if not callable(function):
        raise InvalidArgument(name=name, wanted=wanted, got=function)
    kind = deferred_body(function)
    if kind is not None:
        raise DeferredBody(name=name, kind=kind, got=function, cure=_cure(kind, IN_A_PLAIN_FUNCTION))
    return function


def deferred_body(function: Any) -> str | None:
    """The kind of function, if a call of it runs no body; None for a plain one."""
    while isinstance(function, partial):
        function = function.func
    # A call of an object runs a method of its class; a call of a class runs __init__.
    called = (function, inspect.getattr_static(type(function), "__call__", None))
    return next((kind for test, kind in _BODIES for part in called if test(part)), None)


def require_finished(name: str, result: T, cure: str = IN_A_PLAIN_FUNCTION) -> T:
    """`result`. Raises DeferredResult for a coroutine, another awaitable or a generator, which is closed."""
    kind = _deferred_result(result)
    if kind is None:
        return result
    try:
        # Python warns of a coroutine that is never awaited, unless it is closed.
        close = getattr(getattr(result, "gen", result), "close", None)
        if callable(close):
            close()
    finally:
        raise DeferredResult(name=name, kind=kind, cure=_cure(kind, cure))


def is_of_generator(kind: str) -> bool:
    """True for the kind of a generator function, and of its result."""
    return "generator" in kind


def _cure(kind: str, of_coroutine: str) -> str:
    return NOT_YIELDING if is_of_generator(kind) else of_coroutine


def _deferred_result(result: object) -> str | None:
    if inspect.iscoroutine(result):
        return "a coroutine"
    if inspect.isawaitable(result):
        return f"an awaitable ({type(result).__name__})"
    if isinstance(result, Generator | AsyncGenerator):
        return "a generator"
    return "a context manager of a generator" if isinstance(result, _MANAGERS) else None
