"""Task queues: fifo with leases, priorities with short lives, and a bag."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from fdbqueue.core.database import Database
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Renewed, Task, TaskState
from fdbqueue.core.transactional import transactional
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.history import REFUSED
from tests.system.soak.client import Client
from tests.system.soak.evidence import Evidence, key_of
from tests.system.soak.order import by_priority, in_turn
from tests.system.soak.rules import LEASED, Rule, lost, lost_but
from tests.system.soak.subject import PAGE_ROWS, Subject

ENDED_ALONE_MAX = 5
STORED_STATES = (TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)


STATES = ("ready", "taken", "delayed", "buried")
ENDED = ("acked", "expired", "deleted", "cancelled")


def stored_in(db: Database, queue: TaskQueue, state: TaskState) -> list[Task]:
    """The tasks of a state."""
    return list(every_row(partial(queue.tasks, db, state, PAGE_ROWS)))


def _refusal(task: Task, renewed: Renewed) -> str | None:
    """The note of a renewal: a lease that is over was not renewed."""
    return None if task.id in renewed else REFUSED


class Leased(Subject):
    """Tasks with leases that are acked, released, renewed, or let lapse."""

    kind: ClassVar[str] = "fifottl"
    keys: ClassVar[Sequence[str]] = ("",)
    rules: ClassVar[Sequence[Rule]] = (*LEASED, in_turn)

    def prepare(self, db: Database) -> None:
        TaskQueue.create(
            db, self.name, self.kind, ttr=self.setup.ttr_s, root=self.setup.queues, **self.options()
        )

    def options(self) -> Mapping[str, Any]:
        """More options of the queue."""
        return {}

    def open(self, db: Database) -> None:
        self.queue = TaskQueue.open(db, self.name, root=self.setup.queues)

    def put(self, client: Client, count: int) -> None:
        key = client.random.choice(self.keys_of(client))
        values = client.values(count, key)
        client.call(
            self.name,
            "put",
            values,
            lambda: self.queue.put_many(client.db, values, **self.put_options(key)),
        )

    def keys_of(self, client: Client) -> Sequence[str]:  # noqa: ARG002
        """The keys of the values that a client puts."""
        return self.keys

    def put_options(self, key: str) -> Mapping[str, Any]:  # noqa: ARG002
        """The options of a put of values with that key."""
        return {}

    def take(self, client: Client, count: int) -> bool:
        wait_s = client.wait_s()
        tasks = client.call(
            self.name,
            "take",
            count,
            lambda: self.queue.take_many(client.db, count, wait_s),
            shown=lambda tasks: [self._lease_of(task) for task in tasks],
        )
        if tasks:
            self._end(client, tasks)
        return bool(tasks)

    def _end(self, client: Client, tasks: Sequence[Task]) -> None:
        if client.chance(0.05):
            return  # the leases lapse
        if client.chance(0.1):
            self._renew(client, tasks)
        few: Sequence[Task] = ()
        if client.chance(0.1):
            few = tasks[:ENDED_ALONE_MAX]
            self._each(client, "release", few)
        elif client.chance(0.3):
            few = tasks[:ENDED_ALONE_MAX]
            self._each(client, "ack", few)
        rest = tasks[len(few) :]
        if rest:
            leases = [self._lease_of(task) for task in rest]
            client.call(self.name, "finish", leases, partial(self._finish, client, rest))

    def _renew(self, client: Client, tasks: Sequence[Task]) -> None:
        for task in tasks[:ENDED_ALONE_MAX]:
            client.call(
                self.name,
                "renew",
                [self._lease_of(task)],
                partial(self.queue.renew, client.db, [task]),
                shown=partial(_refusal, task),
            )

    def _each(self, client: Client, verb: str, tasks: Sequence[Task]) -> None:
        call = self.queue.release if verb == "release" else self.queue.ack
        for task in tasks:
            client.call(self.name, verb, [self._lease_of(task)], partial(call, client.db, task))

    def _finish(self, client: Client, tasks: Sequence[Task]) -> None:
        """Ack the tasks, and count an effect of each in the same transaction."""

        @transactional
        def finish(tr: Transaction) -> None:
            for task in tasks:
                self.queue.ack(tr, task)
            client.effect(tr, self.name, [self.value_of(task) for task in tasks])

        finish(client.db)

    def value_of(self, task: Task) -> str:
        return str(task.data)

    def _lease_of(self, task: Task) -> list[str]:
        return [self.value_of(task), "" if task.token is None else task.token.hex()]

    def left(self, db: Database) -> list[str]:
        return [self.value_of(task) for state in STORED_STATES for task in stored_in(db, self.queue, state)]

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        told = self.queue.statistics(db)
        tasks, calls, ends = told["tasks"], told["calls"], told["ends"]
        ended = sum(ends[name] for name in ENDED)
        return {
            "tasks": (tasks["total"], len(left)),
            "tasks by state": (sum(tasks[name] for name in STATES), len(left)),
            "tasks done": (tasks["done"], ended),
            "acked tasks": (ends["acked"], calls["ack"]),
            "tasks put": (calls["put"], tasks["done"] + len(left)),
        }

    def totals(self, db: Database) -> Mapping[str, int]:
        calls = self.queue.statistics(db)["calls"]
        return {"puts": calls["put"], "acks": calls["ack"]}


class Leases(Leased):
    name = "leases"


class Bags(Leased):
    name = "bags"
    kind = "bag"
    rules = LEASED


BRIEF = "9"
"""The priority of the values that expire."""


def lost_but_brief(evidence: Evidence) -> Iterator[str]:
    return lost_but(evidence, lambda value: key_of(value) == BRIEF)


class Priorities(Leased):
    """Priorities are keys of values. Values of the last priority live for the time of one lease only."""

    name = "priorities"
    keys = ("0", "1", "2", BRIEF)
    rules = (*(lost_but_brief if rule is lost else rule for rule in LEASED), by_priority)

    def keys_of(self, client: Client) -> Sequence[str]:
        return self.keys[:-1] if client.calm else self.keys

    def put_options(self, key: str) -> Mapping[str, Any]:
        return {"pri": int(key), "ttl": self.setup.ttr_s if key == BRIEF else None}
