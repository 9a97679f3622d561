"""Blocking work of fibers that cannot park, done in threads."""

from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.aio.hub import Hub
from fdbqueue.aio.runtime import LoopEvent

T = TypeVar("T")


class Job:
    """A function to be run in another thread, and its end."""

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
        """Park until the function has returned, and return its result. Raises: its errors.

        An interrupt is raised after that, as the work goes on without the fiber.
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
