"""A persistent queue, as its proxies use it: acks, kept items and puts that happen together or not at all."""

from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.task import Task
from fdbqueue.queues.persistent.queue import PersistentQueue
from fdbqueue.queues.persistent.stored import Stored, Work
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.paired_queues import Queues
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call

NAME, MAXSIZE = "paired", 3


class Opened:
    """The task queue below, and the stored half of the persistent queue."""

    def __init__(self, db: Database, maxsize: int) -> None:
        self._tasks = TaskQueue.open(db, NAME)
        self.stored: Stored = PersistentQueue(db, NAME, maxsize)._stored

    def __call__(self, _: Any, name: str) -> TaskQueue:  # noqa: ARG002  # there is one queue
        return self._tasks


class Persistent(Queues):
    verbs = ("put", "take", "ack", "keep", "give_back", "id", "end", "truncate")
    queues = (NAME,)
    ends = ("ack", "release", "bury")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._maxsize = random.choice((0, MAXSIZE))
        self._own = self.opened(twins.own)

    def __str__(self) -> str:
        return f"a persistent queue of the size {self._maxsize}"

    def opened(self, db: Database) -> Any:
        PersistentQueue(db, NAME, self._maxsize)
        return Opened(db, self._maxsize)

    # The state.

    def top_up(self) -> None:
        """Leave some items un-acked, and the queue near its bound."""
        own, choice = self.twins.own, self.random.choice
        if len(self.leases) < choice((1, 2)):
            self._do(self._own, Work(puts=self._drafts(self.data(2))))
            self.learn(self._taken(NAME, choice((1, 2)), self._own, own))
        waiting = len(self.in_state("r"))
        if waiting < choice((0, MAXSIZE - 1, MAXSIZE)):
            self._do(self._own, Work(puts=self._drafts(self.data(choice((1, 2))))))

    def _drafts(self, data: list[str]) -> list[Any]:
        return [self._own.stored.draft(item) for item in data]

    def _do(self, at: Opened, work: Work) -> bool:
        """False if there is no room."""
        return at.stored.do(work, self.twins.runtime.monotonic())

    # Calls.

    def _put(self) -> Call:
        data = self.data(self.random.choice((1, 1, 2)))
        return self._work(f"put {data}", Work(puts=self._drafts(data)), data)

    def _ack(self) -> Call | None:
        """Ack an item and put another one."""
        task = self._held()
        if task is None:
            return None
        data = self.data(self.random.choice((0, 1)))
        return self._work(f"ack {task.data} and put {data}", Work([task], (), self._drafts(data)), data)

    def _keep(self) -> Call | None:
        """Put an item while another one is still held."""
        task = self._held()
        if task is None:
            return None
        data = self.data(1)
        return self._work(f"keep {task.data} and put {data}", Work((), [task], self._drafts(data)), data)

    def _held(self) -> Task | None:
        id_ = self.one_of(self.leases)
        return None if id_ is None else self.leases[id_]

    def _work(self, text: str, work: Work, adds: list[str]) -> Call:
        return self._call("work", text, lambda at, _: self._do(at, work), adds=adds, alone=True)

    def _give_back(self) -> Call | None:
        task = self._held()
        if task is None:
            return None
        verb = partial(_given_back, [task])
        return self._call("give back", f"give {task.data} back", verb, alone=True)


def _given_back(tasks: list[Task], at: Opened, _: Any) -> None:
    at.stored.release(tasks)
