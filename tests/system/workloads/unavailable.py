"""Workers whose database, or whose handlers' service, is away for a while: they wait, count no failure, and
go on soon after.
"""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core.database import run
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Unavailable
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.effects import Handled, succeed
from tests.system.workloads.fleet import ended
from tests.system.workloads.tasks import counted_and_found
from tests.system.workloads.unavailable_checks import (
    GRACE_S,
    NAME,
    POINTS,
    THREADS,
    Span,
    each_done_without_a_failure,
    ends_in_time,
    pauses_grow,
    soon_after,
    spins_nowhere,
)

TTR_S = 300.0
LIFE_S = 90.0
SPANS_S = (3.0, 8.0, 20.0)
LONG_S = 30.0


# A worker that dies or stalls is late by itself; a slow reply or a late watch is no outage.
@workload(
    clients=2, steps=4, never=("die", "stall", "slow_reply", "clock_skew_s", "watch_late", "watch_very_late")
)
def unavailable(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(SWEEP_EVERY_S=2, SESSIONS_SWEPT_EVERY_S=2)  # nothing comes due, and each sweep costs
    random = simulation.random
    away = Span.of(random.uniform(5, 10), random.choice((*SPANS_S, LONG_S)))
    down = Span.of(random.uniform(35, 40), random.choice(SPANS_S))
    stopped_s = random.choice((away.start_s + 1, LIFE_S, LIFE_S))
    simulation.outage(away.start_s, away.stop_s - away.start_s)
    for at_s in (away.start_s, away.stop_s):
        note_points(simulation, at_s)

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, 3 * size.steps):
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.runtime.sleep(client.random.choice((0, 3, 8)))

    def work(client: Client) -> None:
        opened(client)
        worker = hired(client, partial(handle, client, down))
        worker.start()
        client.runtime.sleep(stopped_s - client.runtime.monotonic())
        worker.stop()
        client.call(NAME, "end", None, partial(ended, worker))

    def survive(client: Client) -> None:
        q = opened(client)
        worker = hired(client, partial(handle, client, down))
        worker.start(until_empty=True)
        ended(worker)
        client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))
        client.call(NAME, "calls", None, lambda: q.statistics(client.db)["calls"])

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    checkers = [exact_statistics(NAME), no_watch_left_behind, spins_nowhere]
    checkers += [each_done_without_a_failure(away), ends_in_time(away), pauses_grow(down)]
    return [*checkers, *(soon_after(span) for span in (away, down) if span.stop_s < stopped_s)]


def note_points(simulation: Simulation, at_s: float) -> None:
    """Note the number of scheduling points so far at a time: a thread that spins makes many of them."""
    scheduler, trace = simulation.scheduler, simulation.trace
    scheduler.call_at(at_s, lambda: trace.note(at_s, "scheduler", POINTS, scheduler.points))


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, "fifottl", ttr=TTR_S, if_not_exists=True)


def hired(client: Client, handler: partial[None]) -> Worker:
    """Return a worker that buries a task after one failure, so that a wrongly counted one shows."""
    return Worker(
        client.db, NAME, handler, threads=THREADS, max_attempts=1, grace_s=GRACE_S, session_ttr_s=TTR_S
    )


def handle(client: Client, down: Span, task: HeldTask) -> None:
    now_s = client.runtime.monotonic()
    is_down = down.start_s <= now_s < down.stop_s
    seconds = client.random.choice((0, 0.05, 0.5))
    handled = Handled(client.name, task.queue, task.data, is_down)
    client.call(NAME, "handle", handled, partial(client.runtime.sleep, seconds))
    if is_down:
        raise Unavailable("the service is down")
    succeed(task)
