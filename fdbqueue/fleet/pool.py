"""A fixed number of threads; each is idle, or runs one job."""

from collections.abc import Callable
from typing import Generic, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.logger import logger
from fdbqueue.core.runtime import Event, Runtime
from fdbqueue.core.visible import SURVIVED

_log = logger("fdbqueue.worker")

J = TypeVar("J")


class ThreadPool(Generic[J]):
    """`work(job)` returns False if its thread was replaced, and must end. If an error ends a thread, the pool
    replaces it. One thread gives all jobs, and only while a thread is idle.
    """

    def __init__(self, database: Database, size: int, work: Callable[[J], bool], freed: Event) -> None:
        """`freed` is set when a thread becomes idle; the owner may set it. Raises RuntimeError."""
        self._troubles = database.troubles
        self._runtime = runtime = database.runtime
        self._work = work
        self._lock = runtime.lock()
        self._freed = freed
        self._ended = False
        self._idle: list[_Slot[J]] = []
        self._vacant: list[tuple[_Slot[J], Callable[[], None] | None]] = []
        self.size = size
        try:
            for _ in range(size):
                self._add_slot()
        except BaseException:
            self.end()
            raise

    def free(self) -> int:
        return len(self._idle)

    def wait_for_free(self, timeout_s: float | None) -> int:
        """Wait for an idle thread. Return the number of idle threads; 0 if the wait ended before."""
        if self._vacant and not self._fill_all():
            timeout_s = limits.BEAT_AGAIN_S
        if not self._idle:
            self._freed.wait(timeout_s)
            self._freed.clear()
        return len(self._idle)

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`. Return True if all threads are idle."""
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
            slot = self._idle.pop()
        slot.job = job
        slot.given.set()

    def replace(self, instead: Callable[[], None]) -> None:
        """Start a thread in place of one that hangs; it calls `instead` first. The `work` of the hanging
        thread must return False, if it ever returns. Raises RuntimeError if no thread can be started.
        """
        self._start(_Slot[J](self._runtime), first=instead)

    def end(self) -> None:
        """End idle threads now, and the others after their jobs."""
        with self._lock:
            self._ended, idle = True, self._idle
            self._idle = []
        for slot in idle:
            slot.given.set()

    def _add_slot(self) -> None:
        slot = _Slot[J](self._runtime)
        self._start(slot)
        with self._lock:
            self._idle.append(slot)

    def _start(self, slot: "_Slot[J]", first: Callable[[], None] | None = None) -> None:
        self._runtime.spawn(lambda: self._serve(slot, first), "fdbqueue-worker")

    def _fill_all(self) -> bool:
        """Start a thread for each slot without one. Return False if a start failed."""
        while (vacant := self._next_vacant()) is not None:
            try:
                self._start(*vacant)
            except Exception as error:  # no thread can be started
                self._vacant.append(vacant)
                self._troubles.met(_log, "a worker thread ended, and no other can be started yet", error)
                return False
        return True

    def _next_vacant(self) -> "tuple[_Slot[J], Callable[[], None] | None] | None":
        with self._lock:  # the feeder calls this, too: a slot gets one thread
            return self._vacant.pop(0) if self._vacant else None

    def _serve(self, slot: "_Slot[J]", first: Callable[[], None] | None) -> None:
        try:
            if first is not None:
                slot.busy = True
                first()
                if not self._become_idle(slot):
                    return
            self._work_on(slot)
        except BaseException:
            # An exception ends this thread (GreenletExit): another one takes its slot.
            if not self._ended:
                self._vacant.append((slot, (lambda: None) if slot.busy else None))
                self._fill_all()
                self._freed.set()
            raise

    def _work_on(self, slot: "_Slot[J]") -> None:
        while True:
            slot.given.wait()
            slot.given.clear()
            job, slot.job = slot.job, None
            if job is None:
                return
            slot.busy = True
            goes_on = True
            try:
                goes_on = self._work(job)
            except SURVIVED as error:
                self._troubles.met(_log, "a job of a worker thread failed; the thread goes on", error)
            if not goes_on or not self._become_idle(slot):
                return

    def _become_idle(self, slot: "_Slot[J]") -> bool:
        slot.busy = False
        with self._lock:
            if not self._ended:
                self._idle.append(slot)
        self._freed.set()
        return not self._ended


class _Slot(Generic[J]):
    """A thread of the pool and its job. If the thread ends by an error, another takes its slot."""

    def __init__(self, runtime: Runtime) -> None:
        self.given = runtime.event()
        self.busy = False
        self.job: J | None = None
