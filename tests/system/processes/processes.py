"""Processes of one simulation, each with a store of its own, over one directory that all of them share.

Each system call of a process is a scheduling point, at which it may die or stall. Of the faults of machines,
it meets slow replies only.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.store import Store
from fdbqueue.testing.engine import Machine
from fdbqueue.testing.scheduler import Host
from fdbqueue.testing.simulation import MEMORY, Client, Simulation
from tests.system.processes.directory import PowerCut, ProcessDatabase, SharedDirectory
from tests.system.processes.power import place

_GENERATION_BYTES = (1, 1_000, 2_000, 10_000)  # a commit of a test has some 500


def processes_of(simulation: Simulation) -> "Processes":
    kept = vars(simulation)
    found: Processes = kept.get("processes") or Processes(simulation)
    kept["processes"] = found
    return found


class Processes:
    """Kills and stops by the name of a process are those of the simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._directory = SharedDirectory(simulation.scheduler, simulation.store.env, MEMORY)
        simulation.closing.append(self._directory.close)
        simulation.limit(GENERATION_BYTES_MAX=Random(f"{simulation.seed} journal").choice(_GENERATION_BYTES))

    def add(self, function: Callable[[Client], object], name: str) -> None:
        """Add a process that runs `function` and then closes its database. Names must differ."""
        simulation = self._simulation
        machine = simulation._machine(Machine, name, simulation.faults)
        simulation._start_machine(machine, partial(self._run, function, machine))

    def _run(self, function: Callable[[Client], object], machine: Machine) -> None:
        engine = self._directory.open(machine)
        self._simulation._run_with(Database(engine, machine.runtime, engine.close), function, machine)

    def kill_writer(self, at_s: float, after_s: float) -> None:
        """Kill the first process that begins to write at a virtual time or later, `after_s` later."""
        self._strike_writer(at_s, after_s, self._simulation.scheduler.die)

    def kill_behind_commit(self, at_s: float) -> None:
        """Kill the first process that has committed at a virtual time or later, before its next step."""
        self._directory.kills.append(at_s)

    def stop_writer(self, at_s: float, after_s: float, seconds: float) -> None:
        """Stop such a process for `seconds`."""
        scheduler = self._simulation.scheduler
        self._strike_writer(at_s, after_s, lambda host: scheduler.stall(host, scheduler.now + seconds))

    def _strike_writer(self, at_s: float, after_s: float, strike: Callable[[Host], None]) -> None:
        scheduler = self._simulation.scheduler

        def later(host: Host) -> None:
            scheduler.call_at(scheduler.now + after_s, lambda: strike(host))

        self._directory.strikes.append((at_s, later))

    def fail_flush(self, at_s: float) -> None:
        """Fail the first flush of a process at a virtual time or later."""
        self._directory.failures.append((at_s, Random(f"{self._simulation.seed} failure {at_s}")))

    def power_cut(self, random: Random) -> PowerCut:
        """Return the files that a power cut would leave now; the run goes on."""
        version = self._directory.environment.info()["last_txnid"]
        disk = self._directory.disk
        return PowerCut(disk.cut(random), len(self._simulation.trace.events), version, disk.deceives)

    @contextmanager
    def recovered(self, cut: PowerCut) -> Iterator[Database]:
        """Open the files that a power cut has left, as the first process of the next boot."""
        with tempfile.TemporaryDirectory(prefix="fdbqueue-recovered-", dir=MEMORY) as path:
            place(cut.files, path)
            runtime = self._simulation._runtime(Host("recovery"))
            engine = ProcessDatabase(Store(Directory.open(path), runtime, private=False), runtime)
            with Database(engine, runtime, engine.close) as database:
                yield database
