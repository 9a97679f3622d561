"""The embedded engine of one simulated machine: every call a scheduling point, every reply open to faults.

Faults have kinds and probabilities, and dice decide when one happens.

All machines share one store. Each machine has a FaultyDatabase; its transactions replace the steps of the
engine's transactions (embedded/steps.py). A fault raises FDBError where a cluster would, so the code under
test catches it, retries, or gives up.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.limits import CLOCK_SKEW_S
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import CLUSTER_VERSION_CHANGED, FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.surface import Future, PendingFuture
from fdbqueue.embedded.transaction import Database, Transaction
from fdbqueue.embedded.view import Anchor, Batch, RangeQuery
from fdbqueue.embedded.writes import CommitRequest, Flush, Pending, WriteBuffer
from fdbqueue.testing.scheduler import SimulatedRuntime
from fdbqueue.testing.trace import Commit, Footprint, Hearer, Operation, Trace

# A process that meets one of these may be late with a heartbeat.
DELAYING = frozenset(
    {
        "die",
        "stall",
        "slow_reply",
        "clock_skew_s",
        "unknown_done",
        "unknown_not_done",
        "unknown_after_conflict",
    }
)


@dataclass(frozen=True)
class Faults:
    """The probability of each fault; zero switches it off. FoundationDB's contract allows all of them.

    - Each commit that writes: `not_committed` (1020); `unknown_done` and `unknown_not_done` (1021, after a
      commit or without one).
    - Each commit that writes, in a workload that asks for it: `version_changed` (1039). The commit arrives
      within two seconds, or never, and not after the next commit of its transaction.
    - Each request for a read version at batch priority, in a workload that asks for it: `batch_throttled`
      (1051).
    - Each commit that writes, right after a conflict of the same transaction: `unknown_after_conflict` (1021,
      after a commit or without one).
    - Each read or commit: `too_old` (1007). Each read: `future_version` (1009).
    - Each reply: `slow_reply`, up to `slow_reply_max_s`.
    - Each watch that is about to fire: `watch_late` (up to two seconds), `watch_very_late` (up to a minute),
      `watch_missed` (a value that changes back before the next look counts as unchanged).
    - Each watch: `watch_spurious` (it fires without a change).
    - Each scheduling point: `die` (the machine's calls never return, and no `finally` runs); `stall` (the
      whole machine stops for up to `stall_max_s`).
    - Once per client: its clock is up to `clock_skew_s` ahead.
    """

    not_committed: float = 0.0
    unknown_done: float = 0.0
    unknown_not_done: float = 0.0
    too_old: float = 0.0
    future_version: float = 0.0
    slow_reply: float = 0.0
    watch_late: float = 0.0
    watch_very_late: float = 0.0
    watch_missed: float = 0.0
    watch_spurious: float = 0.0
    die: float = 0.0
    stall: float = 0.0
    version_changed: float = 0.0
    batch_throttled: float = 0.0
    unknown_after_conflict: float = 0.0
    slow_reply_max_s: float = 4.0
    stall_max_s: float = 300.0
    clock_skew_s: float = 0.0

    def without(self, *names: str) -> "Faults":
        """Return these faults without those of `names`.

        Raises: TypeError for an unknown name.
        """
        return replace(self, **dict.fromkeys(names, 0.0))

    def only(self, *names: str) -> "Faults":
        """Return only the faults of `names`.

        Raises: TypeError for an unknown name.
        """
        return NONE if not names else replace(NONE, **{name: getattr(self, name) for name in names})

    @property
    def are_calm(self) -> bool:
        """True if none of them delays a process for long."""
        return not DELAYING & {*self.active}

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the faults that can happen."""
        return tuple(name for name in KINDS if getattr(self, name) > 0)

    @classmethod
    def drawn(cls, random: Random, more: Sequence[str] = ()) -> "Faults":
        """Draw the faults of one run: each is off in two runs of five, otherwise rare or frequent. `more`:
        the faults that other workloads do without.

        With all faults at once, a run ends before two of them can meet. One run in six has no fault at all,
        so that a late answer has no excuse.
        """
        if random.random() < 1 / 6:
            return NONE
        drawn = {name: _probability(random, low, high) for name, (low, high) in _RANGES.items()}
        skewed = random.random() < 0.6
        drawn |= {name: _probability(random, *_RANGES_OF_MORE[name]) for name in more}
        drawn |= {name: _probability(random, *bounds) for name, bounds in _RANGES_DRAWN_LAST.items()}
        return cls(**drawn, clock_skew_s=CLOCK_SKEW_S if skewed else 0.0)


