"""Calls of one process, each commit of which has any result: known, unknown, late, a conflict, an interrupt.

Values and tasks are put and taken. Each put that returns has its effect once, whatever commit arrives late
and whichever slots the calls use again. A call that was interrupted has its effect at most once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.page import every_row
from fdbqueue.embedded.store import private_store
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import MEMORY, Checker, Client, Simulation
from tests.system.workloads.common import SPACE
from tests.system.workloads.paired_runs import NEVER
from tests.system.workloads.paired_store import QuietRuntime
from tests.system.workloads.receipts_store import UnsureEngine

NAME, ALL = "receipts", 1_000
UNSURE = (KeyboardInterrupt, FDBError)
VERBS = ("enqueue", "enqueue", "dequeue", "put", "put", "finish")


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
        with suppress(*UNSURE):
            task = self._tasks.take(self._db, 0)
        if task is not None:
            with self._jobs.removal():
                self._tasks.ack(self._db, task)
                self._jobs.removed[task.data] += 1

    # Looks.

    def require_once(self) -> None:
        self._items.require_once(list(every_row(partial(self._values.items, self._db, ALL))))
        tasks = (
            task for state in "rt" for task in every_row(partial(self._tasks.tasks, self._db, state, ALL))
        )
        self._jobs.require_once(task.data for task in tasks)


class Ledger:
    """The values that were put and removed by calls that have returned."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.put: set[int] = set()
        self.removed: Counter[int] = Counter()
        self._unsure = 0
        """Removals that were interrupted: each may have removed one value, or none."""

    @contextmanager
    def removal(self) -> Iterator[None]:
        try:
            yield
        except UNSURE:
            self._unsure += 1

    def require_once(self, there: Iterable[int]) -> None:
        """Raises: AssertionError, which ends the run as a violation."""
        found = self.removed + Counter(there)
        twice = [value for value, count in found.items() if count > 1]
        assert not twice, f"more than once: {self._what} {twice}"
        lost = self.put - found.keys()
        assert len(lost) <= self._unsure, f"lost: {self._what} {lost}, {self._unsure} removals are unsure"
