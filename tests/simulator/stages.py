"""The stages of a workload in the simulator, as the host hands them over.

The simulator has some processes that test, and each is a *member* here. All are in one interpreter. When the
last of them starts, the workload of our own simulation adds its clients, and each member has some. A stage
ends when all clients have ended or died. In the stage `check`, the first member runs the functions of
`afterwards` on machines without faults, then the checkers, and last it verifies all keys.
"""

import ctypes
import gc
import hashlib
import json
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from fdbqueue.core.database import Database, known_by_engine
from fdbqueue.fleet.worker import is_asynchronous
from fdbqueue.testing import coroutines
from fdbqueue.testing.cases import Size, Workload
from fdbqueue.testing.coroutines import LoopMachine
from fdbqueue.testing.engine import KINDS, NONE, Faults, Machine
from fdbqueue.testing.scheduler import SimulatedRuntime, Task
from fdbqueue.testing.simulation import Checker, Simulation
from fdbqueue.testing.trace import unsound
from tests.simulator import contract, engine, plants
from tests.simulator.abi import Context, Promise, Severity, push_metrics
from tests.simulator.scheduler import Process, SimulatorScheduler
from tests.system.workloads import all_workloads, stage

M = TypeVar("M", bound=Machine)

EVENTS = "fdbqueue.txt"
"""The file with the calls of a failed run, in its folder."""
OURS = ("die", "stall", "clock_skew_s", *engine.UNHEARD)
"""The faults of clients and of their answers. All others are the simulator's, and can happen in each run."""
_OPTIONS = ("faults", "clients", "steps", "pace")
"""Those of the test file."""
_CAN_HAPPEN = 1e-12
_RARER = 0.25
"""A call has more waits for answers than in our own simulation."""
_STALL_MAX_S = 20.0
_LIMITS = {"RECEIPT_STALE_S": 180.0, "SCHEDULES_SOUGHT_EVERY_S": float("inf")}
"""A day is too long for a simulator of a whole cluster. The faults last 60 s, and a call has to end before
its receipt is stale.
"""
_LOOK_S, _END_S = 0.1, 1_500.0
_ENOUGH_S = 1_000.0
"""A survivor goes on for this time: a cluster after faults is slow."""
_PAGE_ROWS = 500


class Member:
    """A client of the simulator's workload: one of its processes, with a database."""

    def __init__(self, name: str, context: Context) -> None:
        self.name, self.context = name, context
        # Read at once: an option without a reader fails the test.
        self.options = {option: context.option(option, "") for option in _OPTIONS}
        self.database = self.process = 0
        self.promise: Promise | None = None
        self.run: Run | None = None

    def setup(self, database: int, inner: int, table: int) -> None:  # noqa: ARG002
        Promise(inner, table).send(True)

    def start(self, database: int, inner: int, table: int) -> None:
        self._begin(database, inner, table)
        self.run = joined(self)
        self.run.start()
        turn()

    def check(self, database: int, inner: int, table: int) -> None:
        self._begin(database, inner, table)
        assert self.run is not None, "it has started"
        self.run.check(self)
        turn()

    def metrics(self, _: int, inner: int, table: int) -> None:
        if self.run is not None and self is self.run.members[0]:
            push_metrics(inner, table, {"Operations": len(self.run.trace.operations)})

    def _begin(self, database: int, inner: int, table: int) -> None:
        self.database, self.process = database, self.context.process
        self.promise = Promise(inner, table)

    def end(self, value: bool) -> None:
        """End the stage. Each process of the simulator sends its own answer."""
        promise, self.promise = self.promise, None
        caller, self.context.process = self.context.process, self.process
        if promise is not None:
            promise.send(value)
        self.context.process = caller