NONE = Faults()

_RANGES: Mapping[str, tuple[float, float]] = {
    "not_committed": (0.01, 0.3),
    "unknown_done": (0.01, 0.3),
    "unknown_not_done": (0.01, 0.2),
    "too_old": (0.001, 0.05),
    "future_version": (0.001, 0.05),
    "slow_reply": (0.005, 0.3),
    "watch_late": (0.1, 0.9),
    "watch_very_late": (0.02, 0.5),
    "watch_missed": (0.1, 1.0),
    "watch_spurious": (0.05, 0.5),
    "die": (0.0003, 0.01),
    "stall": (0.0003, 0.01),
}
_RANGES_OF_MORE: Mapping[str, tuple[float, float]] = {
    "version_changed": (0.02, 0.5),
    "batch_throttled": (0.1, 1.0),
}
# Last, so that the other faults of a seed stay as they were before there was this one.
_RANGES_DRAWN_LAST: Mapping[str, tuple[float, float]] = {"unknown_after_conflict": (0.1, 1.0)}
KINDS = (*_RANGES, *_RANGES_OF_MORE, *_RANGES_DRAWN_LAST, "clock_skew_s")


def _probability(random: Random, low: float, high: float) -> float:
    """Return zero, or a value between the bounds, small ones as likely as large ones."""
    if random.random() < 0.4:
        return 0.0
    return float(low * (high / low) ** random.random())


class Dice:
    """Decides by one random number which one of several faults happens, mostly none."""

    __slots__ = ("_faces", "_random", "total")

    def __init__(self, random: Random, faults: Faults, *names: str) -> None:
        self._random = random.random
        self._faces = [(name, getattr(faults, name)) for name in names]
        self.total = sum(probability for _, probability in self._faces)

    def throw(self) -> str | None:
        """Return the name of the fault that happens now, or None."""
        if not self.total:
            return None
        rest = self._random()
        if rest >= self.total:
            return None
        for name, probability in self._faces:
            rest -= probability
            if rest < 0:
                return name
        return None


def scattered(random: Random, low: float, high: float) -> float:
    """Return a duration between two bounds, short ones as likely as long ones."""
    return float(low * (high / low) ** random.random())


class PatientTransaction(Transaction):
    """A transaction of a client with the libraries of two releases: it tries again after 1039, too."""

    def on_error(self, error: Any) -> Future:
        is_changed = getattr(error, "code", error) == CLUSTER_VERSION_CHANGED
        return super().on_error(1021 if is_changed else error)


_CODES = {
    "not_committed": 1020,
    "unknown_done": 1021,
    "unknown_not_done": 1021,
    "too_old": 1007,
    "future_version": 1009,
    "version_changed": CLUSTER_VERSION_CHANGED,
    "batch_throttled": 1051,
}
STALE = "begins anew"
"""An event: without a commit, its body has raised a conflict, as what its process remembers has changed."""
UNPACED = "tries again without batch priority"
_WATCH_LATE_S = (0.001, 2.0)
_WATCH_VERY_LATE_S = (5.0, 60.0)
_COMMIT_LATE_S = (0.0002, 2.0)
_ARRIVES_P = 0.75
_SLOW_MIN_S, _STALL_MIN_S = 0.001, 1.0
_NO_ANSWER_S = 1.0
_REFUSED_MAX = 100
_STARVED_MAX_S = 86_400.0


