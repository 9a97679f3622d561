"""The checkers of the workload `several` that look at its stops: a stopped worker drains, and ends."""

from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.several_checks import NAME, PROMPT_S, handled_by


def nothing_begins_after_a_stop(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no handler begins later than the last take before the stop allows."""
    for stop, join in drains(trace):
        for op in handled_by(trace, stop.client):
            if stop.ended_s is not None and stop.ended_s + PROMPT_S < op.began_s and within(op, stop, join):
                yield f"{op.argument.value!r} began {op.began_s - stop.ended_s:.1f} s after the stop"


def a_stop_ends_promptly(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker ends soon after its last running handler; at once, if it was stopped so."""
    for stop, join in drains(trace):
        running = [op.ended_s or 0 for op in handled_by(trace, stop.client)]
        ends_s = [at_s for at_s in running if at_s < (join.ended_s or 0)] if not stop.argument else []
        late_s = (join.ended_s or 0) - max([stop.ended_s or 0, *ends_s])
        if late_s > PROMPT_S:
            yield f"{stop.client} ended {late_s:.1f} s after its last handler"


def drains(trace: Trace) -> Iterator[tuple[Operation, Operation]]:
    """Yield each stop of a worker, and the wait for its end."""
    for join in trace.of(NAME, "join"):
        stops = [op for op in trace.of(NAME, "stop") if op.client == join.client and op.before(join)]
        yield stops[-1], join


def within(op: Operation, first: Operation, last: Operation) -> bool:
    """True if an operation began after `first` had ended, and ended before `last`."""
    return first.before(op) and (op.ended or 0) < (last.ended or 0)


def tallies_are_right(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker counts each handler that ended before its stop was over, and no other."""
    for stop, join in drains(trace):
        starts = [op for op in trace.of(NAME, "start") if op.client == stop.client and op.before(stop)]
        handled = [op for op in handled_by(trace, stop.client) if within(op, starts[-1], join)]
        if not stop.argument and join.result != len(handled):
            yield f"{stop.client} has counted {join.result} successes, and {len(handled)} handlers ended"
