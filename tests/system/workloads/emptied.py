"""Takers that wait for tasks, while others remove the tasks, pause the queue, and give tasks back."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from random import Random

from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, or_a_bag, values_of
from tests.system.workloads.emptied_checks import NAME, checks
from tests.system.workloads.emptied_removals import REMOVALS, put_brief_tasks, rest
from tests.system.workloads.leftovers import look
from tests.system.workloads.tasks import ENOUGH_S, counted_and_found, total

KINDS = ("fifo", "fifottl", "utube", "fair")
TIMEOUTS_S = (0.0, 1.0, 4.0)
DELAYS_S = (0.0, 0.0, 1.0)
BRIEF_P = 0.5
MANY = 1_000
SLOW = ("slow_reply", "stall", "watch_late", "watch_very_late", "watch_missed", "clock_skew_s")
"""With these faults a take may wait beside a ready task."""


@workload(clients=2, steps=6, never=SLOW)
def emptied(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    # No look by time: a wake-up that is missed has no remedy.
    simulation.limit(VERB_BATCH=random.choice((2, 200)), LOOK_EVERY_S=60)
    kind, threads, haste = random.choice(KINDS), random.choice((1, 2)), scattered(random, 0.5, 5)
    # With rare sweeps, the first request of the line has to look itself when a delay is over.
    simulation.limit(SWEEP_EVERY_S=1 if threads == 1 else 10)
    ttl = random.choice((None, 1.0)) if kind in ("fifottl", "fair") else None
    kind, ids = or_a_bag(simulation, kind), list[str]()

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, kind, if_not_exists=True)

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            # Each task of a micro-queue has a key of its own: a busy key would excuse a wait.
            key = {"utube": value, "fair": client.random.choice("ab")}.get(kind)
            put = partial(q.put, client.db, value, key=key, ttl=client.random.choice((None, ttl)))
            ids.append(client.call(NAME, "put", value, put).id)
            rest(client, haste)

    def take(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            with suppress(UnknownSession):
                use(client, q, took(client, q, client.random.choice(TIMEOUTS_S) * haste))
            rest(client, 0.2 * haste)

    def by_threads(client: Client) -> None:
        others = [client.thread(take, f"{number}") for number in range(threads)]
        for other in others:
            other.join()

    def empty(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            rest(client, haste)
            client.random.choice(REMOVALS)(client, q, ids)
            client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))

    def survive(client: Client) -> None:
        q, until = opened(client), client.runtime.monotonic() + ENOUGH_S
        look(client, NAME, q)
        client.call(NAME, "resume", None, partial(q.resume, client.db))
        while total(q, client.db) and client.runtime.monotonic() < until:
            q.kick(client.db, MANY)
            finish(client, q, took(client, q, 1.0))
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(by_threads, f"taker-{number}")
    simulation.client(empty, "emptier")
    if kind == "fifottl" and Random(f"{simulation.seed} brief").random() < BRIEF_P:
        simulation.limit(DUE_BATCH=2)
        simulation.client(partial(put_brief_tasks, opened), "brief")
    simulation.afterwards(survive, "survivor")
    return list(checks(set(simulation.faults.active)))


def took(client: Client, q: TaskQueue, timeout: float) -> Task | None:
    """Take a task, and record its data and the end of its life."""
    found: list[Task] = []

    def body() -> tuple[str, float] | None:
        found.extend(q.take_many(client.db, 1, timeout))
        return (found[0].data, found[0].expires or inf) if found else None

    client.call(NAME, "take", timeout, body, timeout_s=timeout)
    return found[0] if found else None


def use(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is None:
        return
    client.pause(0.3)
    client.random.choice((finish, finish, finish, give_back, bury_and_kick))(client, q, task)


def finish(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is not None:
        with suppress(NotTaken, UnknownSession):
            client.call(NAME, "finish", task.data, partial(q.ack, client.db, task))


def give_back(client: Client, q: TaskQueue, task: Task) -> None:
    delay_s = client.random.choice(DELAYS_S)

    def body() -> float:
        q.defer(client.db, task, delay_s)
        return delay_s

    with suppress(NotTaken):
        client.call(NAME, "return", task.data, body)


def bury_and_kick(client: Client, q: TaskQueue, task: Task) -> None:
    def body() -> float:
        q.bury(client.db, task)
        client.pause(0.2)
        q.kick(client.db, MANY)
        return 0.0

    with suppress(NotTaken):
        client.call(NAME, "return", task.data, body)
