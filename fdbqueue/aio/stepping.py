"""Steps whose functions are coroutine functions: each runs as a task of the loop, while its fiber waits."""

import inspect
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

from fdbqueue.aio.hub import Hub
from fdbqueue.aio.runtime import LoopEvent
from fdbqueue.core.deferred import checked_function


def in_fiber(hub: Hub, function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """Return `function` as a blocking one. It is called with `given`, in place of the blocking arguments.

    Raises InvalidArgument; DeferredBody for a generator function.
    """
    if not inspect.iscoroutinefunction(function):
        checked_function("function", function)
    return partial(_run, hub, function, given)


def _run(hub: Hub, function: Callable[..., Any], given: tuple[Any, ...], *_: Any) -> Any:
    result = function(*given)
    return _finished(hub, result) if inspect.iscoroutine(result) else result


def _finished(hub: Hub, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Park until the coroutine has ended. If this call is interrupted, the coroutine is cancelled."""
    ended = LoopEvent(hub)
    running = hub.loop.create_task(coroutine, context=copy_context())
    running.add_done_callback(lambda _: ended.set())
    try:
        ended.wait()
    except BaseException:
        running.cancel()
        ended.wait()
        raise
    return running.result()
