"""The checkers of the workload `unavailable`."""

from collections.abc import Iterator
from itertools import pairwise
from math import log2
from typing import NamedTuple, Self

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace
from tests.system.workloads.effects import effects_in

NAME = "unavailable"
POINTS = "points"
THREADS = 2
GRACE_S = 5.0
ENDS_WITHIN_S = GRACE_S + limits.CLOSE_TIMEOUT_S
POINTS_PER_S = 500
SOON_S = 3.0
ACKS_WITHIN_S = 1.0


class Span(NamedTuple):
    """A time for which something is away."""

    start_s: float
    stop_s: float

    @classmethod
    def of(cls, start_s: float, seconds: float) -> Self:
        return cls(start_s, start_s + seconds)


def each_done_without_a_failure(away: Span) -> Checker:
    """Check that each put task has its effect once: a task that failed is buried.

    A worker that ends while the database is away cannot excuse its leases, which count as failed attempts.
    """

    def check(trace: Trace, database: Database) -> Iterator[str]:
        effects, excused = effects_in(database), _held_at_an_end(trace, away)
        for put in trace.of(NAME, "put"):
            count = effects.get(put.argument, 0)
            if put.done and count != 1 and (count or put.argument not in excused):
                yield f"{count} effects of {put.argument!r}"
        for look in trace.of(NAME, "calls"):
            if look.result["bury"] > len(excused - effects.keys()):
                yield f"{look.result['bury']} burials, though no handler has failed"

    return check


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


def ends_in_time(away: Span) -> Checker:
    """Check that a stopped worker ends; if it waits for an answer of the database, soon after that."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for op in (op for op in trace.of(NAME, "end") if op.ended_s is not None):
            is_away = away.start_s <= op.began_s < away.stop_s
            late_s = (op.ended_s or 0) - (away.stop_s if is_away else op.began_s)
            if late_s > ENDS_WITHIN_S:
                yield f"{op.client} ended {late_s:.1f} s after its stop"

    return check


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
