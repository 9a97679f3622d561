"""The scheduler: greenlets on one thread, virtual time, and a seed that picks the next task.

A *task* stands for a thread, a *host* for the machine it runs on. At each scheduling point, the seed chooses
the task that runs next. Time moves a little at each point, so that a loop that never waits cannot stop the
clock. If all tasks wait, time jumps to the next timer.

A task may run greenlets of its own, as the fibers of an event loop. The scheduler resumes the one that was
switched away from.

When a host dies, its tasks are never resumed, so no `finally` of theirs runs, as after SIGKILL. Their
greenlets are kept until the checkers have run, because dropping a greenlet would unwind it.

SimulatedRuntime is the `fdbqueue.core.runtime.Runtime` of one simulated machine. Waiting parks the running
task. The clock is the scheduler's, and randomness is the machine's own.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from fdbqueue.core import runtime as runtimes
from fdbqueue.core.runtime import Listeners, Waitable

# The virtual time of one scheduling point: about a round trip between two machines of one network.
POINT_S = 0.0002


class Stuck(Exception):
    """The simulation cannot go on; the text is the reason."""


class Host:
    """A simulated machine: its tasks, and whether it is dead or stalled."""

    __slots__ = ("at_death", "dead", "name", "stalled_until", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stalled_until = 0.0
        self.at_death: list[Callable[[], None]] = []
        """Called when it dies; they must not wait."""
        self.tasks: list[Task] = []

    @property
    def threaded(self) -> bool:
        """True if this host has had several tasks, so that its locks matter."""
        return len(self.tasks) > 1


class ThreadState(Protocol):
    """State that the interpreter keeps for each real thread. All simulated threads share one of those."""

    def leave(self) -> None:
        """Put the state aside, as other tasks run now."""

    def enter(self) -> None:
        """Put it back."""


class Task:
    """One simulated thread. `turn` counts its sleeps, so that an old timer does not end a later sleep."""

    __slots__ = (
        "greenlet",
        "host",
        "interrupt",
        "name",
        "number",
        "parked",
        "root",
        "state",
        "turn",
        "woken",
    )

    def __init__(self, host: Host, name: str, number: int) -> None:
        self.host = host
        self.name = name
        self.number = number
        self.parked = self.woken = False
        self.turn = 0
        self.interrupt: BaseException | None = None
        """Raised at its next scheduling point."""
        self.root: Any = None  # the greenlet that ends with the task
        self.greenlet: Any = None  # the one to resume
        self.state: ThreadState | None = None

    @property
    def ended(self) -> bool:
        return bool(self.root.dead)


class Scheduler:
    """Runs tasks, one at a time, until the `finished` function of `run` is true."""

    def __init__(self, random: Random, points_max: int) -> None:
        self.now = 0.0
        self.points = 0
        self.has_struck = False
        """True once a host has been stopped, or has died."""
        self.points_max = points_max
        self.current: Task | None = None
        self.over = False
        self.failures: list[tuple[Task, Exception]] = []  # tasks that raised, and their errors
        self._random = random.random
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None] | Task, int]] = []
        self._sequence = count()
        self._numbers = count(1)
        self._tasks: list[Task] = []
        self._hub = getcurrent()

    # -- for tasks ----------------------------------------------------------------------------------------

    def point(self) -> None:
        """Let other tasks run before this returns: a scheduling point."""
        if self.over:
            raise GreenletExit
        self.now += POINT_S
        self.points += 1
        if self._timers and self._timers[0][0] <= self.now:
            while self._timers and self._timers[0][0] <= self.now:
                self._fire(heappop(self._timers))
        if self.points > self.points_max:
            self._leave(self._running, self._hub)
        ready = self._ready
        if ready:
            chosen = int(self._random() * (len(ready) + 1))
            if chosen < len(ready):
                successor = ready[chosen]
                ready[chosen] = self._running
                self._switch_to(successor)
        if self.current is not None and self.current.interrupt is not None:
            self._meet_interrupt(self.current)

    def park(self, until: float | None) -> bool:
        """Sleep until woken, or until the time `until`. True if it was woken."""
        if self.over:
            raise GreenletExit
        task = self._running
        self._meet_interrupt(task)
        task.parked = True
        if until is not None:
            heappush(self._timers, (until, next(self._sequence), task, task.turn))
        self._go_on()
        self._meet_interrupt(task)
        return task.woken

    def interrupt(self, task: Task, error: BaseException) -> None:
        """Raise `error` in `task` at its next scheduling point, or now if it waits: as signal handlers do."""
        task.interrupt = error
        self.wake(task)

    def wake(self, task: Task) -> None:
        """Let a parked task go on. For a task that is not parked, do nothing."""
        if task.parked:
            self._unpark(task, woken=True)

    def stall(self, host: Host, until: float) -> None:
        """Stop all tasks of `host`, the current one too, until the time `until`."""
        self.has_struck = True
        host.stalled_until = until
        for task in [task for task in self._ready if task.host is host]:
            self._ready.remove(task)
            self._make_ready(task)
        if self.current is not None and self.current.host is host and not self.current.parked:
            self._make_ready(self.current)
            self._go_on()

    def die(self, host: Host) -> None:
        """End `host` at once. For a task of `host`, this call never returns."""
        self.has_struck = True
        host.dead = True
        self._ready = [task for task in self._ready if task.host is not host]
        for callback in host.at_death:
            callback()
        if self.current is not None and self.current.host is host:
            self._leave(self.current, self._hub)

    def end_at(self, due: float) -> None:
        """Let `run` raise Stuck if it has not ended by the time `due`."""

        def end() -> None:
            self.points_max = self.points

        self.call_at(due, end)

    def call_at(self, due: float, callback: Callable[[], None]) -> None:
        """Call `callback`, which must not wait, at the time `due`."""
        heappush(self._timers, (due, next(self._sequence), callback, 0))

    def spawn(self, host: Host, target: Callable[[], object], name: str) -> Task:
        task = Task(host, name, next(self._numbers))

        def body() -> None:
            try:
                target()
            except Exception as error:
                self.failures.append((task, error))

        task.root = task.greenlet = greenlet(body, self._hub)
        host.tasks.append(task)
        self._tasks.append(task)
        self._make_ready(task)
        return task

    # -- for the simulation -------------------------------------------------------------------------------

    def run(self, finished: Callable[[], bool]) -> None:
        """Run tasks until `finished()` is true; it is called whenever a task ends or dies. Raises: Stuck."""
        while not finished():
            if self.points > self.points_max:
                raise Stuck(f"no end after {self.points_max} scheduling points")
            successor = self._next()
            if successor is not None:
                self._switch_to(successor)
                self.current = None
            elif not finished():  # a timer may have ended the last host
                raise Stuck("all tasks wait for ever")

    def unwind(self) -> None:
        """Unwind the tasks that have not ended, after the simulation; their effects do not count any more."""
        self.over = True
        for task in self._tasks:
            while not task.ended:
                self.current = task
                task.greenlet.throw()
        self.current = None

    # -- inside -------------------------------------------------------------------------------------------

    def _meet_interrupt(self, task: Task) -> None:
        error, task.interrupt = task.interrupt, None
        if error is not None:
            raise error

    @property
    def _running(self) -> Task:
        assert self.current is not None, "only a client can wait"
        return self.current

    def _switch_to(self, task: Task) -> None:
        leaving, self.current = self.current, task
        if leaving is None:
            task.greenlet.switch()
        else:
            self._leave(leaving, task.greenlet)

    def _leave(self, task: Task, target: Any) -> None:
        """Switch from `task` to the greenlet `target`. This returns when `task` is resumed."""
        task.greenlet = getcurrent()
        if task.state is None:
            target.switch()
            return
        task.state.leave()
        try:
            target.switch()
        finally:
            task.state.enter()

    def _go_on(self) -> None:
        """Run another task in place of the current one; without a ready task, return to the hub."""
        successor = self._next()
        if successor is None:
            self._leave(self._running, self._hub)
        elif successor is not self.current:
            self._switch_to(successor)

    def _next(self) -> Task | None:
        """Remove and return a ready task; if there is none, let time pass until the next timer."""
        while not self._ready and self._timers:
            self._fire(heappop(self._timers))
        if not self._ready:
            return None
        chosen = int(self._random() * len(self._ready))
        self._ready[chosen], self._ready[-1] = self._ready[-1], self._ready[chosen]
        return self._ready.pop()

    def _fire(self, timer: tuple[float, int, Callable[[], None] | Task, int]) -> None:
        due, _, target, turn = timer
        if isinstance(target, Task):
            if target.parked and target.turn == turn and not target.host.dead:
                self.now = max(self.now, due)
                self._unpark(target, woken=False)
        else:
            self.now = max(self.now, due)
            target()

    def _unpark(self, task: Task, woken: bool) -> None:
        task.parked = False
        task.turn += 1
        task.woken = woken
        self._make_ready(task)

    def _make_ready(self, task: Task) -> None:
        if task.host.dead:
            return
        if task.host.stalled_until > self.now:
            self.call_at(task.host.stalled_until, lambda: self._make_ready(task))
        else:
            self._ready.append(task)


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

    def memory_bytes(self) -> int:
        return 0

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        return runtimes.wait_any(self, futures, timeout_s)
