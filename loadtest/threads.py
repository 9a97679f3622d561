"""Library calls in OS threads, while the greenlets that asked for them sleep."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gevent.threadpool import ThreadPool

# A call that waits for an item holds its thread, so there is one for every user of a process.
USERS_PER_PROCESS_MAX = 1_000


@dataclass(frozen=True)
class Done:
    """A call that is over: its answer or its error, and the time it took in its thread."""

    name: str
    answer: Any
    error: Exception | None
    latency_ms: float


class Threads:
    def __init__(self, count_max: int = USERS_PER_PROCESS_MAX) -> None:
        self._pool = ThreadPool(count_max)

    def run(self, work: Callable[[], Any]) -> Any:
        """What `work` returns or raises, in an OS thread; only the calling greenlet waits.

        A greenlet that is killed stops waiting, and the work goes on: `join` waits for it.
        """
        return self._pool.spawn(work).get()

    def join(self) -> None:
        """Wait for all work, also of greenlets that are gone."""
        self._pool.join()


def timed(name: str, work: Callable[[], Any]) -> Done:
    """Do `work` here and now: the way to a thread and back is Locust's, and is not counted."""
    started = time.perf_counter()
    answer, error = None, None
    try:
        answer = work()
    except Exception as raised:
        error = raised
    return Done(name, answer, error, (time.perf_counter() - started) * 1_000)
