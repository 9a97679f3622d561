"""Coroutine functions as handlers: they run on an event loop, which a worker without them does not need."""

import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from fdbqueue.core.database import Database, Handle
from fdbqueue.core.errors import DeferredBody
from fdbqueue.tasks.queue import TaskQueue

_LOOP_WORKER = "fdbqueue.aio.worker"


def is_asynchronous(handler: Any) -> bool:
    """True for a coroutine function: also a partial of one, and an object with an asynchronous `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    call = inspect.getattr_static(type(handler), "__call__", None)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def loop_worker_class(handler: Any) -> Any:
    """The class of workers with an event loop. Raises DeferredBody without the extra `aio`. It stands above
    this room and needs greenlet, so it is imported by its name.
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


class ChosenByHandler(Handle):
    """Base of the worker: the handler decides whether it has an event loop. A base, as the signature of a
    class is that of its own `__init__`, unless it has a `__new__`, too.
    """

    __slots__ = (
        "_appearance",
        "_at_once",
        "_database",
        "_emptied",
        "_ended",
        "_error",
        "_feed",
        "_freed",
        "_handler",
        "_heartbeat",
        "_name",
        "_no_ground",
        "_no_tasks",
        "_options",
        "_overrun",
        "_pool",
        "_queues",
        "_root",
        "_run_id",
        "_runtime",
        "_session",
        "_settling",
        "_since",
        "_starting",
        "_state",
        "_stopped",
        "_telling",
    )
    """All state of a worker."""

    _chooses: bool = True
    _database: Database
    _queues: Sequence[tuple[TaskQueue, int]]
    _state: str

    def __new__(cls, *args: Any, **options: Any) -> Self:
        handler = options.get("handler", args[2] if len(args) > 2 else None)
        chosen: Any = _with_loop(cls, handler) if cls._chooses and is_asynchronous(handler) else cls
        made: Self = object.__new__(chosen)
        return made

    def _shown(self) -> dict[str, Any]:
        queues = [queue.name for queue, _ in self._queues]
        return {"queues": queues, "state": self._state, **self._database._shown()}


def _with_loop(cls: type, handler: Any) -> type:
    """The class of workers with an event loop; for a subclass of the worker, a class of both."""
    with_loop: type = loop_worker_class(handler)
    return with_loop if issubclass(with_loop, cls) else type(cls.__name__, (cls, with_loop), {})
