"""Clients of two queues under limits: workers that die with slots, and an operator that changes limits."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import LimitNotFound, NotTaken, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size
from fdbqueue.testing.simulation import Client, Simulation
from tests.system.workloads.common import QUIET_S
from tests.system.workloads.limited_checks import (
    BURST,
    LAST_TAKE,
    NAMES,
    PER_S,
    RATE,
    SLOTS,
    STARTS,
    TAKE,
    WAIT_S,
)
from tests.system.workloads.tasks import ENOUGH_S, counted_and_found, total

Produce = Callable[[Client, TaskQueue], object]
AtEnd = Callable[[Client, TaskQueue], object]
AtLast = Callable[[Client, Sequence[TaskQueue]], object]


class Opened:
    """Opens the queues of one run, each of a kind of its own, with `options` for all or for each."""

    def __init__(
        self,
        random: Random,
        kinds: Sequence[str],
        options: Callable[[], dict[str, Any]],
        *,
        per_key: bool = False,
    ) -> None:
        """`per_key`: the limits count each key apart."""
        self._kinds = [random.choice(kinds) for _ in NAMES]
        self._partitions = [random.choice((1, 1, 3)) for _ in NAMES]
        self.options = [options() for _ in NAMES]
        self.per_key = per_key

    def __call__(self, client: Client, at: int) -> TaskQueue:
        while True:
            Limit.set(client.db, STARTS, rate=RATE, per=PER_S, burst=BURST, per_key=self.per_key)
            if not any(found.name == SLOTS for found in Limit.list(client.db)):
                Limit.set(client.db, SLOTS, slots=2, per_key=self.per_key)
            with suppress(LimitNotFound):  # it may be deleted at this moment
                return self._created(client, at)

    def _created(self, client: Client, at: int) -> TaskQueue:
        options: Any = {"partitions": self._partitions[at], **self.options[at]}
        return TaskQueue.create(client.db, NAMES[at], self._kinds[at], ttr=2, if_not_exists="any", **options)

    def all(self, client: Client) -> list[TaskQueue]:
        return [self(client, at) for at in range(len(NAMES))]


def start(
    simulation: Simulation,
    size: Size,
    opened: Opened,
    produce: Produce,
    at_end: AtEnd = lambda _client, _queue: None,
    at_last: AtLast = lambda _client, _queues: None,
) -> None:
    """Start all clients. Once no task is left, `at_end` is called with each queue, and `at_last` with all."""
    for at in range(len(NAMES)):
        simulation.client(lambda client, at=at: produce(client, opened(client, at)), f"producer-{at}")
        for number in range(size.clients):
            simulation.client(partial(_work, opened=opened, size=size, at=at), f"worker-{at}-{number}")
    simulation.client(partial(_operate, opened=opened, size=size), "operator")
    simulation.afterwards(partial(_survive, opened=opened, at_end=at_end, at_last=at_last), "survivor")


def _work(client: Client, opened: Opened, size: Size, at: int) -> None:
    q = opened(client, at)
    for _ in range(2):
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for _ in range(size.steps):
                _attempt(client, q, session)


def _operate(client: Client, opened: Opened, size: Size) -> None:
    queues = opened.all(client)
    for _ in range(2 * size.steps):
        client.pause(0.7)
        slots = client.random.choice((1, 2, 3, 20))
        Limit.set(client.db, SLOTS, slots=slots, per_key=opened.per_key)
        q = client.random.choice(queues)
        if client.random.random() < 0.2:
            q.truncate(client.db)
        elif q.options.get("partitions", 1) > 1:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3)))


def _survive(client: Client, opened: Opened, at_end: AtEnd, at_last: AtLast) -> None:
    queues = opened.all(client)
    client.runtime.sleep(QUIET_S)
    until = client.runtime.monotonic() + ENOUGH_S
    # Each look makes this process sweep the queue: leases that are over in one hold slots of the other one.
    while sum(total(q, client.db) for q in queues) and client.runtime.monotonic() < until:
        for q in queues:
            _finish_one(client, q)
    for q in queues:
        at_end(client, q)
    at_last(client, queues)
    client.call(NAMES[0], "slots", None, lambda: Limit.open(client.db, SLOTS).used)
    for q in queues:
        if q.options.get("partitions", 1) == 1:
            client.call(q.name, "audit", None, partial(run, client.db, partial(counted_and_found, q)))


def _attempt(client: Client, q: TaskQueue, session: Session) -> None:
    """Take tasks, if there are some, and end the leases of each, or leave them to the clock."""
    count, wait_s = client.random.choice((1, 1, 3)), client.random.choice((0, 1, 3))
    take = partial(q.take_many, client.db, count, wait_s, session=session)
    for task in client.call(q.name, TAKE, None, take, timeout_s=wait_s):
        client.pause(0.5)
        with suppress(NotTaken, TaskNotFound):
            client.random.choice(_ends(client, q, task))()


def _ends(client: Client, q: TaskQueue, task: Task) -> list[Callable[[], object]]:
    db = client.db
    return [
        partial(q.ack, db, task),
        partial(q.ack, db, task),
        partial(q.release, db, task),
        partial(q.release, db, task, delay=0.5),
        partial(q.bury, db, task),
        partial(q.delete, db, task),
        partial(q.cancel, db, task.id),
        partial(q.touch, db, task, 1),
        partial(q.renew, db, [task]),
        partial(client.runtime.sleep, 3.0),
        partial(q.release_all, db),
    ]


def _finish_one(client: Client, q: TaskQueue) -> None:
    q.kick(client.db, 9)
    if not q.statistics(client.db)["tasks"]["ready"]:
        client.runtime.sleep(1.0)
        return
    take = partial(q.take, client.db, WAIT_S)
    task = client.call(q.name, LAST_TAKE, None, take)
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)
