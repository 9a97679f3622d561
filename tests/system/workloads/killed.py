"""Processes that hold tasks and wait for more are killed; others get their tasks, and new ones, in time.

In half of the runs all processes share a directory, where the kernel tells who is gone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.processes import processes_of
from tests.system.workloads.effects import taken
from tests.system.workloads.killed_checks import NAME, SEEN_ON_CLUSTER_S, TTR_S, VICTIM, checks
from tests.system.workloads.tasks import finish

BEGIN_S, KILLED_S, LAST_S, END_S = 2.0, (3.0, 6.0), 12.0, 20.0
"""Until when processes begin; when victims are killed; the last put; the end of the survivors."""
POINTS_MAX = 200_000
LONG_S = 100.0
"""The ttr in a directory: tasks come back as the session of a process ends that is gone."""

Open = Callable[[Client], TaskQueue]


@workload(clients=2, steps=3, wide=("SERVE_MAX",))
def killed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} killed")
    simulation.faults = NONE
    simulation.scheduler.points_max = POINTS_MAX
    victims = random.randint(1, size.clients)
    died_s = {f"{VICTIM}-{number}": random.uniform(*KILLED_S) for number in range(victims)}
    simulation.gives_signs = is_cluster = Random(f"{simulation.seed} cluster").random() < 0.5
    start = simulation.client if is_cluster else processes_of(simulation).add
    opened = partial(opened_in, ttr_s=TTR_S if is_cluster else LONG_S)
    for name in died_s:
        start(partial(be_killed, opened), name)
    for number in range(random.randint(1, size.clients)):
        polls = random.random() < 0.25
        start(partial(survive, opened, polls=polls), f"survivor-{number}")
    start(partial(produce, opened, count=2 * size.steps), "producer")
    for name, at_s in died_s.items():
        simulation.kill(name, at_s)
    return checks(max(died_s.values()), SEEN_ON_CLUSTER_S if is_cluster else 0.0)


def opened_in(client: Client, ttr_s: float) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, "fifottl", ttr=ttr_s, if_not_exists=True)


def be_killed(opened: Open, client: Client) -> None:
    """Hold tasks, and wait for more."""
    q = opened(client)
    for number in range(client.random.randint(0, 2)):
        put(client, q, f"{client.name} {number}")
        taken(client, q, 0)
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    while True:
        taken(client, q, END_S)


def survive(opened: Open, client: Client, *, polls: bool) -> None:
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    q = opened(client)
    while (left_s := END_S - client.runtime.monotonic()) > 0:
        task = taken(client, q, 0 if polls else left_s)
        if task is not None:
            finish(client, q, task)
        elif polls:
            client.runtime.sleep(0.2)


def produce(opened: Open, client: Client, count: int) -> None:
    q = opened(client)
    for number in range(count):
        client.runtime.sleep(client.random.uniform(0, 2 * (LAST_S - BEGIN_S) / count))
        put(client, q, f"new {number}")


def put(client: Client, q: TaskQueue, value: str) -> None:
    client.call(NAME, "put", value, partial(q.put, client.db, value))
