"""`transactional` with the binding's own contract, for programs written for the binding.

New code takes `fdbqueue.transactional`, which has limits and accepts keywords. This one must not be stricter
than the binding's, and knows only the classes of the engine.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from fdbqueue.fdberror import FDBError

F = TypeVar("F", bound=Callable[..., Any])


@overload
def transactional(function: F, /) -> F: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[F], F]: ...


def transactional(function: F | None = None, /, *, parameter: str = "tr") -> F | Callable[[F], F]:
    """Run the function in a transaction of the database given as `tr`, retrying until it commits."""

    def decorate(inner: F) -> F:
        position = inspect.getfullargspec(inspect.unwrap(inner)).args.index(parameter)

        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(inner):
                raise ValueError("Generators can not be wrapped with fdb.transactional")
            if hasattr(args[position], "get_read_version"):
                return inner(*args, **kwargs)
            tr = args[position].create_transaction()
            return _until_committed(tr, inner, (*args[:position], tr, *args[position + 1 :]), kwargs)

        return wrapper  # type: ignore[return-value]  # functools.wraps keeps the signature

    return decorate if function is None else decorate(function)


def _until_committed(tr: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    while True:
        try:
            result = function(*args, **kwargs)
            if inspect.isgenerator(result):
                raise ValueError("Generators can not be wrapped with fdb.transactional")
            tr.commit().wait()
            return result
        except FDBError as error:
            tr.on_error(error.code).wait()
