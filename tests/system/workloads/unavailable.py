"""Workers whose database, or whose handlers' service, is away for a while: they wait, count no failure, and
go on soon after.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import log2
from typing import NamedTuple, Self

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Unavailable
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import checker, cramped, values_of
from tests.system.workloads.fleet import ended, work_until_empty
from tests.system.workloads.stage import Handled, Tasks, audit, effects_in, play, put_plain, succeed

TTR_S = 300.0
LIFE_S = 90.0
SPANS_S = (3.0, 8.0, 20.0)
LONG_S = 30.0
NAME = "unavailable"
POINTS = "points"
THREADS = 2
GRACE_S = 5.0
ENDS_WITHIN_S = GRACE_S + limits.CLOSE_TIMEOUT_S
POINTS_PER_S = 500
SOON_S = 3.0
ACKS_WITHIN_S = 1.0


# A worker that dies or stalls is late by itself; a slow reply or a late watch is no outage.
@workload(
    clients=2, steps=4, never=("die", "stall", "slow_reply", "clock_skew_s", "watch_late", "watch_very_late")
)
def unavailable(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.overtake = limits.WORKER_OVERTAKE
    simulation.limit(SWEEP_EVERY_S=2, SESSIONS_SWEPT_EVERY_S=2)  # nothing comes due, and each sweep costs
    random = simulation.random
    away = Span.of(random.uniform(5, 10), random.choice((*SPANS_S, LONG_S)))
    down = Span.of(random.uniform(35, 40), random.choice(SPANS_S))
    stopped_s = random.choice((away.start_s + 1, LIFE_S, LIFE_S))
    simulation.outage(away.start_s, away.stop_s - away.start_s)
    for at_s in (away.start_s, away.stop_s):
        note_points(simulation, at_s)

    queue = Tasks(NAME, ttr=TTR_S)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, 3 * size.steps):
            put_plain(client, q, value)
            client.runtime.sleep(client.random.choice((0, 3, 8)))

    def work(client: Client, _: TaskQueue) -> None:
        worker = hired(client, partial(handle, client, down))
        worker.start()
        client.runtime.sleep(stopped_s - client.runtime.monotonic())
        worker.stop()
        client.call(NAME, "end", None, partial(ended, worker))

    def survive(client: Client, q: TaskQueue) -> None:
        work_until_empty(hired(client, partial(handle, client, down)))
        audit(client, q)
        client.call(NAME, "calls", None, lambda: q.statistics(client.db)["calls"])

    roles = {"producer-": queue.using(produce), "worker-": queue.using(work)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    checkers = [exact_statistics(NAME), no_watch_left_behind, spins_nowhere]
    checkers += [each_done_without_a_failure(away), ends_in_time(away), pauses_grow(down)]
    return [*checkers, *(soon_after(span) for span in (away, down) if span.stop_s < stopped_s)]


def note_points(simulation: Simulation, at_s: float) -> None:
    """Note the number of scheduling points so far at a time: a thread that spins makes many of them."""
    scheduler, trace = simulation.scheduler, simulation.trace
    scheduler.call_at(at_s, lambda: trace.note(at_s, "scheduler", POINTS, scheduler.points))


def hired(client: Client, handler: partial[None]) -> Worker:
    """Return a worker that buries a task after one failure, so that a wrongly counted one shows."""
    return Worker(client.db, NAME, handler, threads=THREADS, attempts=1, grace_s=GRACE_S, session_ttr_s=TTR_S)


# Checkers.


class Span(NamedTuple):
    """A time for which something is away."""

    start_s: float
    stop_s: float

    @classmethod
    def of(cls, start_s: float, seconds: float) -> Self:
        return cls(start_s, start_s + seconds)


def handle(client: Client, down: Span, task: HeldTask) -> None:
    now_s = client.runtime.monotonic()
    is_down = down.start_s <= now_s < down.stop_s
    seconds = client.random.choice((0, 0.05, 0.5))
    handled = Handled(client.name, task.queue, task.data, is_down)
    client.call(NAME, "handle", handled, partial(client.runtime.sleep, seconds))
    if is_down:
        raise Unavailable("the service is down")
    succeed(task)


@checker
def each_done_without_a_failure(trace: Trace, database: Database, away: Span) -> Iterator[str]:
    """Check that each put task has its effect once: a task that failed is buried.

    A worker that ends while the database is away cannot excuse its leases, which count as failed attempts.
    """
    effects, excused = effects_in(database), _held_at_an_end(trace, away)
    for put in trace.of(NAME, "put"):
        count = effects.get(put.argument, 0)
        if put.done and count != 1 and (count or put.argument not in excused):
            yield f"{count} effects of {put.argument!r}"
    for look in trace.of(NAME, "calls"):
        if look.result["bury"] > len(excused - effects.keys()):
            yield f"{look.result['bury']} burials, though no handler has failed"


def _held_at_an_end(trace: Trace, away: Span) -> set[str]:
    """Return the tasks that a worker may have held when it was stopped while the database was away."""
    stopped = {op.client for op in trace.of(NAME, "end") if away.start_s <= op.began_s < away.stop_s}
    handled = [op for op in trace.of(NAME, "handle") if op.argument.worker in stopped]
    acked_s = away.start_s - ACKS_WITHIN_S
    return {op.argument.value for op in handled if op.ended_s is None or op.ended_s > acked_s}


def spins_nowhere(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the threads of all processes wait while the database is away."""
    noted = [(at_s, points[0]) for at_s, _who, what, points in trace.events if what == POINTS]
    for (start_s, before), (stop_s, after) in pairwise(noted):
        per_s = (after - before) / (stop_s - start_s)
        if per_s > POINTS_PER_S:
            yield f"{per_s:.0f} steps per second while the database is away"


@checker
def ends_in_time(trace: Trace, _: Database, away: Span) -> Iterator[str]:
    """Check that a stopped worker ends; if it waits for an answer of the database, soon after that."""
    for op in (op for op in trace.of(NAME, "end") if op.ended_s is not None):
        is_away = away.start_s <= op.began_s < away.stop_s
        late_s = (op.ended_s or 0) - (away.stop_s if is_away else op.began_s)
        if late_s > ENDS_WITHIN_S:
            yield f"{op.client} ended {late_s:.1f} s after its stop"


def pauses_grow(down: Span) -> Checker:
    """Check that a worker tries a service that is down only now and then."""
    pauses = log2((down.stop_s - down.start_s) / limits.AWAY_FIRST_S) + 2

    def check(trace: Trace, _: Database) -> Iterator[str]:
        tries = [op.argument.worker for op in trace.of(NAME, "handle") if op.argument.is_down]
        for worker in sorted(set(tries)):
            if tries.count(worker) > THREADS * pauses:
                yield f"{worker} has tried a service that is down {tries.count(worker)} times"

    return check


def soon_after(span: Span) -> Checker:
    """Check that tasks that were put before the end of an outage begin within one more pause of a worker."""
    until_s = span.stop_s + max(2 * (span.stop_s - span.start_s), SOON_S) + SOON_S

    def check(trace: Trace, _: Database) -> Iterator[str]:
        done = {op.argument.value: op.began_s for op in trace.of(NAME, "handle") if not op.argument.is_down}
        for put in trace.of(NAME, "put"):
            if put.done and (put.ended_s or 0) < span.stop_s and done.get(put.argument, until_s) > until_s:
                late_s = done[put.argument] - span.stop_s
                yield f"{put.argument!r} began {late_s:.1f} s after the end of an outage"

    return check
