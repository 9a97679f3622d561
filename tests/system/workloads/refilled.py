"""Workers of one queue, whose acks take tasks along: a lease begins once, and lapses in no live worker."""

from collections import Counter
from collections.abc import Iterator, Sequence
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
from tests.system.workloads.common import cramped
from tests.system.workloads.fleet import ended, work_until_empty
from tests.system.workloads.several import HARMLESS
from tests.system.workloads.stage import Tasks, audit, nothing_left, play

NAME = "refilled"
TTR_S, SESSION_TTR_S, GRACE_S = 2.0, 3.0, 10.0
OVERTAKE = 2
FAILS_P = 0.2


@workload(clients=2, steps=6)
def refilled(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Handlers return or fail; workers stop with and without grace, die and stall."""
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    simulation.overtake = OVERTAKE
    if simulation.random.random() < 0.5:
        simulation.faults = simulation.faults.only(*HARMLESS)
    queue = Tasks(NAME, ttr=TTR_S)
    roles = {"producer-": queue.putting(3 * size.steps, 0.2), "worker-": queue.using(work)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    is_calm = set(simulation.faults.active) <= {*HARMLESS}
    checkers = [exact_statistics(NAME), begins_once, nothing_left(NAME), no_watch_left_behind]
    return [*checkers, *([no_lease_lapses] if is_calm else [])]


def work(client: Client, _: TaskQueue) -> None:
    for _life in range(2):
        worker = hired(client, client.random.choice((1, 2, 4)))
        worker.start()
        client.runtime.sleep(client.random.uniform(0.3, 6))
        worker.stop(at_once=client.random.random() < 0.3)
        ended(worker)


def survive(client: Client, q: TaskQueue) -> None:
    work_until_empty(hired(client, 2))
    audit(client, q)
    client.call(NAME, "lapsed", None, lambda: q.statistics(client.db)["calls"]["ttr"])


def hired(client: Client, threads: int, name: str = NAME, overtake: int = OVERTAKE) -> Worker:
    return Worker(
        client.db,
        name,
        partial(handle, client),
        threads=threads,
        attempts=float("inf"),
        backoff=Backoff(first_s=0.1, cap_s=0.5),
        grace_s=GRACE_S,
        session_ttr_s=SESSION_TTR_S,
        overtake=overtake,
    )


def handle(client: Client, task: HeldTask) -> None:
    seconds = client.random.choice((0, 0, 0, 0.05, 0.5))
    client.call(NAME, "handle", (task.data, task.token), partial(client.runtime.sleep, seconds))
    if client.random.random() < FAILS_P:
        raise ValueError("odd")


# Checkers.


def begins_once(trace: Trace, _: Database) -> Iterator[str]:
    for (value, _token), times in Counter(op.argument for op in trace.of(NAME, "handle")).items():
        if times > 1:
            yield f"{value!r} has begun {times} times under one lease"


def no_lease_lapses(trace: Trace, _: Database) -> Iterator[str]:
    """Check that live workers renew each lease until its handler has ended, or it has gone back."""
    for lapsed in trace.of(NAME, "lapsed"):
        if lapsed.result:
            yield f"{lapsed.result} leases have ended by time"
