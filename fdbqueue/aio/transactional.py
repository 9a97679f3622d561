"""The decorator of coroutine functions of a transaction."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from fdbqueue.aio.database import Database, Transaction
from fdbqueue.aio.verbs import database_of
from fdbqueue.core import observing
from fdbqueue.core.database import limit_attempts
from fdbqueue.core.errors import WrongType
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.transactional import check_options, position_of

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


# For a type checker, the decorated function takes a database in place of its transaction.
@overload
def transactional(  # type: ignore[overload-overlap]  # a method of a Transaction would be both
    function: Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]], /
) -> Callable[Concatenate[Transaction | Database, P], Coroutine[Any, Any, R]]: ...
@overload  # for a method
def transactional(
    function: Callable[Concatenate[S, Transaction, P], Coroutine[Any, Any, R]], /
) -> Callable[Concatenate[S, Transaction | Database, P], Coroutine[Any, Any, R]]: ...
@overload
def transactional(
    function: None = None,
    /,
    *,
    parameter: str = "tr",
    retry_limit: int | None = None,
    timeout_s: float | None = None,
) -> Callable[
    [Callable[Concatenate[Transaction, P], Coroutine[Any, Any, R]]],
    Callable[Concatenate[Transaction | Database, P], Coroutine[Any, Any, R]],
]: ...
def transactional(
    function: Callable[..., Any] | None = None,
    /,
    *,
    parameter: str = "tr",
    retry_limit: int | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Make a coroutine function run in a transaction, whether its `parameter` is a database or a transaction.

    Given an `aio.Database`, a call creates an `aio.Transaction`, runs the function and commits. After a
    conflict it retries, so the function may run several times. Given an `aio.Transaction`, a call only runs
    the function. The arguments are those of `fdbqueue.transactional`, which is for blocking functions.

    At decoration, raises: WrongType for a function without the parameter, or one that is no coroutine
    function; InvalidArgument for a limit below 0.
    In a call, raises: WrongFace for a blocking database or transaction; NotADatabase for another argument.
    """
    check_options(parameter, retry_limit, timeout_s)

    def decorate(inner: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(inner):
            raise WrongType(name="function", wanted="a coroutine function (async def)", got=inner)
        position = position_of(inner, parameter)

        @functools.wraps(inner)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            by_keyword = parameter in kwargs
            if not by_keyword and len(args) <= position:
                return await inner(*args, **kwargs)  # Python's own TypeError for the missing argument
            target = kwargs[parameter] if by_keyword else args[position]
            if isinstance(target, Transaction):
                return await inner(*args, **kwargs)

            async def body(tr: Transaction) -> Any:
                if by_keyword:
                    return await inner(*args, **{**kwargs, parameter: tr})
                return await inner(*args[:position], tr, *args[position + 1 :], **kwargs)

            return await _run(target, body, retry_limit, timeout_s)

        return wrapper

    return decorate if function is None else decorate(function)


async def _run(
    target: Any,
    body: Callable[[Transaction], Coroutine[Any, Any, R]],
    retry_limit: int | None,
    timeout_s: float | None,
) -> R:
    """As `fdbqueue.core.database.run`, for a body that awaits."""
    database = database_of(target)
    tr, counters = database.create_transaction(), database.counters
    manner = database.blocking.manner
    attempts = None if manner is None else manner.attempts(database.blocking, retry_limit, timeout_s)
    if attempts is None:
        limit_attempts(tr.options, retry_limit, timeout_s)
    while True:
        try:
            if attempts is not None:
                attempts.begin(tr.blocking)
            result = await body(tr)
            await tr.commit()
            counters.commits += 1
            if observing.observers:
                observing.tell_committed()
            return result
        except engine_errors() as error:
            counters.note_error(error.code)
            await tr.on_error(error)
