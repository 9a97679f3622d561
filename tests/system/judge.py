"""Judge: audits each commit of a simulation, and lets the run have an aftermath."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from fdbqueue.embedded.store import Store
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.testing.simulation import Simulation
from fdbqueue.testing.trace import Commit, Trace
from tests.system.aftermath.aftermath import Aftermath, Moments
from tests.system.audit.auditor import Auditor
from tests.system.audit.line import Liveness


class Judge:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._moments = Moments(Random(f"{simulation.seed} moment"), simulation.scheduler)
        liveness = Liveness(
            simulation.is_calm,
            simulation.goes_on,
            lambda: simulation.gives_signs,
            lambda: simulation.overtake,
        )
        self.auditor = Auditor(liveness, self._moments.committed)
        self._aftermath: Aftermath | None = None

    def begin(self, queues: Sequence[Any]) -> None:
        self.auditor.watch(queues)

    def committed(self, store: Store, request: CommitRequest, commit: Commit) -> None:
        self.auditor.committed(store, request, commit)

    def handed(self, token: bytes, machine: str) -> None:
        self.auditor.handed.add(token, machine)

    def clients_ended(self) -> None:
        self._moments.over(self.auditor.mirror)

    def violations(self, trace: Trace) -> Iterable[str]:
        return [*self.auditor.violations, *self.auditor.untrue_in(trace)]

    def outlived(self) -> Iterable[str]:
        """Let fresh processes take what the run has left at one moment, and tell what is stuck."""
        moment, run = self._moments.chosen, self._simulation
        if moment is None:
            return []
        run.usual_pace()
        self._aftermath = Aftermath(run.seed, moment, run.store, self.auditor.spaces, run.trace)
        return self._aftermath.run()

    def close(self) -> None:
        if self._aftermath is not None:
            self._aftermath.scheduler.unwind()
