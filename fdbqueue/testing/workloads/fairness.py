"""A fair queue: one tenant's flood beside small tenants, several workers; how long a small one waits."""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.database import Database
from fdbqueue.errors import NotTaken, UnknownSession
from fdbqueue.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.common import cramped, values_of

NAME = "fairness"
FLOOD = "flood"


@workload(clients=3, steps=5, never=("die", "stall"))
def fairness(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)

    def flood(client: Client) -> None:
        q = opened(client)
        for start in range(0, 4 * size.steps, size.steps):
            put(client, q, [f"{FLOOD}.{start + n}" for n in range(size.steps)], FLOOD)

    def trickle(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            put(client, q, [value], value)
            client.pause(0.3)

    def work(client: Client) -> None:
        q = opened(client)
        with Session(client.db, ttr=60) as session:
            for _ in range(3 * size.steps):
                take(client, q, session)

    def survive(client: Client) -> None:
        q = opened(client)
        with Session(client.db, ttr=600) as session:
            while take(client, q, session):
                pass

    simulation.client(flood, FLOOD)
    for number in range(size.clients):
        simulation.client(trickle, f"tenant-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return [partial(small_ones_wait_a_round, size.clients), all_taken_once, no_watch_left_behind]


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, "fair", ttr=600, if_not_exists=True)


def put(client: Client, q: TaskQueue, values: Sequence[str], key: str) -> None:
    client.call(NAME, "put", list(values), lambda: q.put_many(client.db, values, key=key))


def take(client: Client, q: TaskQueue, session: Session) -> bool:
    """Take a task and ack it; whether there was one."""

    def body() -> str | None:
        task = q.take(client.db, 0.5, session=session)
        if task is None:
            return None
        q.ack(client.db, task)
        value: str = task.data
        return value

    try:
        return client.call(NAME, "take", None, body) is not None
    except (NotTaken, UnknownSession):
        return True


def small_ones_wait_a_round(workers: int, trace: Trace, _: Database) -> Iterator[str]:
    """Of the flood, at most the rest of this round and one of the next come before a small tenant's task;
    besides, each worker may have been about to take one.
    """
    taken = {op.result: op for op in trace.of(NAME, "take") if op.result}
    for value, op in taken.items():
        puts = [put for put in trace.of(NAME, "put") if value in put.argument]
        if value.startswith(FLOOD) or not puts:
            continue
        before = [v for v, o in taken.items() if v.startswith(FLOOD) and puts[0].before(o) and o.before(op)]
        if len(before) > 2 + workers:
            yield f"{value!r} waited for {before}"


def all_taken_once(trace: Trace, _: Database) -> Iterator[str]:
    taken = [op.result for op in trace.of(NAME, "take") if op.result]
    for value in {value for value in taken if taken.count(value) > 1}:
        yield f"taken twice: {value!r}"
    for put_ in (op for op in trace.of(NAME, "put") if op.done):
        yield from (f"lost: {value!r}" for value in put_.argument if value not in taken)
