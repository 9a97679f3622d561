"""A table of pairs over small task queues: takes, ends of leases, verbs by id, looks at all tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.page import every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.queues.persistent import PersistentQueue
from fdbqueue.queues.unacked import Stored, Work
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, Table, data_of, shown, text_of

ALL, FOCUSED = 99, 0.8
STATES = "rt!~"
ENDS = ("ack", "ack", "release", "bury", "delete")
BY_ID = ("cancel", "delete", "bury")
ROOT = RootKeys(DEFAULT_ROOT)
Opened = Callable[[Any, str], TaskQueue]
"""Of a database or a transaction, and the name of a queue."""
NAME, MAXSIZE = "paired", 3


class Queues(Table):
    queues: Sequence[str] = ("paired", "paired_other")
    ends: Sequence[str] = ENDS
    by_id: Sequence[str] = BY_ID

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.session = Session(twins.own, ttr=inf)
        self.there: dict[str, tuple[str, Task]] = {}
        """The tasks by their ids, each with the name of its queue."""
        self.leases: dict[str, Task] = {}
        self._known: dict[str, str] = {}
        self._focus: str | None = None

    def opened(self, db: Database) -> Opened:
        handles = {name: TaskQueue.open(db, name) for name in self.queues}
        return lambda _, name: handles[name]

    def must_forget(self, one: Call, other: Call) -> bool:
        is_a_round = "tick" in (one.name, other.name)
        return is_a_round or super().must_forget(one, other)

    # The state.

    def look_around(self) -> None:
        self.there = {task.id: (name, task) for name, task in run(self.twins.own, self._listed)}
        self._known |= data_of(task for _, task in self.there.values())
        self.leases = {id_: task for id_, task in self.leases.items() if self._is_held(id_)}

    def _is_held(self, id_: str) -> bool:
        return id_ in self.there and self.there[id_][1].state == "t"

    def _listed(self, tr: Transaction) -> list[tuple[str, Task]]:
        return [(name, task) for name in self.queues for tasks in self._states(tr, name) for task in tasks]

    def handle(self, tr: Transaction, name: str) -> TaskQueue | None:
        """The queue, for a look; None if there is none."""
        queue = caught(partial(TaskQueue.open, name=name), tr)
        return queue if isinstance(queue, TaskQueue) else None

    def _states(self, tr: Transaction, name: str) -> list[list[Task]]:
        queue = self.handle(tr, name)
        if queue is None:
            return []
        return [list(every_row(partial(queue.tasks, tr, state, ALL))) for state in STATES]

    def in_state(self, state: str, name: str | None = None) -> list[str]:
        """The ids of the tasks in a state."""
        return [id_ for id_, (of, task) in self.there.items() if task.state == state and name in (None, of)]

    def learn(self, answer: Any) -> None:
        for one in answer if isinstance(answer, list | tuple) else (answer,):
            if isinstance(one, list | tuple):
                self.learn(one)
            elif isinstance(one, Task):
                self._known |= data_of([one])
                if one.token is not None:
                    self.leases[one.id] = one

    def names(self) -> Mapping[str, str]:
        return self._known

    def forget_focus(self) -> None:
        super().forget_focus()
        self._focus = None

    def one_of(self, ids: Iterable[str]) -> str | None:
        """One of the tasks: mostly that of the call before."""
        among = list(ids)
        if self._focus in among and self.random.random() < FOCUSED:
            return self._focus
        self._focus = self.random.choice(among) if among else None
        return self._focus

    def queue_name(self) -> str:
        return self.queues[0] if self.random.random() < FOCUSED else self.queues[-1]

    # Calls.

    def _take(self) -> Call:
        name, count = self.queue_name(), self.random.choice((1, 1, 2, 3))
        return self._call("take", f"take {count} from {name}", partial(self._taken, name, count))

    def _taken(self, name: str, count: int, at: Opened, tr: Any) -> list[Task]:
        return at(tr, name).take_many(tr, count, session=self.session)

    def _end(self) -> Call | None:
        id_ = self.one_of(id_ for id_ in self.leases if id_ in self.there)
        if id_ is None:
            return None
        verb, (name, _), task = self.random.choice(self.ends), self.there[id_], self.leases[id_]
        text = f"{verb} {task.data} by its lease"
        return self._call("end", text, lambda at, tr: getattr(at(tr, name), verb)(tr, task), touches=id_)

    def _id(self) -> Call | None:
        id_ = self.one_of(self.there)
        if id_ is None:
            return None
        verb, (name, task) = self.random.choice(self.by_id), self.there[id_]
        text = f"{verb} {task.data} by its id"
        return self._call("id", text, lambda at, tr: getattr(at(tr, name), verb)(tr, id_), touches=id_)

    def _kick(self) -> Call:
        name, count = self.queue_name(), self.random.choice((1, 2))
        return self._call("kick", f"kick {count} of {name}", lambda at, tr: at(tr, name).kick(tr, count))

    def _truncate(self) -> Call:
        name = self.queue_name()
        return self._call("truncate", f"truncate {name}", lambda at, tr: at(tr, name).truncate(tr))

    def _tick(self) -> Call:
        """A round of the keeper, which knows a queue once it has been used."""

        def verb(at: Opened, db: Any) -> None:
            for name in self.queues:
                caught(lambda db, name=name: at(db, name).paused(db), db)  # type: ignore[misc]
            keeper_of(db, ROOT).tick()

        return self._call("tick", "tick", verb, alone=True)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found: dict[str, Sequence[str]] = {}
        for name in self.queues:
            tasks = [task for state in self._states(tr, name) for task in state]
            self._known |= data_of(tasks)
            found[f"tasks of {name}"] = [shown(task) for task in tasks]
            queue = self.handle(tr, name)
            if queue is not None:
                found[f"statistics of {name}"] = [text_of(queue.statistics, tr)]
        return found


class Proxied:
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
        return Proxied(db, self._maxsize)

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

    def _do(self, at: Proxied, work: Work) -> bool:
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


def _given_back(tasks: list[Task], at: Proxied, _: Any) -> None:
    at.stored.release(tasks)
