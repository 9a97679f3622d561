"""The embedded engine of one simulated machine: every call a scheduling point, every reply open to faults.

All machines share one store; each has a FaultyDatabase, whose transactions are the engine's own with the
four ways to read, the commit and the watches intercepted. A fault raises the engine's FDBError where a
cluster would, so that whoever catches, retries or gives up is the code under test.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from fdbqueue.embedded import layout
from fdbqueue.embedded.database import Database
from fdbqueue.embedded.futures import Future, PendingFuture
from fdbqueue.embedded.selectors import Anchor
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.embedded.writes import Pending, WriteBuffer
from fdbqueue.fdberror import FDBError
from fdbqueue.testing.faults import Dice, Faults, scattered
from fdbqueue.testing.runtime import SimulatedRuntime
from fdbqueue.testing.trace import Footprint, Operation, Trace

_CODES = {
    "not_committed": 1020,
    "unknown_done": 1021,
    "unknown_not_done": 1021,
    "too_old": 1007,
    "future_version": 1009,
}
_WATCH_LATE_S = (0.001, 2.0)
_WATCH_VERY_LATE_S = (5.0, 60.0)
_SLOW_MIN_S = 0.001
_STALL_MIN_S = 1.0
_NO_ANSWER_S = 1.0


class Machine:
    """What the engine needs to know of the simulated machine that calls it."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        random: Random,
        faults: Faults,
        trace: Trace,
        outages: Sequence[tuple[float, float]] = (),
    ) -> None:
        """`outages`: from when to when, in virtual seconds, the database answers nobody."""
        self.runtime = runtime
        self._outages = outages
        self.scheduler = runtime.scheduler
        self.name = runtime.host.name
        self.random = random
        self.trace = trace
        self.finished = False
        self.transactions = 0
        self.operations: dict[int, Operation] = {}  # the one under way, by thread
        self.watches: list[SimulatedWatch] = []  # held, so that no garbage collection cancels one
        self.set_faults(faults)

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self._points = Dice(self.random, faults, "die", "stall", "slow_reply")
        self._reads = Dice(self.random, faults, "too_old", "future_version")
        self.commits = Dice(
            self.random, faults, "not_committed", "unknown_done", "unknown_not_done", "too_old"
        )
        self.firings = Dice(self.random, faults, "watch_late", "watch_very_late", "watch_missed")

    @property
    def dead(self) -> bool:
        return self.runtime.host.dead

    @property
    def ended(self) -> bool:
        """Whether its client has finished, or will never."""
        return self.finished or self.dead

    @property
    def open_watches(self) -> int:
        """How many watches were left to themselves, to count against the limit of a connection."""
        return sum(watch.is_armed and not watch.is_ready() for watch in self.watches)

    def operation(self) -> Operation | None:
        """What the running thread is doing for its client."""
        return self.operations.get(self.runtime.thread_id())

    def thread_name(self) -> str:
        current = self.scheduler.current
        return self.name if current is None else current.name

    def fault(self, name: str) -> None:
        self.trace.fault(self.scheduler.now, self.name, name)

    def waits_in_vain(self) -> bool:
        """Whether the database answers nobody; then so much time has passed until that is known."""
        if not any(start <= self.scheduler.now < stop for start, stop in self._outages):
            return False
        self.runtime.sleep(_NO_ANSWER_S)
        return True

    def happens(self, name: str) -> bool:
        """Whether the fault `name` happens now."""
        probability = getattr(self.faults, name)
        if not probability or self.random.random() >= probability:
            return False
        self.fault(name)
        return True

    def point(self) -> None:
        """A call on the engine: others may run; this machine may stall, or end here."""
        trouble = self._points.throw()
        if trouble is not None:
            self._suffer(trouble)
        self.scheduler.point()

    def _suffer(self, trouble: str) -> None:
        self.fault(trouble)
        now, host = self.scheduler.now, self.runtime.host
        if trouble == "die":
            self.scheduler.die(host)
        elif trouble == "stall":
            self.scheduler.stall(host, now + scattered(self.random, _STALL_MIN_S, self.faults.stall_max_s))
        else:
            self.runtime.sleep(scattered(self.random, _SLOW_MIN_S, self.faults.slow_reply_max_s))

    def read(self) -> None:
        """A read is asked for. Raises FDBError for one that fails."""
        self.point()
        trouble = "future_version" if self.waits_in_vain() else self._reads.throw()
        if trouble is not None:
            self.fault(trouble)
            raise FDBError(_CODES[trouble])


