"""A task that kills each process that begins it: harmless ones beside it lose one attempt at most."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.fleet import work_until_empty

NAME, POISON = "poisoned", "poison"
ATTEMPTS_MAX, SESSION_TTR_S, BEGINS_MAX = 3, 3.0, 2
NEVER = ("die", "stall", "slow_reply", "future_version", "version_changed", "clock_skew_s")
"""A process that dies or pauses for another reason loses other attempts."""


@workload(clients=4, steps=6, never=NEVER)
def poisoned(simulation: Simulation, size: Size) -> Sequence[Checker]:
    threads = simulation.random.choice((2, 3, 8))

    def put(client: Client) -> None:
        """Put the poison among the others."""
        q = opened(client)
        values = [f"{number}" for number in range(size.steps)]
        values.insert(client.random.randint(0, len(values)), POISON)
        for value in values:
            q.put(client.db, value)

    def work(number: int, client: Client) -> None:
        """One process after the other, each before the tasks of the last one come back, or after that."""
        client.runtime.sleep(number * client.random.choice((0.1, 2 * SESSION_TTR_S)))
        work_until_empty(hired(client, partial(handle, client), threads))

    def handle(client: Client, task: HeldTask) -> None:
        failed = client.call(NAME, "begin", (task.data, task.attempts), lambda: task.failures)
        client.runtime.sleep(client.random.choice((0, 0.01, 0.5)))
        if task.data == POISON and failed < ATTEMPTS_MAX:
            simulation.kill(client.name, client.runtime.scheduler.now)
            client.runtime.sleep(SESSION_TTR_S)

    def survive(client: Client) -> None:
        def begin(task: HeldTask) -> None:
            client.call(NAME, "begin", (task.data, 0), lambda: task.failures)

        work_until_empty(hired(client, begin, 1))

    simulation.client(put, "producer")
    for number in range(size.clients):
        simulation.client(partial(work, number), f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    values = {f"{number}" for number in range(size.steps)}
    return [exact_statistics(NAME), each_has_its_begins(values), no_watch_left_behind]


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, if_not_exists=True)


def hired(client: Client, handler: Callable[[HeldTask], object], threads: int) -> Worker:
    return Worker(
        client.db,
        opened(client),
        handler,
        threads=threads,
        max_attempts=ATTEMPTS_MAX,
        backoff=Backoff(first_s=0.1),
        session_ttr_s=SESSION_TTR_S,
    )


def each_has_its_begins(values: Iterable[str]) -> Checker:
    """Make a checker: each other task begins, twice at most, and the poison as often as it has attempts.

    A task that waits in the process to be put off loses its attempt with it, too.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        begun = Counter(op.argument[0] for op in trace.of(NAME, "begin") if op.done)
        for value in values:
            if not 1 <= begun[value] <= BEGINS_MAX:
                yield f"{value} has begun {begun[value]} times"
        if begun[POISON] > ATTEMPTS_MAX:
            yield f"the poison has begun {begun[POISON]} times"

    return check
