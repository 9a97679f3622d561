"""The decorator: a function of a transaction becomes a function of a transaction or a database."""

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    checked_text,
    checked_timeout,
    checked_whole,
    deferred_body,
    require_finished,
)
from fdbqueue.core.database import is_transaction, run
from fdbqueue.core.errors import DeferredBody, WrongType
from fdbqueue.core.seam import Awaited
from fdbqueue.core.visible import shown

F = TypeVar("F", bound=Callable[..., Any])


@overload
def transactional(function: F, /) -> F: ...
@overload
def transactional(
    *, parameter: str = "tr", retry_limit: int | None = None, timeout_s: float | None = None
) -> Callable[[F], F]: ...


def transactional(
    function: F | None = None,
    /,
    *,
    parameter: str = "tr",
    retry_limit: int | None = None,
    timeout_s: float | None = None,
) -> F | Callable[[F], F]:
    """Make `function` run in a transaction, whether its `parameter` is given a database or a transaction.

    Given a database, ours or the binding's, a call creates a transaction, runs the function and commits.
    After a conflict it retries, so the function may run several times. Given a transaction, a call only runs
    the function, and the caller commits. The argument may be passed by position or by keyword.

    `retry_limit` is the number of retries, `timeout_s` the time for all of them; None is no limit. The
    decorator of the binding has the same contract. For a type checker the function keeps its signature.

    Given a database or a transaction of `fdbqueue.aio`, a call returns an awaitable, and the function itself
    still gets a blocking transaction.

    At decoration, raises: DeferredBody for a generator or coroutine function, as its body would run after the
    commit; WrongType for a function without the parameter; InvalidArgument for a limit below 0.
    In a call, raises: NotADatabase for an argument of another type; DeferredResult if the function returns a
    coroutine or a generator, and then nothing is committed.
    """
    check_options(parameter, retry_limit, timeout_s)

    limited = partial(run, retry_limit=retry_limit, timeout_s=timeout_s)
    if function is None:
        return lambda inner: _decorated(inner, parameter, limited)
    return _decorated(function, parameter, limited)


def check_options(parameter: str, retry_limit: int | None, timeout_s: float | None) -> None:
    """Check the options of the decorator. Raises: InvalidArgument."""
    checked_text("parameter", parameter, limits.QUEUE_NAME_BYTES_MAX)
    if retry_limit is not None:
        checked_whole("retry_limit", retry_limit, 0)
    if timeout_s is not None:
        checked_timeout(timeout_s, "timeout_s")


def _decorated(inner: F, parameter: str, run_limited: Callable[..., Any]) -> F:
    if not callable(inner):
        raise WrongType(name="function", wanted="a function", got=inner)
    _refuse_deferred_bodies(inner)
    position = position_of(inner, parameter)

    @functools.wraps(inner)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        by_keyword = parameter in kwargs
        if not by_keyword and len(args) <= position:
            return inner(*args, **kwargs)  # Python's own TypeError for the missing argument
        target = kwargs[parameter] if by_keyword else args[position]

        def call_with(function: Callable[..., Any], tr: Any) -> Any:
            if by_keyword:
                return function(*args, **{**kwargs, parameter: tr})
            return function(*args[:position], tr, *args[position + 1 :], **kwargs)

        if isinstance(target, Awaited):
            return target.run_blocking(partial(call_with, wrapper))
        if is_transaction(target):
            return inner(*args, **kwargs)
        return run_limited(target, lambda tr: require_finished(_name_of(inner), call_with(inner, tr)))

    return wrapper  # type: ignore[return-value]  # functools.wraps keeps the signature


def _refuse_deferred_bodies(function: Callable[..., Any]) -> None:
    kind = deferred_body(function)
    if kind is not None:
        message = (
            f"{_name_of(function)} cannot be transactional: the body of {kind} would run after the commit"
        )
        raise DeferredBody(message, name="function", kind=kind, got=function)


def position_of(function: Callable[..., Any], parameter: str) -> int:
    """The index of a function's parameter. Raises: WrongType if it has none of that name."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # functions in C may have no signature
        names = []
    if parameter not in names:
        message = f"{_name_of(function)} has no parameter {parameter!r} to take the transaction"
        raise WrongType(message, name="function", wanted="a function of a transaction", got=function)
    return names.index(parameter)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or shown(function))
