"""Simulation: clients on machines of their own, one shared engine, one seed.

def worker(client):                      # ordinary code, the ordinary blocking API
    while (job := queue.dequeue(client.db, timeout=5)) is not None:
        handle(client.db, job)

simulation = Simulation(seed=7)
simulation.client(worker, "worker")
result = simulation.run([no_key_left_behind(b"...")])
assert not result.violations, result
"""

import gc
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function, require_finished
from fdbqueue.core.database import Database
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.embedded.store import private_store
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.fleet.worker import is_asynchronous
from fdbqueue.testing.coroutines import LoopClient, LoopMachine, run_client
from fdbqueue.testing.engine import NONE, Faults, FaultyDatabase, Machine, scattered
from fdbqueue.testing.scheduler import Host, Scheduler, SimulatedRuntime, SimulatedThread, Stuck
from fdbqueue.testing.trace import Trace, Watch, unsound

T = TypeVar("T")
M = TypeVar("M", bound=Machine)

POINTS_MAX = 300_000
# Shared memory if the system has it: on a disk, opening costs more than most runs.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

Checker = Callable[[Trace, Database], Iterable[str]]
"""Given the trace and the final database, yields one sentence per violation."""


class Client:
    """A simulated process, as its function sees it."""

    def __init__(
        self, machine: Machine, db: Database, trace: Trace, pace: float, watches: Sequence[Watch] = ()
    ) -> None:
        self.db = db
        self.runtime = machine.thread
        self.random = Random(machine.random.random())
        self._machine = machine
        self._trace = trace
        self._pace = pace
        self._watches = watches

    @property
    def name(self) -> str:
        return self._machine.name

    @property
    def commits(self) -> int:
        """The number of commits of the run so far, refused ones included."""
        return len(self._trace.transactions)

    def call(
        self,
        subject: str,
        name: str,
        argument: Any,
        function: Callable[[], T],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """Call `function`, and record it in the trace as an operation on `subject`. `timeout_s`: the time for
        which it waits at most.
        """
        me, now = self.runtime.thread_id(), self.runtime.monotonic
        operation = self._trace.begin(now(), self._machine.thread_name(), subject, name, argument, timeout_s)
        self._machine.operations[me] = operation
        try:
            result = function()
        except Exception as error:
            if getattr(error, "code", None) in MAYBE_COMMITTED:
                raise  # as after a death: it may have happened
            self._trace.end(now(), operation, None, error)
            raise
        self._trace.end(now(), operation, result)
        del self._machine.operations[me]
        return result

    def pause(self, mean_s: float) -> None:
        """Sleep, on average for less than `mean_s`; in most runs much shorter, so that clients are busy."""
        if self.random.random() < 0.6:
            self.runtime.sleep(self.random.expovariate(1 / mean_s) * self._pace)

    def interrupted(self, after_s: float, function: Callable[[], T]) -> T | None:
        """Call `function`, and raise KeyboardInterrupt in it after `after_s`, as Ctrl-C does. None if that
        came.
        """
        scheduler, task = self.runtime.scheduler, self.runtime.scheduler.current
        assert task is not None, "only a client can be interrupted"
        is_over = False

        def strike() -> None:
            if not is_over:
                scheduler.interrupt(task, KeyboardInterrupt())

        scheduler.call_at(scheduler.now + after_s, strike)
        try:
            return function()
        except KeyboardInterrupt:
            return None
        finally:
            is_over, task.interrupt = True, None

    def hand_over(self, token: str, name: str) -> None:
        """Tell the watches that the client `name` gets the lock of an element with this token.

        The workload passes it on, as a message does. A watch may blame that client for each use otherwise.
        """
        for watch in self._watches:
            watch.handed(bytes.fromhex(token), name)

    def calm(self) -> None:
        """Switch the faults of this machine off."""
        self._machine.set_faults(NONE)

    def thread(self, function: Callable[["Client"], object], name: str) -> SimulatedThread:
        """Run `function` in another thread of this machine."""
        return self.runtime.spawn(lambda: function(self), f"{self.name}/{name}")


@dataclass(frozen=True)
class Result:
    """The outcome of a run: its violations (none if all is well), its trace, its faults, and the bounds that
    it had of its own.
    """

    seed: int
    violations: tuple[str, ...]
    trace: Trace
    points: int
    faults: Faults
    bounds: Mapping[str, float]

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}", *self.violations))


