"""Work that a fiber waits for: blocking work in a thread, and a coroutine in a task of the loop."""

import inspect
from asyncio import Task
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from fdbqueue.aio.hub import Hub
from fdbqueue.aio.runtime import LoopEvent
from fdbqueue.core.arguments import checked_function

T = TypeVar("T")


class Job:
    __slots__ = ("_done", "_error", "_function", "_result")

    def __init__(self, hub: Hub, function: Callable[[], Any]) -> None:
        self._function = function
        self._done = LoopEvent(hub)
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # `result` raises it in the fiber that waits
            self._error = error
        self._done.set()

    def result(self) -> Any:
        """Park until the function has returned, and return its result. Raises: its errors. An interrupt is
        raised after that, as the work goes on without the fiber.
        """
        try:
            self._done.wait()
        except BaseException:
            self._done.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._result


def in_thread(hub: Hub, function: Callable[[], T]) -> T:
    """Run `function` in a thread of its own, and park until it returns. Raises: its errors."""
    job = Job(hub, function)
    hub.runtime.spawn(job.run, "fdbqueue-aio")
    result: T = job.result()
    return result


def in_fiber(hub: Hub, function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """`function` as a blocking one, which is called with `given`. Raises InvalidArgument, DeferredBody."""
    if not inspect.iscoroutinefunction(function):
        checked_function("function", function)
    return partial(_run, hub, function, given)


def _run(hub: Hub, function: Callable[..., Any], given: tuple[Any, ...], *_: Any) -> Any:
    result = function(*given)
    if not inspect.iscoroutine(result):
        return result
    running = hub.loop.create_task(result, context=copy_context())
    park_until_done(hub, running)
    return running.result()


def park_until_done(hub: Hub, running: Task[Any]) -> None:
    """Park until the task has ended. If this call is interrupted, the task is cancelled."""
    ended = LoopEvent(hub)
    running.add_done_callback(lambda _: ended.set())
    try:
        ended.wait()
    except BaseException:
        running.cancel()
        ended.wait()
        raise
