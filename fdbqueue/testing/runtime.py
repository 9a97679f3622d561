"""SimulatedRuntime: the `fdbqueue.core.runtime.Runtime` of one simulated machine.

Waiting parks the running task. The clock is the scheduler's, and randomness is the machine's own.
"""

from collections.abc import Callable, Iterable
from random import Random
from types import TracebackType

from fdbqueue.core import runtime as runtimes
from fdbqueue.core.runtime import Listeners, Waitable
from fdbqueue.testing.scheduler import Host, Scheduler, Task

EPOCH_S = 1_700_000_000.0


class SimulatedLock:
    """A lock of one machine. Acquiring it is a scheduling point if the machine has several tasks."""

    __slots__ = ("_host", "_locked", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler, host: Host) -> None:
        self._scheduler = scheduler
        self._host = host
        self._locked = False
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._host.threaded and self._scheduler.current is not None:
            self._scheduler.point()
        until = None if timeout < 0 else self._scheduler.now + timeout
        while self._locked:
            if not blocking or (until is not None and self._scheduler.now >= until):
                return False
            self._wait(until)
        self._locked = True
        return True

    def _wait(self, until: float | None) -> None:
        task = self._scheduler.current
        assert task is not None, "a lock is held by a client that is not running"
        self._waiting.append(task)
        try:
            self._scheduler.park(until)
        except BaseException:
            if task not in self._waiting and self._waiting and not self._locked:
                self._scheduler.wake(self._waiting[0])  # the lock was released for this task
            raise
        finally:
            if task in self._waiting:
                self._waiting.remove(task)

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        if self._waiting:
            self._scheduler.wake(self._waiting.pop(0))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class SimulatedEvent:
    __slots__ = ("_listeners", "_scheduler", "_set", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []
        self._listeners = Listeners()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)
        self._listeners.tell()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.add(callback, self.is_set)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.point()
        if self._set:
            return True
        task = self._scheduler.current
        assert task is not None, "only a client can wait"
        self._waiting.append(task)
        try:
            woken = self._scheduler.park(None if timeout is None else self._scheduler.now + timeout)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
        return woken or self._set


class SimulatedThread:
    def __init__(self, runtime: "SimulatedRuntime", target: Callable[[], object], name: str) -> None:
        self._ended = runtime.event()
        self._target = target
        self._task = runtime.scheduler.spawn(runtime.host, self._run, name)

    def _run(self) -> None:
        self._target()
        self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()


class SimulatedRuntime:
    """Clock, randomness, threads, locks and waiting of one machine; its clock is `skew_s` ahead."""

    def __init__(
        self, scheduler: Scheduler, host: Host, random: Random, process_id: int, skew_s: float = 0.0
    ) -> None:
        self.scheduler = scheduler
        self.host = host
        self.skew_s = skew_s
        self.random_bytes = random.randbytes
        self.random = random.random
        self._process_id = process_id
        self._held_us: int | None = None

    def now(self) -> float:
        return (
            EPOCH_S + self.scheduler.now + self.skew_s if self._held_us is None else self.now_us() / 1_000_000
        )

    def now_us(self) -> int:
        return round(self.now() * 1_000_000) if self._held_us is None else self._held_us

    def hold(self, now_us: int) -> None:
        """Let the clock stand still at that time, in microseconds since the epoch. Other times go on."""
        self._held_us = now_us

    def monotonic(self) -> float:
        # One clock for all machines, since the engine compares the ages of snapshots by it.
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.scheduler.park(self.scheduler.now + seconds)
        else:
            self.scheduler.point()

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self.scheduler, self.host)

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self.scheduler)

    def spawn(self, target: Callable[[], object], name: str) -> SimulatedThread:
        return SimulatedThread(self, target, name)

    def thread_id(self) -> int:
        current = self.scheduler.current
        return 0 if current is None else current.number

    def thread_is_alive(self) -> Callable[[], bool]:
        task = self.scheduler.current
        assert task is not None, "only a client has threads"
        return lambda: not task.ended

    def at_exit(self, callback: Callable[[float], None]) -> Callable[[], None]:  # noqa: ARG002
        """Register nothing: simulated clients close their database, or die."""
        return lambda: None

    def process_id(self) -> int:
        return self._process_id

    def host_name(self) -> str:
        return self.host.name

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        return runtimes.wait_any(self, futures, timeout_s)
