"""The checkers of tasks that name their limits."""

from collections.abc import Iterator
from itertools import product

from fdbqueue.database import Database
from fdbqueue.task import Task
from fdbqueue.testing.trace import Trace
from fdbqueue.testing.workloads.limited_checks import (
    BURST,
    LAST_TAKE,
    NAMES,
    PER_S,
    RATE,
    SLACK_S,
    STARTS,
    TAKE,
    WAIT_S,
)

PASS = "take behind tasks over their limit"


def none_is_held_up(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task without limits starts beside tasks that are over theirs."""
    for name in NAMES:
        for op in trace.of(name, PASS):
            if op.done and op.result is None:
                yield f"a task of {name!r} names no limit, and no take got it for {WAIT_S:g} s"


def starts_of_named_in_bounds(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no more tasks that name the limit started in any window than it allows, as
    `starts_in_bounds` does.
    """
    takes = [op for name in NAMES for op in trace.of(name, TAKE, LAST_TAKE) if op.done and op.result]
    spans = [(op.began_s, op.ended_s or op.began_s, _count_in(op.result)) for op in takes]
    for began_s, ended_s in product((one[0] for one in spans), (one[1] for one in spans)):
        started = sum(count for first, last, count in spans if began_s <= first and last <= ended_s)
        allowed = BURST + RATE * (max(0.0, ended_s - began_s) + SLACK_S) / PER_S
        if started > allowed:
            yield f"{started} tasks started in {ended_s - began_s:.1f} s, and {allowed:.1f} may"
            return


def _count_in(result: Task | list[Task]) -> int:
    """Number of the tasks that name the limit of starts."""
    return sum(STARTS in task.limits for task in (result if isinstance(result, list) else [result]))
