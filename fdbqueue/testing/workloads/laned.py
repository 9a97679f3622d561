"""Laned: as `limited`, but the tasks name their limits, and wait in lanes of two queues."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from fdbqueue.database import run
from fdbqueue.errors import RepartitionUnderWay, UnknownSession
from fdbqueue.limiting.limit import Limit
from fdbqueue.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.common import QUIET_S, cramped
from fdbqueue.testing.workloads.laned_checks import PASS, none_is_held_up, starts_of_named_in_bounds
from fdbqueue.testing.workloads.limited import attempt, finish_one
from fdbqueue.testing.workloads.limited_checks import (
    BURST,
    NAMES,
    PER_S,
    RATE,
    SLOTS,
    STARTS,
    WAIT_S,
    agreeing,
    none_is_stuck,
    slots_are_back,
)
from fdbqueue.testing.workloads.tasks import ENOUGH_S, counted_and_found, total

SETS: Sequence[list[str] | None] = (None, [SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])


class Opened:
    """Opens the queues of one run."""

    def __init__(self, random: Random) -> None:
        self._kinds = [random.choice(("fifottl", "limfifottl")) for _ in NAMES]
        self._partitions = [random.choice((1, 1, 3)) for _ in NAMES]

    def __call__(self, client: Client, at: int) -> TaskQueue:
        Limit.set(client.db, STARTS, rate=RATE, per=PER_S, burst=BURST)
        if not any(found.name == SLOTS for found in Limit.list(client.db)):
            Limit.set(client.db, SLOTS, slots=2)
        options: Any = {"partitions": self._partitions[at], "task_limits": [SLOTS, STARTS]}
        return TaskQueue.create(client.db, NAMES[at], self._kinds[at], ttr=2, if_not_exists=True, **options)


@workload(clients=2, steps=4)
def laned(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    if random.random() < 0.7:
        simulation.limit(LANES_READ_MAX=random.randint(1, 2), LANES_KEPT=random.randint(0, 1))
    opened = Opened(random)

    def produce(client: Client, at: int) -> None:
        q = opened(client, at)
        for _ in range(size.clients * size.steps):
            delay = client.random.choice((0, 0, 0.5))
            q.put(client.db, "x", delay=delay, limits=client.random.choice(SETS))
            client.pause(0.2)

    def work(client: Client, at: int) -> None:
        q = opened(client, at)
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=3) as session:
                for _ in range(size.steps):
                    attempt(client, q, session)

    def operate(client: Client) -> None:
        queues = [opened(client, at) for at in range(len(NAMES))]
        for _ in range(2 * size.steps):
            client.pause(0.7)
            Limit.set(client.db, SLOTS, slots=client.random.choice((1, 2, 3, 20)))
            q = client.random.choice(queues)
            if client.random.random() < 0.2:
                q.truncate(client.db)
            elif q.options.get("partitions", 1) > 1:
                with suppress(RepartitionUnderWay):
                    q.repartition(client.db, client.random.choice((2, 3)))

    def survive(client: Client) -> None:
        queues = [opened(client, at) for at in range(len(NAMES))]
        client.runtime.sleep(QUIET_S)
        until = client.runtime.monotonic() + ENOUGH_S
        while any(total(q, client.db) for q in queues) and client.runtime.monotonic() < until:
            for q in queues:
                finish_one(client, q)
        for q in queues:
            pass_by(client, q)
        client.call(NAMES[0], "slots", None, lambda: Limit.open(client.db, SLOTS).used)
        for q in queues:
            if q.options.get("partitions", 1) == 1:
                client.call(q.name, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    for at in range(len(NAMES)):
        simulation.client(partial(produce, at=at), f"producer-{at}")
        for number in range(size.clients):
            simulation.client(partial(work, at=at), f"worker-{at}-{number}")
    simulation.client(operate, "operator")
    simulation.afterwards(survive, "survivor")
    checkers: list[Checker] = [*map(exact_statistics, NAMES), none_is_stuck, slots_are_back, agreeing]
    return [*checkers, starts_of_named_in_bounds, none_is_held_up, no_watch_left_behind]


def pass_by(client: Client, q: TaskQueue) -> None:
    """Take a task that names no limit, behind tasks over theirs."""
    db = client.db
    Limit.set(db, SLOTS, slots=1)
    q.truncate(db)
    with Session(db, ttr=1e6) as session:
        q.put_many(db, ["x", "x", "x"], limits=[SLOTS], ttr=1e6)
        q.take(db, 0, session=session)  # it holds the slot
        q.put(db, "free")
        client.call(q.name, PASS, None, partial(q.take, db, WAIT_S, session=session))
        q.truncate(db)
