"""Coroutine functions as handlers: they run on an event loop, which a worker without them does not need."""

import importlib
import inspect
from functools import partial
from typing import Any, Self

from fdbqueue.errors import DeferredBody

_LOOP_WORKER = "fdbqueue.aio.loop_worker"


def is_asynchronous(handler: Any) -> bool:
    """True for a coroutine function: also a partial of one, and an object with an asynchronous `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    call = inspect.getattr_static(type(handler), "__call__", None)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def loop_worker_class(handler: Any) -> Any:
    """The class of workers with an event loop. Raises DeferredBody without the extra `aio`.

    It stands above this room and needs greenlet, so it is imported by its name.
    """
    try:
        return importlib.import_module(_LOOP_WORKER).LoopWorker
    except ModuleNotFoundError as error:
        if error.name != "greenlet":
            raise
        message = (
            "handler is a coroutine function, which a worker runs only with the extra aio: "
            "pip install 'fdbqueue[aio]'. A plain function may run a coroutine with asyncio.run()."
        )
        raise DeferredBody(message, name="handler", kind="a coroutine function", got=handler) from None


class ChosenByHandler:
    """Base of the worker: the handler decides whether it has an event loop.

    A base, as the signature of a class is that of its own `__init__`, unless it has a `__new__`, too.
    """

    _chooses: bool

    def __new__(cls, *args: Any, **options: Any) -> Self:
        handler = options.get("handler", args[2] if len(args) > 2 else None)
        chosen: Any = _with_loop(cls, handler) if cls._chooses and is_asynchronous(handler) else cls
        made: Self = object.__new__(chosen)
        return made


def _with_loop(cls: type, handler: Any) -> type:
    """The class of workers with an event loop; for a subclass of the worker, a class of both."""
    with_loop: type = loop_worker_class(handler)
    return with_loop if issubclass(with_loop, cls) else type(cls.__name__, (cls, with_loop), {})
