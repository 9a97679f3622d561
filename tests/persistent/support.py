"""Common parts of the tests of persistent queues."""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from fdbqueue import PersistentQueue, Proxy
from tests.support import PATIENCE_S


def filled(queue: PersistentQueue, items: Iterable[Any]) -> PersistentQueue:
    for item in items:
        queue.put(item)
    return queue


def fetched(proxy: Proxy, count: int) -> list[Any]:
    return [proxy.get_nowait() for _ in range(count)]


def drained(proxy: Proxy) -> list[Any]:
    """Everything that waits, acked."""
    items = []
    while not proxy.empty():
        items.append(proxy.get_nowait())
        proxy.task_done()
    return items


class Running:
    """A function in a thread of its own; `result()` returns its result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._function())
        except BaseException as error:
            self._error = error

    @property
    def is_waiting(self) -> bool:
        """Whether it has not ended within a moment."""
        self.thread.join(0.15)
        return self.thread.is_alive()

    def result(self) -> Any:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "it never ended"
        if self._error is not None:
            raise self._error
        return self._outcome[0]