class Run(Simulation):
    """One workload of our own simulation, on the simulator's cluster."""

    def __init__(self, first: Member, impl: Any) -> None:
        context, options = first.context, first.options
        self._others: dict[str, float] = {}
        super().__init__(context.shared_random, faults=NONE)
        self._impl = impl
        self.workload: Workload = {**all_workloads(), "contract": contract.contract}[first.name]
        self._others = others(self.workload)
        self.faults = NONE if options["faults"] == "none" else drawn(self.seed, self.workload)
        self.size = Size(
            int(options["clients"] or self.workload.size.clients),
            int(options["steps"] or self.workload.size.steps),
        )
        self._pace *= float(options["pace"] or 1)
        self.scheduler: SimulatorScheduler = SimulatorScheduler(
            Random(f"{self.seed} schedule"), context, impl.FutureVoid
        )
        self.members: list[Member] = []
        self._checkers: Sequence[Checker] = ()
        self._ended: Callable[[], bool] = lambda: False
        self.violations: list[str] = []
        self.hash = ""
        self.is_over = False
        """True from the end of the last stage on: the simulator may have freed its contexts."""

    @property
    def faults(self) -> Faults:
        """A workload may leave out those of its clients; the others can happen all the same."""
        return replace(self._faults, **self._others)

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults

    # -- clients ------------------------------------------------------------------------------------------

    def _start(self, function: Callable[[Any], object], name: str, faults: Faults) -> None:
        member = self.members[len(self._machines) % len(self.members)]
        if is_asynchronous(function):
            looping = self._machine_on(LoopMachine, member, name, faults)
            # Its engine is made over the third argument, which is the address of a database here.
            place: Any = member.database
            on_loop = partial(coroutines.run_client, function, looping, place, self.trace, self._pace)
            self._start_machine(looping, on_loop)
        else:
            machine = self._machine_on(Machine, member, name, faults)
            database = self._database_on(member, machine)
            self._start_machine(machine, lambda: self._run_with(database, function, machine))

    def _database_on(self, member: Member, machine: Machine) -> Database:
        raw = engine.database(self._impl, member.database, machine)
        return known_by_engine(Database(raw, machine.runtime))

    def _machine_on(self, kind: type[M], member: Member, name: str, faults: Faults) -> M:
        host, random = Process(name, member.process), Random(f"{self.seed} machine {name}")
        runtime = SimulatedRuntime(
            self.scheduler,
            host,
            Random(f"{self.seed} runtime {name}"),
            1000 + len(self._machines),
            random.random() * faults.clock_skew_s,
        )
        host.machine = machine = kind(runtime, random, faults, self.trace)
        return machine

    # -- stages -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin when all members have started."""
        if len(self.members) == self.members[0].context.client_count:
            self.members.sort(key=lambda member: member.context.client_id)
            self.scheduler.begin()
            self.limit(**_LIMITS)
            stage.ENOUGH_S = _ENOUGH_S
            self._checkers = self.workload.build(self, self.size)
            self._ended = self._all_ended
            self.scheduler.call_at(self.scheduler.now + _END_S, self._give_up)

    def _give_up(self) -> None:
        if not self.is_over:
            self.violations = [f"{m.name} did not end" for m in self._machines if not m.ended] or ["no end"]
            self._tell()
            self._ended = lambda: True

    def check(self, member: Member) -> None:
        if member is not self.members[0] or self.is_over:
            member.end(not self.violations)
            return
        first, self.members = self.members[0], [member]
        host = Process("judge", first.process)
        judging = self.scheduler.spawn(host, self._judge_all, "judge")
        self._ended = lambda: judging.ended

    def end_stage(self) -> None:
        """End the stage if its tasks have ended: the simulator goes on in the call."""
        if self._ended():
            self._ended = lambda: False
            self._bury()
            self.is_over = bool(self.hash or self.violations)
            for member in list(self.members):
                member.end(not self.violations)

    def _bury(self) -> None:
        """Stop what the clients have left running, such as a thread of a client that failed. The databases of
        a stage end with it.
        """
        for machine in self._machines:
            self.scheduler.die(machine.host)

    def _judge_all(self) -> None:
        try:
            self._judge_keys()
        except Exception as error:
            self.violations.append(f"the judge raised {error!r}: {traceback.format_exc()}")
        self._tell()

    def _judge_keys(self) -> None:
        judge = self._machine_on(Machine, self.members[0], "the judge", NONE)
        database = self._database_on(self.members[0], judge)
        left = hash_of(database)
        for function, name in self._afterwards:
            self._start(function, name, NONE)
            while not self._all_ended():
                self.scheduler.park(self.scheduler.now + _LOOK_S)
        self.violations = [failure(task, error) for task, error in self.scheduler.failures]
        if not self.violations:
            self.violations = [text for check in self._checkers for text in check(self.trace, database)]
        self.violations = self.violations or unsound(database)
        self.hash = hash_of(database, left)
        database.close()

    def _tell(self) -> None:
        report = {
            "workload": self.workload.name,
            "virtual_s": round(self.scheduler.now, 3),
            "clients": len(self._machines),
            "operations": len(self.trace.operations),
            "answered": sum(not op.unknown for op in self.trace.operations),
            "hash": self.hash,
            "trace": self.trace.hash(),
            "faults": dict(sorted(self.trace.faults.items())),
            "violations": self.violations,
        }
        print(f"fdbqueue {json.dumps(report)}", flush=True)
        if self.violations:  # beside the simulator's own traces
            lines = (f"{at_s:10.4f} {who:<16} {what} {told}" for at_s, who, what, told in self.trace.events)
            Path(EVENTS).write_text("\n".join(lines))
        for violation in self.violations:
            self.members[0].context.trace(Severity.WARNING_ALWAYS, "FdbqueueViolation", {"Text": violation})