class SimulatedWatch(PendingFuture):
    """A watch that may fire late, or for nothing, or miss a change that was undone; never lost for good."""

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
        """Its transaction, which saw the value `seen`, has committed."""
        self._seen, self.is_armed = seen, True
        if self._database.machine.happens("watch_spurious"):
            self._later(_WATCH_VERY_LATE_S, self._fire)

    def complete(self, result: Any = None, error: Exception | None = None) -> None:
        """The engine has seen the value change, or the watch is over."""
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
        """What a storage server does that polls: a value that has changed back has not changed."""
        with self._database.store.begin() as txn:
            changed = layout.get(txn, self._key) != self._seen
        if changed:
            self._fire()
        elif not self.is_ready():
            self._database.store.watches.arm(self._key, self._seen, self)

    def _fire(self) -> None:
        super().complete()


class FaultyDatabase(Database):
    """The shared store, as one machine sees it."""

    def __init__(self, store: Store, machine: Machine) -> None:
        super().__init__(store, machine.runtime)
        self.store = store
        self.machine = machine

    def create_transaction(self) -> "FaultyTransaction":
        return FaultyTransaction(self)

    def _new_watch(self, key: bytes) -> SimulatedWatch:
        return SimulatedWatch(self, key)


class FaultyTransaction(Transaction):
    """A transaction whose reads, commit and watches meet the faults of its machine."""

    def __init__(self, database: FaultyDatabase) -> None:
        self._machine = database.machine
        self._machine.transactions += 1
        self._number = self._machine.transactions
        super().__init__(database)

    def _fresh(self) -> None:
        super()._fresh()
        self._keys_read = 0
        self._read_log: list[tuple[str, bytes, Any]] = []

    # -- reads --------------------------------------------------------------------------------------------

    def _read_version(self) -> int:
        self._machine.read()
        return super()._read_version()

    def _read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        self._machine.read()
        found = super()._read(key, is_snapshot)
        self._keys_read += 1
        self._log(is_snapshot, key, found)
        return found

    def _locate(self, key: bytes, anchor: Anchor, is_snapshot: bool) -> bytes:
        self._machine.read()
        found = super()._locate(key, anchor, is_snapshot)
        self._keys_read += max(1, abs(anchor.offset))
        self._log(is_snapshot, key, found)
        return found

    def _read_range(
        self,
        ends: list[tuple[bytes, bool, int]],
        limit: int,
        byte_target: int | None,
        reverse: bool,
        is_snapshot: bool,
    ) -> Future:
        self._machine.read()
        future = super()._read_range(ends, limit, byte_target, reverse, is_snapshot)
        records, count, _ = future.wait()
        self._keys_read += max(1, count)
        if self._machine.trace.detailed:
            for record in records:
                self._log(is_snapshot, record.key, record.value)
            if not records:
                self._log(is_snapshot, ends[0][0], "nothing from here")
        return future

    def _log(self, is_snapshot: bool, key: bytes, found: Any) -> None:
        if self._machine.trace.detailed:
            self._read_log.append(("saw" if is_snapshot else "read", key, found))

    # -- watches and the commit ---------------------------------------------------------------------------

    def _arm_watches(self) -> None:
        watches = self._watches
        for _, seen, watch in watches:
            watch.armed(seen)  # type: ignore[attr-defined]  # made by FaultyDatabase
        super()._arm_watches()

    def _commit(self) -> None:
        machine = self._machine
        machine.point()
        if not self._buffer.writes_anything():
            super()._commit()
            return
        trouble = "unknown_not_done" if machine.waits_in_vain() else machine.commits.throw()
        if trouble is None:
            self._apply("committed")
        else:
            machine.fault(trouble)
            self._commit_in_trouble(trouble)
        machine.point()  # the reply is on its way: the others see the commit before its client knows

    def _commit_in_trouble(self, trouble: str) -> None:
        """Commit, or not, and raise what the client is told."""
        if trouble == "unknown_done":
            # The client is told nothing, so nothing of its may become ready.
            watches, self._watches, version, self._stamp = self._watches, [], self._stamp, None
            self._apply("committed, unknown to its client")
            self._watches, self._stamp = watches, version
        else:
            self._footprint(f"refused: {trouble}")
        self._machine.point()
        raise FDBError(_CODES[trouble])

    def _apply(self, outcome: str) -> None:
        try:
            super()._commit()
        except FDBError as error:
            self._footprint(f"refused: {error.code}")
            raise
        self._footprint(outcome)

    def _footprint(self, outcome: str) -> None:
        machine, buffer = self._machine, self._buffer
        footprint = Footprint(
            machine.thread_name(),
            self._number,
            machine.scheduler.now,
            outcome,
            self._keys_read,
            len(buffer.entries) + len(buffer.stamped_keys) + sum(1 for _ in buffer.cleared),
            self._size_bytes,
            operation=machine.operation(),
        )
        if machine.trace.detailed:
            footprint.reads, footprint.writes = self._read_log, list(described(buffer))
        machine.trace.committed(footprint)


def described(buffer: WriteBuffer) -> Iterator[tuple[str, bytes, Any]]:
    """What a buffer does to which key, in words."""
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
