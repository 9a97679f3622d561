"""Takes from a task queue that are stopped, by their events or by the closing of their database."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import DatabaseClosed, NotTaken, UnknownSession, WaitStopped
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, set_later, values_of
from tests.system.workloads.leftovers import look
from tests.system.workloads.stop_checks import NAME, checks
from tests.system.workloads.tasks import counted_and_found

TIMEOUTS_S = (0.0, 1.0, None)


@workload(clients=2, steps=4)
def stops(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    haste = scattered(simulation.random, 0.01, 1)

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.pause(0.5)

    def take(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            after_s = client.random.random() * 2 * haste
            stop, stopper = set_later(client, after_s)
            timeout = client.random.choice(TIMEOUTS_S)
            with suppress(WaitStopped):
                body = partial(q.take, client.db, timeout, stop=stop)
                finish(client, q, client.call(NAME, "take", after_s, body))
            stopper.join()

    def close_on_them(client: Client) -> None:
        threads = [client.thread(until_closed(take), name) for name in ("a", "b", "c")]
        with suppress(DatabaseClosed):
            # For another thread, so that closing ends more than the session of the takers.
            Session(client.db)
        client.runtime.sleep(scattered(client.random, 0.001, 4))
        client.call(NAME, "close", client.name, client.db.close)
        for thread in threads:
            thread.join()

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(close_on_them, f"closer-{number}")
    simulation.afterwards(lambda client: look(client, NAME, opened(client)), "onlooker")
    simulation.afterwards(survive, "survivor")
    return list(checks(set(simulation.faults.active)))


def until_closed(use: Any) -> Any:
    def body(client: Client) -> None:
        with suppress(DatabaseClosed):
            use(client)

    return body


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, if_not_exists=True)


def finish(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is None:
        return
    client.pause(0.2)
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "finish", task.data, partial(q.ack, client.db, task))


def survive(client: Client) -> None:
    q = opened(client)
    while q.statistics(client.db)["tasks"]["total"]:
        finish(client, q, client.call(NAME, "take", 0.0, partial(q.take, client.db, 1)))
    client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))