def failure(task: Task, error: Exception) -> str:
    """The error that has ended a task, and the line that raised it."""
    place = traceback.format_tb(error.__traceback__)[-1].strip().replace("\n", " ")
    return f"{task.name} raised {error!r} ({place})"


def drawn(seed: int, workload: Workload) -> Faults:
    """The faults of clients, by the seed."""
    own = Faults.drawn(Random(f"{seed} faults"), workload.more).without(*workload.never).only(*OURS)
    return replace(own, die=own.die * _RARER, stall=own.stall * _RARER)


def others(workload: Workload) -> dict[str, float]:
    """All that a simulated cluster may do."""
    can_happen = {name: _CAN_HAPPEN for name in KINDS if name not in (*OURS, *workload.never)}
    return {**can_happen, "stall_max_s": _STALL_MAX_S, "slow_reply_max_s": _CAN_HAPPEN * 1e9}


def hash_of(database: Database, before: str = "") -> str:
    """A hash of all keys with their values, and of the hash before."""
    digest, begin = hashlib.sha256(before.encode()), b""
    while page := database.get_range(begin, b"\xff", limit=_PAGE_ROWS):
        for row in page:
            digest.update(b"%d %d " % (len(row.key), len(row.value)) + row.key + row.value)
        begin = page[-1].key + b"\x00"
    return digest.hexdigest()


# -- for the host ------------------------------------------------------------------------------------------

_enter: Any = None
_impl: Any = None
_runs: list[Run] = []


def prepare(enter: int) -> None:
    """Make the interpreter ready. `enter`: the address of the function that calls `work` on its own stack."""
    global _enter, _impl
    gc.disable()  # a collection drops futures at a moment that the seed does not decide
    logging.getLogger("fdbqueue").addHandler(logging.NullHandler())
    _enter = ctypes.PYFUNCTYPE(None)(enter)
    plants.sow()
    _impl = engine.load(lambda: _runs[-1].scheduler, turn)
    coroutines.LoopEngine = partial(engine.database, _impl)  # type: ignore[assignment, misc]


def make(name: str, place: int) -> Member:
    """A member, for one of the simulator's clients. A tester may be asked twice, and makes two."""
    return Member(name, Context(place))


def joined(member: Member) -> Run:
    """The run of a member that starts: the one that waits for members, or a new one."""
    if not _runs or len(_runs[-1].members) == member.context.client_count:
        _runs.append(Run(member, _impl))
    _runs[-1].members.append(member)
    return _runs[-1]


def turn() -> None:
    """Let the tasks go on that can, unless they do so now, and end the stage if they have ended."""
    run = _runs[-1]
    if not run.scheduler.turning and not run.is_over:
        _enter()
        run.end_stage()


def work() -> None:
    """One turn. The host calls it on the stack of the tasks."""
    _runs[-1].scheduler.turn()