MakeWatch = Callable[["Simulation"], Watch]
watches: list[MakeWatch] = []
"""Makers of watches: each run of this process has one of each."""


class Simulation:
    """One run. Faults are drawn from the seed unless given; a `detailed` trace records each key."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        detailed: bool = False,
        points_max: int = POINTS_MAX,
        schedule: Random | None = None,
    ) -> None:
        """`schedule` picks the next task at each scheduling point; by default the seed does."""
        self.seed = seed
        self.random = Random(f"{seed} plan")
        self.faults = Faults.drawn(Random(f"{seed} faults")) if faults is None else faults
        self.trace = Trace(detailed)
        self.scheduler = Scheduler(schedule or Random(f"{seed} schedule"), points_max)
        self.gives_signs = False
        """If set before the clients are added, their requests in waiting lines give signs of life, as on a
        cluster. Each of these is a look, which hides a wake-up that was missed.
        """
        self.starving: list[tuple[float, float]] = []
        """Pairs of virtual seconds in which no transaction of batch priority gets a read version. To be set
        before the clients are added.
        """
        self.overtake = 0
        """The number of older items that a take of this run may leave behind; the auditor allows no more."""
        # The factor of all pauses: busy and idle clients find different bugs.
        self._pace = scattered(self.random, 0.003, 1.0)
        self._machines: list[Machine] = []
        self._outages: list[tuple[float, float]] = []
        self._partitions: dict[str, list[tuple[float, float]]] = {}
        self._afterwards: list[tuple[Callable[[Client], object], str]] = []
        self._limits: dict[str, float] = {}  # the values before this run
        self.store = private_store(self._runtime(Host("engine")), MEMORY)
        self.store.users = 1
        self._watches = [make(self) for make in watches]
        self.closing: list[Callable[[], None]] = []
        """Called at the end of the run, before the engine closes."""

    def _runtime(self, host: Host, skew_s: float = 0.0) -> SimulatedRuntime:
        random = Random(f"{self.seed} runtime {host.name}")
        return SimulatedRuntime(self.scheduler, host, random, 1000 + len(self._machines), skew_s)

    def limit(self, **values: float) -> None:
        """Set names of `fdbqueue.core.limits` for this run, so that small scenarios reach small bounds."""
        for name, value in values.items():
            self._limits.setdefault(name, getattr(limits, name))
            setattr(limits, name, value)

    def outage(self, start_s: float, seconds: float, name: str | None = None) -> None:
        """Keep all machines from the database for `seconds` from `start_s` on, in virtual time; with `name`,
        only that client.
        """
        outages = self._outages if name is None else self._partitions.setdefault(name, [])
        outages.append((start_s, start_s + seconds))

    def client(
        self, function: Callable[[Client], object] | Callable[[LoopClient], Awaitable[object]], name: str
    ) -> None:
        """Add a process that runs `function` and then closes its database. Names must differ.

        If it is a coroutine function, it runs on an event loop, with a database of fdbqueue.aio.
        """
        self._start(function, name, self.faults)

    def kill(self, name: str, at_s: float) -> None:
        """Kill the client `name` at a virtual time."""
        host = self._host(name)
        self.scheduler.call_at(at_s, lambda: self.scheduler.die(host))

    def stop(self, name: str, at_s: float, seconds: float) -> None:
        """Stop the client `name` at a virtual time, for `seconds`."""
        host = self._host(name)
        self.scheduler.call_at(at_s, lambda: self.scheduler.stall(host, at_s + seconds))

    def end_at(self, end_s: float) -> None:
        """Fail a run that has not ended at this virtual time: some call waits for ever."""
        self.scheduler.end_at(end_s)

    def _host(self, name: str) -> Host:
        return next(machine.host for machine in self._machines if machine.name == name)

    def afterwards(self, function: Callable[[Client], object], name: str) -> None:
        """Run `function` without faults once all clients have ended or died; several run in turn."""
        self._afterwards.append((function, name))

    def _machine(self, kind: type[M], name: str, faults: Faults) -> M:
        random = Random(f"{self.seed} machine {name}")
        runtime = self._runtime(Host(name), random.random() * faults.clock_skew_s)
        outages = (self._outages, self._partitions.setdefault(name, []))
        machine = kind(runtime, random, faults, self.trace, outages, self._watches)
        machine.gives_signs = self.gives_signs
        machine.starving = self.starving
        return machine

    def _start(self, function: Callable[[Any], object], name: str, faults: Faults) -> None:
        if is_asynchronous(function):
            looping = self._machine(LoopMachine, name, faults)
            run_to_end = partial(run_client, function, looping, self.store, self.trace, self._pace)
            self._start_machine(looping, run_to_end)
        else:
            checked_function(f"client {name}", function)
            machine = self._machine(Machine, name, faults)
            self._start_machine(
                machine,
                lambda: self._run_with(
                    Database(FaultyDatabase(self.store, machine), machine.runtime), function, machine
                ),
            )

    def _start_machine(self, machine: Machine, run_to_end: Callable[[], None]) -> None:
        def main() -> None:
            try:
                run_to_end()
                self.trace.note(self.scheduler.now, machine.name, "finished", machine.open_watches)
            finally:
                machine.finished = True

        self._machines.append(machine)
        self.scheduler.spawn(machine.host, main, machine.name)

    def _run_with(self, database: Database, function: Callable[[Client], object], machine: Machine) -> None:
        client = Client(machine, database, self.trace, self._pace, self._watches)
        require_finished(f"client {machine.name}", function(client))
        database.close()

    def run(self, checkers: Sequence[Checker] = ()) -> Result:
        """Run the clients to their end, then the functions of `afterwards`, then the checkers, and last a
        verification of all keys under the root. Only once.
        """
        collecting = gc.isenabled()
        gc.disable()  # a collection cancels dropped futures at a moment that the seed does not decide
        if "SCHEDULES_SOUGHT_EVERY_S" not in self._limits:
            # Only a process that has opened a schedule passes: each other run would have a read more.
            self.limit(SCHEDULES_SOUGHT_EVERY_S=float("inf"))
        try:
            for watch in self._watches:
                watch.begin([queue for checker in checkers for queue in getattr(checker, "queues", ())])
            stuck = self._run_clients()
            told = [text for watch in self._watches for text in watch.violations(self.trace)]
            failures = [f"{task.name} raised {error!r}" for task, error in self.scheduler.failures]
            violations = (
                [*failures, *stuck, *told]
                or self._judge(checkers)
                or [text for watch in self._watches for text in watch.outlived()]
            )
            self.trace.virtual_s = self.scheduler.now
            points, bounds = self.scheduler.points, {name: getattr(limits, name) for name in self._limits}
            return Result(self.seed, tuple(violations), self.trace, points, self.faults, bounds)
        finally:
            self._close()
            if collecting:
                gc.enable()

    def is_calm(self) -> bool:
        """True if nothing delays a process."""
        has_outages = bool(self._outages) or any(self._partitions.values())
        return self.faults.are_calm and not has_outages and not self.scheduler.has_struck

    def goes_on(self, name: str) -> bool:
        """True if the machine `name` has neither finished nor died."""
        return any(machine.name == name and not machine.ended for machine in self._machines)

    def _run_clients(self) -> list[str]:
        try:
            self.scheduler.run(self._all_ended)
            for watch in self._watches:
                watch.clients_ended()
            for function, name in self._afterwards:
                self._start(function, name, NONE)
                self.scheduler.run(self._all_ended)
        except Stuck as reason:
            waiting = [m.name for m in self._machines if not m.ended]
            return [f"{reason}: {', '.join(waiting)} did not end"]
        return []

    def _all_ended(self) -> bool:
        return all(machine.ended for machine in self._machines)

    def _judge(self, checkers: Sequence[Checker]) -> list[str]:
        # Closed, because a checker that opens a queue with leases starts the thread that renews them.
        with Database(EmbeddedDatabase(self.store, self._runtime(Host("judge")))) as database:
            found = [sentence for checker in checkers for sentence in checker(self.trace, database)]
            return found or unsound(database)

    def usual_pace(self) -> None:
        """Let sweeps and passes come as often as they usually do: some workloads have none by themselves."""
        self.limit(**{name: usual for name, usual in self._limits.items() if name.endswith("_EVERY_S")})

    def _close(self) -> None:
        self.limit(**self._limits)
        self.scheduler.unwind()
        for watch in self._watches:
            watch.close()
        for machine in self._machines:
            for one in machine.watches:
                one.cancel()
        for close in self.closing:
            close()
        EmbeddedDatabase(self.store, self._runtime(Host("engine"))).close()
