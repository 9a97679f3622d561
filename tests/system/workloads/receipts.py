"""Calls of one process, each commit of which has any result: known, unknown, late, a conflict, an interrupt.

Values and tasks are put and taken. Each put that returns has its effect once, whatever commit arrives late
and whichever slots the calls use again. A call that was interrupted has its effect at most once. A take has
the lease that it returns, and no other.

A late commit arrives before one of the next reads and commits, or never. Commits with the error 1039 are
late, and so are commits of calls that were interrupted as they sent them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded.store import Store, private_store
from fdbqueue.embedded.surface import Future
from fdbqueue.embedded.transaction import Database as Engine
from fdbqueue.embedded.view import Snapshot
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import PatientTransaction
from fdbqueue.testing.simulation import MEMORY, Checker, Client, Simulation
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_world import NEVER, QuietRuntime

NAME, ALL = "receipts", 1_000
UNSURE = (KeyboardInterrupt, FDBError)
VERBS = ("enqueue", "enqueue", "dequeue", "put", "put", "finish")
ARRIVES = 0.3


@workload(clients=1, steps=200, never=NEVER)
def receipts(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    simulation.limit(SWEEP_EVERY_S=1e6)

    def use(client: Client) -> None:
        client.calm()
        process = Process(client, random)
        for _ in range(size.steps):
            client.call(NAME, "call", None, process.step)
        client.call(NAME, "look", None, process.require_once)

    simulation.client(use, "user-0")
    return []


class Process:
    def __init__(self, client: Client, random: Random) -> None:
        own = client.runtime
        runtime = QuietRuntime(own.scheduler, own.host, Random(random.random()), 7)
        store = private_store(runtime, MEMORY)
        self._random, self._engine = random, UnsureEngine(store, runtime, random)
        self._engine.is_sure = True
        self._db = Database(self._engine, runtime)
        self._values = Queue(SPACE[NAME])
        self._tasks = TaskQueue.create(self._db, NAME)
        self._number = 0
        self._items, self._jobs = Ledger("value"), Ledger("task")
        self._takes = Ledger("lease")

    def step(self) -> None:
        verb = getattr(self, f"_{self._random.choice(VERBS)}")
        self._engine.is_sure = False
        try:
            verb()
        finally:
            self._engine.is_sure = True

    # Calls.

    def _enqueue(self) -> None:
        self._add(self._items, self._values.enqueue)

    def _put(self) -> None:
        self._add(self._jobs, self._tasks.put)

    def _add(self, ledger: "Ledger", put: Callable[[Database, int], Any]) -> None:
        self._number += 1
        with suppress(*UNSURE):
            put(self._db, self._number)
            ledger.put.add(self._number)

    def _dequeue(self) -> None:
        found = None
        with self._items.removal():
            found = self._values.dequeue(self._db)
        if found is not None:
            self._items.removed[found] += 1

    def _finish(self) -> None:
        task = None
        with self._takes.removal():
            task = self._tasks.take(self._db, 0)
        if task is not None:
            with self._jobs.removal():
                self._tasks.ack(self._db, task)
                self._jobs.removed[task.data] += 1

    # Looks.

    def require_once(self) -> None:
        self._items.require_once(list(every_row(partial(self._values.items, self._db, ALL))))
        ready, taken = (
            [task.data for task in every_row(partial(self._tasks.tasks, self._db, state, ALL))]
            for state in "rt"
        )
        self._jobs.require_once([*ready, *taken])
        unsure = self._takes.unsure + self._jobs.unsure
        assert len(taken) <= unsure, f"{len(taken)} tasks are taken, and {unsure} calls are unsure"


class Ledger:
    """The values that were put and removed by calls that have returned."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.put: set[int] = set()
        self.removed: Counter[int] = Counter()
        self.unsure = 0
        """Removals that were interrupted: each may have removed one value, or none."""

    @contextmanager
    def removal(self) -> Iterator[None]:
        try:
            yield
        except UNSURE:
            self.unsure += 1

    def require_once(self, there: Iterable[int]) -> None:
        """Raises: AssertionError, which ends the run as a violation."""
        found = self.removed + Counter(there)
        twice = [value for value, count in found.items() if count > 1]
        assert not twice, f"more than once: {self._what} {twice}"
        lost = self.put - found.keys()
        assert len(lost) <= self.unsure, f"lost: {self._what} {lost}, {self.unsure} removals are unsure"


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


RESULTS = (*USUAL, *Result)


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
        return Result.KNOWN if self.is_sure else self._random.choice(RESULTS)

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
        self.unsure_engine = database
        self._sent: CommitRequest | None = None
        self._is_heard = False
        super().__init__(database)

    def _open_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self.unsure_engine.let_arrive()
        return super()._open_snapshot()

    def commit(self) -> Future:
        self.unsure_engine.let_arrive()
        self.unsure_engine.lose(self._sent)
        done = super().commit()
        return Interrupted(done) if self._is_heard else done

    def step_commit(self, request: CommitRequest) -> None:
        result = self.unsure_engine.draw()
        self._is_heard = result is Result.HEARD
        if result in (Result.LATE, Result.LEFT):
            self._sent = request
            self.unsure_engine.send(request)
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
