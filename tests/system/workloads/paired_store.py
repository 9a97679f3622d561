"""The store of the workload `paired`: its rows can be set back, and a process has a trap in its commits.

The trap has another call happen at one moment of a call: at the begin of one of its transactions, just before
the commit, or just after it. Or it lets commits end in errors, done or not.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.store import Store, private_store
from fdbqueue.embedded.surface import Future
from fdbqueue.embedded.transaction import Database as Engine
from fdbqueue.embedded.view import NOTHING, Anchor, Batch, RangeQuery, Snapshot, conflict_range
from fdbqueue.embedded.writes import CommitRequest, KeySet
from fdbqueue.testing.engine import PatientTransaction
from fdbqueue.testing.scheduler import SimulatedRuntime
from fdbqueue.testing.simulation import Client

Rows = dict[bytes, bytes]

_END = b"\xff"
_NOT_COMMITTED, _UNKNOWN, _VERSION_CHANGED = 1020, 1021, 1039
_RECEIPTS = RootKeys(DEFAULT_ROOT).receipts


class Commit(NamedTuple):
    """The keys that one commit has seen, those that it conflicts with, and those that conflict with it."""

    seen: KeySet
    reads: KeySet
    writes: KeySet


NEVER = ("die", "stall", "slow_reply", "clock_skew_s")
"""The faults of the run would meet no call: each pair has databases of its own."""


class When(Enum):
    """The moment of the other call. BEGIN and AFTER are those of the two serial orders."""

    BEGIN = auto()
    BEFORE_COMMIT = auto()
    AFTER = auto()
    BETWEEN = auto()
    """A part of the other call comes first, and the rest of it last."""


_STEPS_FROM_THE_BEGIN = {When.BEGIN: 1, When.BETWEEN: 2}
"""The number of steps of the other process, if the first one happens at the begin of an attempt."""


class Trouble(Enum):
    """The end of a commit: its error, and true if it is done."""

    CONFLICT = (_NOT_COMMITTED, False)
    LOST = (_UNKNOWN, False)
    DONE = (_UNKNOWN, True)
    CHANGED = (_VERSION_CHANGED, True)
    LATE = (_VERSION_CHANGED, False)
    """It arrives just before the next commit, and is refused if it conflicts by then."""


class Trap:
    """Has another call happen in the transaction of which the number is known, or in the `skip`th commit."""

    def __init__(self) -> None:
        self.others: list[Callable[[], None]] = []
        """The next steps of the other process."""
        self.when = When.BEFORE_COMMIT
        self.skip = 0
        self.attempts = 0
        """Attempts of transactions that have begun."""
        self.sprung: int | None = None
        """The number of the attempt in which `other` happened."""
        self.committing: int | None = None
        """The number of the attempt that makes the `skip`th commit."""
        self.seed: str | None = None
        """The seed of the call, if it makes its random numbers in each attempt."""
        self.conflicted = False
        """True if the commit of that attempt met a conflict."""
        self.commits_made: list[Commit] = []
        self.before_commit: Callable[[], None] | None = None
        """Called before each commit: it may wait, so that other threads come meanwhile."""
        self._clean, self._troubles = 0, list[Trouble]()
        self.late: CommitRequest | None = None

    def doubt(self, clean: int, troubles: Sequence[Trouble]) -> None:
        """Let the commits behind the first `clean` ones end so."""
        self._clean, self._troubles, self.late = clean, [*troubles], None

    def trouble(self) -> Trouble | None:
        """The end of the next commit; None for the usual one."""
        if self._clean:
            self._clean -= 1
            return None
        return self._troubles.pop(0) if self._troubles else None

    def set(self, when: When, other: Callable[[], None], skip: int = 0, at: int | None = None) -> None:
        """`at`: the attempt for serial orders, as `sprung` tells after BEFORE_COMMIT."""
        self.when, self.skip, self.attempts = when, skip, 0
        self.others = [other] * _STEPS_FROM_THE_BEGIN.get(when, 1)
        self.sprung, self.conflicted, self.committing = at, False, None
        self.commits_made = []

    def begins(self) -> int:
        """The number of a new attempt."""
        self.attempts += 1
        return self.attempts

    def reads(self, attempt: int) -> None:
        """The attempt gets its read version."""
        if attempt == self.sprung and len(self.others) == _STEPS_FROM_THE_BEGIN.get(self.when):
            self._spring()

    def commits(self, attempt: int) -> None:
        self.reads(attempt)  # it may have read nothing
        if self.skip == 0:
            self.committing = attempt
            if self.when is When.BEFORE_COMMIT and self.others:
                self.sprung = attempt
                self._spring()
        self.skip -= 1

    def committed(self, attempt: int) -> None:
        if self.when in (When.AFTER, When.BETWEEN) and attempt == self.sprung:
            self._spring()

    def refused(self, attempt: int, code: int) -> None:
        self.conflicted = self.conflicted or (attempt == self.sprung and code == _NOT_COMMITTED)

    def forget(self) -> None:
        """Let nothing happen any more."""
        self.others = []

    def _spring(self) -> None:
        if self.others:
            self.others.pop(0)()


class TrappedEngine(Engine):
    """The store, as the process sees it that makes the first call of a pair."""

    def __init__(self, store: Store, runtime: "QuietRuntime", trap: Trap) -> None:
        super().__init__(store, runtime)
        self.trap, self.quiet = trap, runtime

    def create_transaction(self) -> "TrappedTransaction":
        self.require_open()
        return TrappedTransaction(self)


class TrappedTransaction(PatientTransaction):
    def __init__(self, database: TrappedEngine) -> None:
        self._twins, self._trap, self._twins_runtime = database, database.trap, database.quiet
        super().__init__(database)

    def step_begin(self) -> None:
        super().step_begin()
        self._attempt, self._seen = self._trap.begins(), KeySet(set(), [])

    def step_read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        self._seen.points.add(key)
        return super().step_read(key, is_snapshot)

    def step_find_key(self, anchor: Anchor, is_snapshot: bool) -> bytes:
        found = super().step_find_key(anchor, is_snapshot)
        self._seen.add_range(*sorted((anchor.key, found + b"\x00")))
        return found

    def step_read_range(self, query: RangeQuery, is_snapshot: bool) -> Batch:
        batch = super().step_read_range(query, is_snapshot)
        if batch is not NOTHING:
            self._seen.add_range(*conflict_range(query, batch))
        return batch

    def _open_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._trap.reads(self._attempt)
        return super()._open_snapshot()

    def step_commit(self, request: CommitRequest) -> None:
        if self._trap.before_commit is not None:
            self._trap.before_commit()
        trouble = self._trap.trouble()
        if trouble is None:
            self._commit_well(request)
            return
        error, is_done = trouble.value
        if is_done:
            self._commit_well(request)
        if trouble is Trouble.LATE:
            self._trap.late = request
        raise FDBError(error)

    def commit(self) -> Future:
        late, self._trap.late = self._trap.late, None
        if late is not None:
            self._twins.commit(late)
        return super().commit()

    def _commit_well(self, request: CommitRequest) -> None:
        self._trap.commits(self._attempt)
        try:
            super().step_commit(request)
        except FDBError as error:
            self._trap.refused(self._attempt, error.code)
            if self._trap.seed is not None:
                self._twins_runtime.draw_from(self._trap.seed)
            raise
        self._trap.commits_made.append(Commit(self._seen, request.reads, request.buffer.conflicts))
        self._trap.committed(self._attempt)


class QuietThread:
    """A thread that never begins: all that happens is asked for."""

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return True


class QuietRuntime(SimulatedRuntime):
    """A clock that stands still until it is moved, no threads, and random numbers from the seed of a call."""

    def spawn(self, target: Callable[[], object], name: str) -> Any:  # noqa: ARG002  # as every runtime
        return QuietThread()

    def draw_from(self, seed: str) -> None:
        """Let a call have the same random numbers in each order."""
        random = Random(seed)
        self.random_bytes, self.random = random.randbytes, random.random


class Twins:
    """Two processes with one store: the first has the trap. `own`: a third one, for all else."""

    def __init__(self, client: Client, memory: str | None) -> None:
        self.client, thread = client, client.runtime
        self.runtime = QuietRuntime(thread.scheduler, thread.host, Random(client.random.random()), 7)
        self.now = self.runtime.now_us()
        self.move_to(self.now)
        self._store = private_store(self.runtime, memory)
        self._store.users = 1
        self.trap = Trap()
        self.own = Database(Engine(self._store, self.runtime), self.runtime)
        self.restart()

    def restart(self) -> None:
        """Let both processes remember nothing."""
        self.first = Database(TrappedEngine(self._store, self.runtime, self.trap), self.runtime)
        self.second = Database(Engine(self._store, self.runtime), self.runtime)
        self.sides = (self.first, self.second)

    def move_to(self, now: int) -> None:
        self.now = max(self.now, now)
        self.runtime.hold(self.now)

    def rows(self) -> Rows:
        with self._store.begin() as txn:
            return dict(layout.scan(txn, b"", _END))

    def set_back(self, rows: Rows) -> None:
        """Let the store have these rows again."""
        now = self.rows()
        cleared = now.keys() - rows.keys()
        changed = [(key, value) for key, value in rows.items() if now.get(key) != value]

        def body(tr: Any) -> None:
            for key in cleared:
                tr.clear(key)
            for key, value in changed:
                tr.set(key, value)

        if cleared or changed:
            run(self.own, body)

    def close(self) -> None:
        Engine(self._store, self.runtime).close()


def told(rows: Rows) -> Rows:
    """The rows without receipts, which differ from one attempt to the next."""
    start, stop = _RECEIPTS.start, _RECEIPTS.stop
    return {key: value for key, value in rows.items() if not start <= key < stop}
