"""The decorator: a function of a transaction becomes a function of a transaction or a database."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from fdbqueue.database import is_transaction, run

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
    """Make `function` run in a transaction of the database that it is given as `parameter`.

    Given a database (ours or the binding's): create a transaction, run, commit, retry; the function may
    run several times. Given a transaction: just run in it, the caller commits. The argument may be passed
    by position or by keyword. `retry_limit` counts retries, `timeout_s` is in seconds over all of them;
    neither means for ever, as in the binding, whose contract this is.

    Raises TypeError at decoration for a generator or coroutine function (its body would run after the
    commit) and for a function without that parameter; NotADatabase when called with anything else.
    """

    def decorate(inner: F) -> F:
        _refuse_deferred_bodies(inner)
        position = _position_of(inner, parameter)

        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            by_keyword = parameter in kwargs
            if not by_keyword and len(args) <= position:
                return inner(*args, **kwargs)  # Python's own TypeError for the missing argument
            target = kwargs[parameter] if by_keyword else args[position]
            if is_transaction(target):
                return inner(*args, **kwargs)

            def body(tr: Any) -> Any:
                if by_keyword:
                    return inner(*args, **{**kwargs, parameter: tr})
                return inner(*args[:position], tr, *args[position + 1 :], **kwargs)

            return run(target, body, retry_limit=retry_limit, timeout_s=timeout_s)

        return wrapper  # type: ignore[return-value]  # functools.wraps keeps the signature

    return decorate if function is None else decorate(function)


def _refuse_deferred_bodies(function: Callable[..., Any]) -> None:
    if (
        inspect.isgeneratorfunction(function)
        or inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TypeError(
            f"{function.__qualname__} cannot be transactional: "
            "a generator's or coroutine's body would run after the commit"
        )


def _position_of(function: Callable[..., Any], parameter: str) -> int:
    names = list(inspect.signature(function).parameters)
    if parameter not in names:
        raise TypeError(f"{function.__qualname__} has no parameter {parameter!r} to take the transaction")
    return names.index(parameter)
