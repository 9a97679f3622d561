"""The checkers of the workload `killed`."""

from collections.abc import Iterator, Sequence

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace
from tests.system.audit.answers import TAKE
from tests.system.workloads import tasks

NAME = tasks.NAME  # the checkers of the workload `tasks` hold here too
VICTIM = "victim"
TTR_S = 4.0
LOST_S, NEW_S = TTR_S + 1.0, 1.0
"""From a death to the take of a lost task, and from the put of a new one to its take."""
SEEN_ON_CLUSTER_S = 3.0
"""A cluster knows a death after this time, and a new task takes no longer. A directory tells at once."""


def checks(last_death_s: float, seen_s: float) -> Sequence[Checker]:
    """Checkers for a run in which processes die until `last_death_s`, and count as alive for `seen_s`."""
    return [
        tasks.once_each,
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
