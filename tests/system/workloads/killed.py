"""Processes that hold tasks and wait for more are killed; others get their tasks, and new ones, in time.

In half of the runs all processes share a directory, where the kernel tells who is gone.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.audit.answers import TAKE
from tests.system.processes import processes_of
from tests.system.workloads.stage import Tasks, once_each, put_plain, taken
from tests.system.workloads.tasks import NAME, finish

BEGIN_S, KILLED_S, LAST_S, END_S = 2.0, (3.0, 6.0), 12.0, 20.0
"""Until when processes begin; when victims are killed; the last put; the end of the survivors."""
POINTS_MAX = 200_000
LONG_S = 100.0
"""The ttr in a directory: tasks come back as the session of a process ends that is gone."""
VICTIM = "victim"
TTR_S = 4.0
LOST_S, NEW_S = TTR_S + 1.0, 1.0
"""From a death to the take of a lost task, and from the put of a new one to its take."""
SEEN_ON_CLUSTER_S = 3.0
"""A cluster knows a death after this time, and a new task takes no longer. A directory tells at once."""


@workload(clients=2, steps=3, wide=("SERVE_MAX",))
def killed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} killed")
    simulation.faults = NONE
    simulation.scheduler.points_max = POINTS_MAX
    victims = random.randint(1, size.clients)
    died_s = {f"{VICTIM}-{number}": random.uniform(*KILLED_S) for number in range(victims)}
    simulation.gives_signs = is_cluster = Random(f"{simulation.seed} cluster").random() < 0.5
    start = simulation.client if is_cluster else processes_of(simulation).add
    queue = Tasks(NAME, ttr=TTR_S if is_cluster else LONG_S)  # the checkers of `tasks` hold here, too
    for name in died_s:
        start(queue.using(be_killed), name)
    for number in range(random.randint(1, size.clients)):
        polls = random.random() < 0.25
        start(partial(survive, queue, polls=polls), f"survivor-{number}")
    start(queue.using(partial(produce, count=2 * size.steps)), "producer")
    for name, at_s in died_s.items():
        simulation.kill(name, at_s)
    return checks(max(died_s.values()), SEEN_ON_CLUSTER_S if is_cluster else 0.0)


def be_killed(client: Client, q: TaskQueue) -> None:
    """Hold tasks, and wait for more."""
    for number in range(client.random.randint(0, 2)):
        put_plain(client, q, f"{client.name} {number}")
        taken(client, q, 0)
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    while True:
        taken(client, q, END_S)


def survive(queue: Tasks, client: Client, *, polls: bool) -> None:
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    q = queue(client)
    while (left_s := END_S - client.runtime.monotonic()) > 0:
        task = taken(client, q, 0 if polls else left_s)
        if task is not None:
            finish(client, q, task)
        elif polls:
            client.runtime.sleep(0.2)


def produce(client: Client, q: TaskQueue, count: int) -> None:
    for number in range(count):
        client.runtime.sleep(client.random.uniform(0, 2 * (LAST_S - BEGIN_S) / count))
        put_plain(client, q, f"new {number}")


# Checkers.


def checks(last_death_s: float, seen_s: float) -> Sequence[Checker]:
    """Checkers for a run in which processes die until `last_death_s`, and count as alive for `seen_s`."""
    return [
        partial(once_each, NAME),
        lost_tasks_run_elsewhere(last_death_s),
        new_tasks_pass_the_dead_by(last_death_s, seen_s),
    ]


def lost_tasks_run_elsewhere(last_death_s: float) -> Checker:
    """Check that each task that was there before the deaths is taken by a live process soon after its ttr."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        lost = {op.result.data for op in takes(trace) if VICTIM in op.client}
        lost |= {put.argument for put in puts(trace) if put.began_s <= last_death_s}
        for value in sorted(lost):
            late_s = first_taken_s(trace, value) - last_death_s
            if late_s > LOST_S:
                yield f"{value!r} was there before a death, and was taken {late_s:.1f} s after it"

    return check


def new_tasks_pass_the_dead_by(last_death_s: float, seen_s: float) -> Checker:
    """Check that a task that is put after the deaths is soon taken."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for put in puts(trace):
            late_s = first_taken_s(trace, put.argument) - (put.ended_s or 0.0)
            allowed_s = NEW_S if put.began_s > last_death_s + seen_s else max(NEW_S, seen_s)
            if put.began_s > last_death_s and late_s > allowed_s:
                yield f"{put.argument!r} was taken {late_s:.1f} s after its put"

    return check


def first_taken_s(trace: Trace, value: str) -> float:
    """The time at which a process that lives has taken the task; infinite if none has."""
    found = [op for op in takes(trace) if VICTIM not in op.client and op.result.data == value]
    return min((op.ended_s for op in found if op.ended_s is not None), default=float("inf"))


def takes(trace: Trace) -> list[Operation]:
    return [op for op in trace.of(NAME, TAKE) if op.done and op.result is not None]


def puts(trace: Trace) -> list[Operation]:
    return [op for op in trace.of(NAME, "put") if op.done]