class Machine:
    """The simulated machine behind a database: its clock, its faults and its trace."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        random: Random,
        faults: Faults,
        trace: Trace,
        outages: Sequence[Sequence[tuple[float, float]]] = (),
        hearers: Sequence[Hearer] = (),
    ) -> None:
        """`outages`: pairs of virtual seconds without answers. The `hearers` hear of each commit."""
        self.thread = runtime
        self.runtime: Runtime = runtime  # that of the code under test
        self._outages = outages
        self.hearers = hearers
        self.scheduler = runtime.scheduler
        self.host = runtime.host
        self.name = runtime.host.name
        self.random = random
        self.trace = trace
        self.finished = False
        self.gives_signs = False  # of life, by its requests in waiting lines
        self.starving: Sequence[tuple[float, float]] = ()  # as Simulation.starving
        self.transactions = 0
        self.operations: dict[int, Operation] = {}  # the one under way, by thread
        self.watches: list[SimulatedWatch] = []  # held, so that no garbage collection cancels one
        self.set_faults(faults)

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self._points = Dice(self.random, faults, "die", "stall", "slow_reply")
        self._reads = Dice(self.random, faults, "too_old", "future_version")
        self.commits = Dice(
            self.random,
            faults,
            "not_committed",
            "unknown_done",
            "unknown_not_done",
            "too_old",
            "version_changed",
        )
        self.firings = Dice(self.random, faults, "watch_late", "watch_very_late", "watch_missed")

    @property
    def dead(self) -> bool:
        return self.host.dead

    @property
    def ended(self) -> bool:
        return self.finished or self.dead

    @property
    def open_watches(self) -> int:
        """Return the number of armed watches that have not fired; a connection has a limit of them."""
        return sum(watch.is_armed and not watch.is_ready() for watch in self.watches)

    def operation(self) -> Operation | None:
        return self.operations.get(self.runtime.thread_id())

    def thread_name(self) -> str:
        current = self.scheduler.current
        return self.name if current is None else current.name

    def fault(self, name: str) -> None:
        self.trace.fault(self.scheduler.now, self.name, name)

    def waits_in_vain(self) -> bool:
        """True in an outage, after the time that a client waits for an answer."""
        now = self.scheduler.now
        for outages in self._outages:  # each read comes here, and most runs have no outage
            for start, stop in outages:
                if start <= now < stop:
                    self.wait(_NO_ANSWER_S)
                    return True
        return False

    def starves_for(self) -> float:
        """Seconds until transactions of batch priority get read versions again; 0 if they do now."""
        now = self.scheduler.now
        return max((stop - now for start, stop in self.starving if start <= now < stop), default=0.0)

    def happens(self, name: str) -> bool:
        probability = getattr(self.faults, name)
        if not probability or self.random.random() >= probability:
            return False
        self.fault(name)
        return True

    def point(self) -> None:
        """Let other threads run; this machine may stall or die here."""
        trouble = self._points.throw()
        if trouble is not None:
            self._suffer(trouble)
        self.pass_on()

    def pass_on(self) -> None:
        self.scheduler.point()

    def wait(self, seconds: float) -> None:
        self.runtime.sleep(seconds)

    def _suffer(self, trouble: str) -> None:
        self.fault(trouble)
        now, host = self.scheduler.now, self.host
        if trouble == "die":
            self.scheduler.die(host)
        elif trouble == "stall":
            self.scheduler.stall(host, now + scattered(self.random, _STALL_MIN_S, self.faults.stall_max_s))
        else:
            self.wait(scattered(self.random, _SLOW_MIN_S, self.faults.slow_reply_max_s))

    def read(self, *, spared: bool = False) -> None:
        """Let a read meet its faults, if it is `spared` only outages. Raises FDBError."""
        self.point()
        is_away = self.waits_in_vain()
        trouble = "future_version" if is_away else self._reads.throw()
        if trouble is not None and (is_away or not spared):
            self.fault(trouble)
            raise FDBError(_CODES[trouble])


class SimulatedWatch(PendingFuture):
    """A watch that may fire late or without a change, or miss an undone one; a lasting one always fires."""

    __slots__ = ("_database", "_key", "_seen", "is_armed")

    def __init__(self, database: "FaultyDatabase", key: bytes) -> None:
        super().__init__(database.machine.runtime, self._disarm)
        self._database = database
        self._key = key
        self._seen: bytes | None = None
        self.is_armed = False
        database.machine.watches.append(self)

    def _disarm(self) -> None:
        self._database.store.watches.disarm(self._key, id(self))

    def armed(self, seen: bytes | None) -> None:
        self._seen, self.is_armed = seen, True
        if self._database.machine.happens("watch_spurious"):
            self._later(_WATCH_VERY_LATE_S, self._fire)

    def complete(self, result: Any = None, error: Exception | None = None) -> None:
        """Fire, now or late, since the engine saw the value change; end at once with an `error`."""
        machine = self._database.machine
        if error is not None:
            super().complete(result, error)
        elif not machine.dead and not self.is_ready():
            self._notice(machine.firings.throw())

    def _notice(self, trouble: str | None) -> None:
        if trouble is None:
            self._fire()
            return
        self._database.machine.fault(trouble)
        times = _WATCH_VERY_LATE_S if trouble == "watch_very_late" else _WATCH_LATE_S
        self._later(times, self._look_again if trouble == "watch_missed" else self._fire)

    def _later(self, times: tuple[float, float], action: Callable[[], None]) -> None:
        machine = self._database.machine
        machine.scheduler.call_at(machine.scheduler.now + scattered(machine.random, *times), action)

    def _look_again(self) -> None:
        """Compare as a polling storage server does: a value that changed back counts as unchanged."""
        with self._database.store.begin() as txn:
            changed = layout.get(txn, self._key) != self._seen
        if changed:
            self._fire()
        elif not self.is_ready():
            self._database.store.watches.arm(self._key, self._seen, self)

    def _fire(self) -> None:
        super().complete()


class FaultyDatabase(Database):
    def __init__(self, store: Store, machine: Machine) -> None:
        super().__init__(store, machine.runtime)
        self.store = store
        self.machine = machine

    @property
    def starves(self) -> bool:  # type: ignore[override]  # each machine decides, not the class
        return bool(self.machine.starving)

    def create_transaction(self) -> "FaultyTransaction":
        return FaultyTransaction(self)

    def knows_processes(self) -> bool:
        return not self.machine.gives_signs


class FaultyTransaction(PatientTransaction):
    """A transaction of the engine; each step may meet a fault of its machine."""

    def __init__(self, database: FaultyDatabase) -> None:
        self._simulated = database
        self._machine = database.machine
        self._machine.transactions += 1
        self._number = self._machine.transactions
        self._late: CommitRequest | None = None
        self._met_conflict = False
        """True from a conflict to the next commit."""
        self._refused = 0
        """Attempts since the last commit that a fault of a read has ended."""
        super().__init__(database)

    def step_begin(self) -> None:
        super().step_begin()
        self._keys_read = 0
        self._read_log: list[tuple[str, bytes, Any]] = []
        self._is_batch = self._was_batch = self._is_sent = False

    def on_error(self, error: Any) -> Future:
        was_batch = self._is_batch
        if not self._is_sent and getattr(error, "code", error) == _CODES["not_committed"]:
            machine = self._machine
            machine.trace.note(machine.scheduler.now, machine.thread_name(), STALE, self._number)
        ready = super().on_error(error)
        self._was_batch = was_batch  # a reset ends it
        return ready

    def step_option(self, name: str, param: Any) -> None:
        self._is_batch = self._is_batch or name == "priority_batch"
        super().step_option(name, param)

    def get_read_version(self) -> Future:
        """At batch priority: refused, or while that starves, a future that is ready at the end of that."""
        if self._is_throttled():
            return Future(None, FDBError(_CODES["batch_throttled"]))
        left_s = self._starves_for()
        if not left_s:
            return super().get_read_version()
        machine = self._machine
        late = PendingFuture(machine.runtime)
        if left_s < inf:
            machine.scheduler.call_at(machine.scheduler.now + left_s, late.complete)
        return late

    def _is_throttled(self) -> bool:
        asks = self._is_batch and not self.has_read_version
        return asks and self._machine.happens("batch_throttled")

    def _starves_for(self) -> float:
        return self._machine.starves_for() if self._is_batch and not self.has_read_version else 0.0

    # -- reads --------------------------------------------------------------------------------------------

    def _meet_faults(self) -> None:
        """Let a read meet its faults, but none after _REFUSED_MAX attempts without a commit: with a fault for
        every twenty reads, hardly any attempt with 150 of them comes to its end.
        """
        if self._is_batch and (left_s := self._starves_for()):
            self._machine.wait(min(left_s, _STARVED_MAX_S))
        if self._was_batch and not self._is_batch:
            self._machine.trace.note(self._machine.scheduler.now, self._machine.thread_name(), UNPACED)
        try:
            self._machine.read(spared=self._refused >= _REFUSED_MAX)
        except FDBError:
            self._refused += 1
            raise

    def step_read_version(self) -> int:
        self._meet_faults()
        return super().step_read_version()

    def step_read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        self._meet_faults()
        found = super().step_read(key, is_snapshot)
        self._keys_read += 1
        self._log(is_snapshot, key, found)
        return found

    def step_find_key(self, anchor: Anchor, is_snapshot: bool) -> bytes:
        self._meet_faults()
        found = super().step_find_key(anchor, is_snapshot)
        self._keys_read += max(1, abs(anchor.offset))
        self._log(is_snapshot, anchor.given, found)
        return found

    def step_read_range(self, query: RangeQuery, is_snapshot: bool) -> Batch:
        self._meet_faults()
        batch = super().step_read_range(query, is_snapshot)
        self._keys_read += max(1, len(batch.records))
        if self._machine.trace.detailed:
            for record in batch.records:
                self._log(is_snapshot, record.key, record.value)
            if not batch.records:
                self._log(is_snapshot, query.begin.given, "nothing from here")
        return batch

    def _log(self, is_snapshot: bool, key: bytes, found: Any) -> None:
        if self._machine.trace.detailed:
            self._read_log.append(("saw" if is_snapshot else "read", key, found))

    # -- watches, and the commit --------------------------------------------------------------------------

    def step_new_watch(self, key: bytes) -> SimulatedWatch:
        return SimulatedWatch(self._simulated, key)

    def step_arm_watch(self, key: bytes, seen: bytes | None, watch: PendingFuture) -> None:
        assert isinstance(watch, SimulatedWatch)
        watch.armed(seen)
        super().step_arm_watch(key, seen, watch)

    def commit(self) -> Future:
        self._machine.point()
        if self._late is not None:
            self._arrive(self._late)  # before this commit, or never
        return super().commit()

    def step_commit(self, request: CommitRequest) -> None:
        machine = self._machine
        self._refused, self._is_sent = 0, True
        trouble = "unknown_not_done" if machine.waits_in_vain() else self._trouble()
        self._met_conflict = trouble == "not_committed"
        if trouble is None:
            self._apply(request, "committed")
            machine.point()  # other clients see the commit before the reply arrives
            return
        machine.fault(trouble)
        if trouble == "unknown_done":
            self._apply(request, "committed, unknown to its client")
        elif trouble == "version_changed":
            self._footprint(request, "is late, unknown to its client")
            self._set_off(request)
        else:
            self._footprint(request, f"refused: {trouble}")
        machine.point()
        raise FDBError(_CODES[trouble])

    def _trouble(self) -> str | None:
        """Return the fault of this commit, if any. The one before may have met a conflict."""
        machine = self._machine
        if self._met_conflict and machine.happens("unknown_after_conflict"):
            return machine.random.choice(("unknown_done", "unknown_not_done"))
        return machine.commits.throw()

    def _apply(self, request: CommitRequest, outcome: str) -> None:
        try:
            super().step_commit(request)
        except FDBError as error:
            self._met_conflict = error.code == _CODES["not_committed"]
            self._footprint(request, f"refused: {error.code}")
            raise
        self._tell(request)
        self._footprint(request, outcome)

    def _tell(self, request: CommitRequest) -> None:
        """Tell the hearers before any other commit: no task has run since."""
        machine = self._machine
        if not machine.hearers or request.version is None:
            return
        operation = machine.operation()
        commit = Commit(
            request.version,
            request.read_version,
            machine.thread_name(),
            machine.name,
            self._number,
            "" if operation is None else f"{operation.name} {operation.subject}",
            machine.runtime.now_us(),
            request.flush is not Flush.NOW,
            len(machine.trace.events),
        )
        for hearer in machine.hearers:
            hearer.committed(self._simulated.store, request, commit)

    def _set_off(self, request: CommitRequest) -> None:
        """Let `request` arrive later, or never."""
        machine = self._machine
        if machine.random.random() < _ARRIVES_P:
            if request.read_version is None:  # a cluster gives each commit one before it is sent
                with self._simulated.store.begin() as txn:
                    request.read_version = txn.id()
            self._late = request
            due = machine.scheduler.now + scattered(machine.random, *_COMMIT_LATE_S)
            machine.scheduler.call_at(due, partial(self._arrive, request))

    def _arrive(self, request: CommitRequest) -> None:
        if self._late is not request:
            return
        self._late = None
        self._simulated.commit(request)
        self._tell(request)
        outcome = "refused" if request.error is not None else "committed"
        machine = self._machine
        machine.trace.note(machine.scheduler.now, machine.name, f"late transaction {outcome}", self._number)

    def _footprint(self, request: CommitRequest, outcome: str) -> None:
        machine, buffer = self._machine, request.buffer
        footprint = Footprint(
            machine.thread_name(),
            self._number,
            machine.scheduler.now,
            outcome,
            self._keys_read,
            len(buffer.entries) + len(buffer.stamped_keys) + sum(1 for _ in buffer.cleared),
            request.size_bytes,
            operation=machine.operation(),
        )
        if machine.trace.detailed:
            footprint.reads, footprint.writes = self._read_log, list(described(buffer))
        machine.trace.committed(footprint)


def described(buffer: WriteBuffer) -> Iterator[tuple[str, bytes, Any]]:
    """Describe each write of a buffer: (operation, key, operand)."""
    for begin, end in buffer.cleared:
        yield "clear range to", begin, end
    for key, entry in buffer.entries.items():
        if entry is None:
            yield "clear", key, None
        elif isinstance(entry, Pending):
            yield "operate", key, tuple(operand for _, operand in entry.steps)
        else:
            yield "set", key, entry
    for body, _, value in buffer.stamped_keys:
        yield "set with versionstamp", body, value
