"""The checkers of tasks under limits, and the names that their workload uses."""

from collections.abc import Callable, Iterator
from itertools import product

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.task import Task
from fdbqueue.operate.verify.verify import verify
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace

NAMES = ("limited", "limited too")
SLOTS, STARTS = "slots", "starts"
RATE, PER_S, BURST = 1, 4.0, 3
TAKE, LAST_TAKE = "take under limits", "take at the end"
WAIT_S = 30.0
"""A take that waits for so long, beside a ready task and alone, is stuck."""
SLACK_S = limits.CLOCK_SKEW_S + limits.TRANSACTION_AGE_MAX_S


def none_is_stuck(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task waits beside a free slot or a token, once only one process is left."""
    for name in NAMES:
        for op in trace.of(name, LAST_TAKE):
            if op.done and op.result is None:
                yield f"a task of {name!r} was ready, and no take got it for {WAIT_S:g} s"


def slots_are_back(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no slot is held when no task is left."""
    for op in trace.of(NAMES[0], "slots"):
        if op.done and op.result:
            yield f"{op.result} slots are held by no task"


def agreeing(_: Trace, database: Database) -> Iterator[str]:
    """Check that all keys of the root agree."""
    for finding in verify(database).findings:
        yield f"verify: {finding.text}"


PROMISES: tuple[Checker, ...] = (none_is_stuck, slots_are_back, agreeing)


def starts_in_bounds(counts: Callable[[str, Task], bool]) -> Checker:
    """Check that no more tasks started in any window than the burst and the rate allow. The slack of the
    clocks, and of the time between the look of a take at its clock and its commit, is added to each window.

    `counts(queue, task)`: true for a task under the limit of starts.
    """

    def counted(name: str, result: Task | list[Task]) -> int:
        return sum(counts(name, task) for task in (result if isinstance(result, list) else [result]))

    def check(trace: Trace, _: Database) -> Iterator[str]:
        takes = [op for name in NAMES for op in trace.of(name, TAKE, LAST_TAKE) if op.done and op.result]
        spans = [(op.began_s, op.ended_s or op.began_s, counted(op.subject, op.result)) for op in takes]
        for began_s, ended_s in product((one[0] for one in spans), (one[1] for one in spans)):
            started = sum(count for first, last, count in spans if began_s <= first and last <= ended_s)
            allowed = BURST + RATE * (max(0.0, ended_s - began_s) + SLACK_S) / PER_S
            if started > allowed:
                yield f"{started} tasks started in {ended_s - began_s:.1f} s, and {allowed:.1f} may"
                return

    return check
