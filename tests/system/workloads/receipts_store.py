"""The store of the workload `receipts`: each commit has one of all the results that a client may see.

A late commit arrives before one of the next reads and commits, or never. Commits with the error 1039 are
late, and so are commits of calls that were interrupted as they sent them.
"""

from enum import Enum, auto
from random import Random
from typing import Any

from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded.database import Database as Engine
from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.view import Snapshot
from fdbqueue.testing.faults import PatientTransaction
from tests.system.workloads.paired_store import QuietRuntime

ARRIVES = 0.3


class Result(Enum):
    KNOWN = auto()
    UNKNOWN = auto()
    """1021, and the commit is done."""
    NOT_DONE = auto()
    """1021, and the commit is not done, and never will be."""
    LATE = auto()
    """1039: the commit is under way."""
    CONFLICT = auto()
    HEARD = auto()
    """The caller is interrupted as it waits for the commit, which is done."""
    LEFT = auto()
    """The caller is interrupted as it sends the commit, which is under way."""


CODES = {Result.UNKNOWN: 1021, Result.NOT_DONE: 1021, Result.LATE: 1039, Result.CONFLICT: 1020}
USUAL = (Result.KNOWN,) * 5
ALL = (*USUAL, *Result)


class UnsureEngine(Engine):
    def __init__(self, store: Store, runtime: QuietRuntime, random: Random) -> None:
        super().__init__(store, runtime)
        self._random = random
        self._late: list[CommitRequest] = []
        self.is_sure = False
        """True while each result is known, and no late commit arrives."""

    def create_transaction(self) -> "UnsureTransaction":
        self.require_open()
        return UnsureTransaction(self)

    def draw(self) -> Result:
        return Result.KNOWN if self.is_sure else self._random.choice(ALL)

    def send(self, request: CommitRequest) -> None:
        """Let the commit be under way."""
        if request.read_version is None:  # a cluster gives each commit one before it is sent
            with self._store.begin() as txn:
                request.read_version = txn.id()
        self._late.append(request)

    def let_arrive(self) -> None:
        """Let commits arrive that are under way."""
        if self.is_sure:
            return
        arrived = [request for request in self._late if self._random.random() < ARRIVES]
        self._late = [request for request in self._late if request not in arrived]
        for request in arrived:
            self.commit(request)

    def lose(self, request: CommitRequest | None) -> None:
        """Let a commit never arrive: its transaction goes on."""
        self._late = [late for late in self._late if late is not request]


class UnsureTransaction(PatientTransaction):
    def __init__(self, database: UnsureEngine) -> None:
        self._unsure_engine = database
        self._sent: CommitRequest | None = None
        self._is_heard = False
        super().__init__(database)

    def _open_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._unsure_engine.let_arrive()
        return super()._open_snapshot()

    def commit(self) -> Future:
        self._unsure_engine.let_arrive()
        self._unsure_engine.lose(self._sent)
        done = super().commit()
        return Interrupted(done) if self._is_heard else done

    def step_commit(self, request: CommitRequest) -> None:
        result = self._unsure_engine.draw()
        self._is_heard = result is Result.HEARD
        if result in (Result.LATE, Result.LEFT):
            self._sent = request
            self._unsure_engine.send(request)
        elif result not in (Result.NOT_DONE, Result.CONFLICT):
            super().step_commit(request)
        if result is Result.LEFT:
            raise KeyboardInterrupt
        if result in CODES:
            raise FDBError(CODES[result])


class Interrupted(Future):
    """The future of a commit: its first wait raises KeyboardInterrupt, the next one gives the result."""

    __slots__ = ("_done", "_was_waited_for")

    def __init__(self, done: Future) -> None:
        super().__init__()
        self._done, self._was_waited_for = done, False

    def wait(self) -> Any:
        if self._was_waited_for:
            return self._done.wait()
        self._was_waited_for = True
        raise KeyboardInterrupt
