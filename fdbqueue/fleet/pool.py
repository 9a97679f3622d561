"""Pool: a fixed number of threads, each idle or at one job."""

from collections.abc import Callable
from typing import Generic, TypeVar

from fdbqueue.runtime import Event, Runtime

J = TypeVar("J")


class Pool(Generic[J]):
    """`work(job)` must not raise, and says whether its thread goes on: False if it has been replaced. Jobs
    are given by one thread, which knows that there is an idle one.
    """

    def __init__(self, runtime: Runtime, size: int, work: Callable[[J], bool], freed: Event) -> None:
        """`freed` is set whenever a thread has become idle; whoever else sets it ends a wait."""
        self._runtime = runtime
        self._work = work
        self._lock = runtime.lock()
        self._freed = freed
        self._ended = False
        self._idle: list[_Seat[J]] = []
        self.size = size
        for _ in range(size):
            self._hire()

    def free(self) -> int:
        return len(self._idle)

    def wait_for_free(self, timeout_s: float | None) -> int:
        """How many threads are idle, waiting for the first; none, perhaps."""
        if not self._idle:
            self._freed.wait(timeout_s)
            self._freed.clear()
        return len(self._idle)

    def wait_for_all(self, timeout_s: float) -> bool:
        """Whether all threads are idle, at most `timeout_s` later."""
        until = self._runtime.monotonic() + timeout_s
        while len(self._idle) < self.size:
            left_s = until - self._runtime.monotonic()
            if left_s <= 0:
                return False
            self._freed.wait(left_s)
            self._freed.clear()
        return True

    def give(self, job: J) -> None:
        with self._lock:
            seat = self._idle.pop()
        seat.job = job
        seat.given.set()

    def replace(self, instead: Callable[[], None]) -> None:
        """Give up a thread, whose `work` will return False, if ever: one more is hired, which does `instead`
        first.
        """
        self._hire(first=instead)

    def end(self) -> None:
        """Idle threads end now, the others with their jobs."""
        with self._lock:
            self._ended, idle = True, self._idle
            self._idle = []
        for seat in idle:
            seat.given.set()

    def _hire(self, first: Callable[[], None] | None = None) -> None:
        seat = _Seat[J](self._runtime)
        if first is None:
            self._idle.append(seat)
        self._runtime.spawn(lambda: self._serve(seat, first), "fdbqueue-worker")

    def _serve(self, seat: "_Seat[J]", first: Callable[[], None] | None) -> None:
        if first is not None:
            first()
            if not self._sit_down(seat):
                return
        while True:
            seat.given.wait()
            seat.given.clear()
            job, seat.job = seat.job, None
            if job is None:
                return
            if not self._work(job) or not self._sit_down(seat):
                return

    def _sit_down(self, seat: "_Seat[J]") -> bool:
        with self._lock:
            if not self._ended:
                self._idle.append(seat)
        self._freed.set()
        return not self._ended


class _Seat(Generic[J]):
    def __init__(self, runtime: Runtime) -> None:
        self.given = runtime.event()
        self.job: J | None = None
