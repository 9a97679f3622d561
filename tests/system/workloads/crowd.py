"""A long line under small bounds: hurried waiters that often give up, and items that come in bursts."""

from collections.abc import Iterator, Sequence

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, order
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    bounded,
    checks,
    crowded,
    dequeue,
    drain,
    enqueue,
    hurried,
    line_left_empty,
    queue,
    values_of,
)

NAME = "crowd"


@workload(clients=8, steps=2)
def crowd(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.limit(SERVE_MAX=simulation.random.randint(1, 4), RESULTS_RETURNED_MAX=1)
    crowded(simulation)
    hurried(simulation)
    q = queue(NAME)
    patience_s = scattered(simulation.random, 0.01, 4)
    threaded = simulation.random.random() < 0.5

    def produce(client: Client) -> None:
        for value in values_of(client, size.steps):
            client.runtime.sleep(client.random.random() * patience_s)
            burst = client.random.choice((1, 1, 6))
            enqueue(client, q, NAME, [f"{value}.{number}" for number in range(burst)])

    def wait(client: Client) -> None:
        for _ in range(size.steps):
            dequeue(client, q, NAME, client.random.random() * patience_s)

    def wait_by_three(client: Client) -> None:
        threads = [client.thread(wait, name) for name in ("a", "b", "c")]
        for thread in threads:
            thread.join()

    def pass_by(client: Client) -> None:
        for _ in range(size.steps):
            client.runtime.sleep(client.random.random() * patience_s)
            dequeue(client, q, NAME)

    for number in range(size.clients):
        simulation.client(wait_by_three if threaded and number % 3 == 0 else wait, f"waiter-{number}")
        simulation.client(produce if number % 2 == 0 else pass_by, f"other-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    more = _more(set(simulation.faults.active), threaded)
    return [*checks(NAME), *([] if threaded else [bounded(batches=False)]), *more]


def _more(active: set[str], threaded: bool) -> Iterator[Checker]:
    if "die" not in active:
        yield order(NAME, consumer="survivor")
        yield line_left_empty(NAME)
    if not threaded and not {"die", "stall"} & active:
        yield never_nothing(NAME)
