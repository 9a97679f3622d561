"""The scheduler of our own simulation, in the simulator of FoundationDB: its time, its delays, its processes.

A task that waits gives the thread back to the simulator. A future wakes it: one of the database, or a delay.
In one *turn*, all tasks run that a future has woken; then the simulator goes on. The seed chooses an order.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import GreenletExit

from fdbqueue.testing.engine import Machine
from fdbqueue.testing.scheduler import POINT_S, Host, Scheduler, Task
from tests.simulator.abi import Context

_POINTS_IN_A_ROW = 200
"""After this number of points without a wait, a task lets time pass."""
_NEVER_EARLY_S = 1e-6
"""More than the difference of two times is rounded."""
_DELAY_MAX_S = 1e5
"""No run is as long: a later time never comes."""


class Process(Host):
    """A machine of ours: a client of fdbqueue on a simulated process of FoundationDB."""

    __slots__ = ("machine", "process")

    def __init__(self, name: str, process: int) -> None:
        super().__init__(name)
        self.process = process
        self.machine: Machine | None = None


class SimulatorScheduler(Scheduler):
    """Tasks that the simulator's futures wake. `delayed` makes a future of the binding from an address."""

    def __init__(self, random: Random, context: Context, delayed: Callable[[int], Any]) -> None:
        self._context, self._delayed = context, delayed
        self._began_s = context.now()
        self._in_a_row = 0
        self.turning = False
        super().__init__(random, 0)

    @property
    def now(self) -> float:
        return self._context.now() - self._began_s

    @now.setter
    def now(self, _: float) -> None:
        """Leave time to the simulator."""

    # -- for tasks ----------------------------------------------------------------------------------------

    def point(self) -> None:
        if self.over:
            raise GreenletExit
        self.points += 1
        self._in_a_row += 1
        if self._in_a_row > _POINTS_IN_A_ROW:
            self.park(self.now + POINT_S)
        elif self._ready:
            self._make_ready(self._running)
            self._go_on()
        self._meet_interrupt(self._running)

    def park(self, until: float | None) -> bool:
        self._in_a_row = 0
        task = self._running
        if until is not None:
            turn = task.turn
            self.call_at(until, lambda: self._time_out(task, turn))
        return super().park(None)

    def _time_out(self, task: Task, turn: int) -> None:
        if task.parked and task.turn == turn and not task.host.dead:
            self._unpark(task, woken=False)

    def wait_for(self, future: Any) -> None:
        """Park the current task until the future is ready. Then its machine may die or stall."""
        task, is_waiting = self._running, True

        def arrived(_: Any) -> None:
            if is_waiting:
                self.wake(task)

        future.on_ready(arrived)
        try:
            while not future.is_ready():
                self.park(None)
        finally:
            is_waiting = False
        if isinstance(task.host, Process) and task.host.machine is not None:
            task.host.machine.point()

    def call_at(self, due: float, callback: Callable[[], None]) -> None:
        if due - self.now < _DELAY_MAX_S:
            delay = self._delayed(self._context.delay(max(0.0, due - self.now) + _NEVER_EARLY_S))
            delay.on_ready(lambda _: callback())

    def end_at(self, due: float) -> None:
        """Do nothing: the simulator ends a run that takes too long."""

    def begin(self) -> None:
        """Let the time of the clients begin now."""
        self._began_s = self._context.now()

    # -- for the stages -----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run the woken tasks, until all wait again. The process that runs now is restored."""
        process, self.turning = self._context.process, True
        try:
            while (task := self._next()) is not None:
                self._switch_to(task)
                self.current = None
        finally:
            self._context.process, self.turning = process, False

    def _switch_to(self, task: Task) -> None:
        host = task.host
        if isinstance(host, Process) and host.process:
            self._context.process = host.process
        super()._switch_to(task)
