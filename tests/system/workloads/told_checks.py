"""The checkers of the workload `told`: events of callbacks, and the counters of calls."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fdbqueue.core.database import Database
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.task import Task
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace

NAME = "told"
MARK = b"mark/"
NEVER = "never "

# After these, a change may be committed and not told, or told by a process that is gone.
DOUBTING = (
    "die",
    "stall",
    "slow_reply",
    "unknown_done",
    "unknown_not_done",
    "unknown_after_conflict",
    "clock_skew_s",
)
# With these, a lease may be over before its caller has received the task: a take that no call returns.
SLOW = ("stall", "slow_reply", "clock_skew_s")
COUNTED = ("put", "release", "bury", "kick", "touch", "ttr", "delay", "ttl")


class Sums(NamedTuple):
    """Events of all processes, and the counters of the queue."""

    told: Counter[str]
    counted: dict[str, int]


def sums(trace: Trace) -> Iterator[Sums]:
    """Yield the sums at the end of the run, if it came to that."""
    told = Counter(op.argument[2] for op in trace.of(NAME, "told"))
    for look in trace.of(NAME, "statistics"):
        yield Sums(told, look.result)


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (told_after_the_commit, told_at_most_once, no_more_told_than_counted, no_watch_left_behind)
    yield calls_counted(("put", "ack", "bury", "delete", "touch"))  # ends of sessions count as releases
    if not active & {*SLOW}:
        yield from (calls_counted(("take",)), attempts_are_takes)
    if not active & {*DOUBTING}:
        yield all_told


def told_after_the_commit(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each event is about a change that other transactions see already."""
    for op in trace.of(NAME, "told"):
        if op.done and op.result is None:
            yield f"{op.argument} was told, and its task has never been committed"


def told_at_most_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task is put, and ends, in one event of all processes."""
    told = Counter(op.argument[1:] for op in trace.of(NAME, "told"))
    for (value, event), count in told.items():
        if event in ("put", "delete") and count > 1:
            yield f"{event} of {value!r} was told {count} times"


def no_more_told_than_counted(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no process was told of more changes than there were."""
    for told, counted in sums(trace):
        for event in COUNTED:
            if told[event] > counted[event]:
                yield f"{told[event]} times {event} was told, and {counted[event]} were counted"


def all_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each change was told to the process that made it."""
    for told, counted in sums(trace):
        for event in COUNTED:
            if told[event] != counted[event]:
                yield f"{told[event]} times {event} was told, and {counted[event]} were counted"
        ends = counted["ack"] + counted["delete"]
        if told["delete"] != ends:
            yield f"{told['delete']} ends were told, and {ends} were counted"


def calls_counted(names: Sequence[str]) -> Checker:
    """Check that the counters of calls hold each call that has returned, and no other."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for _told, counted in sums(trace):
            for name in names:
                of_expiry = counted["ttl"] if name == "delete" else 0
                done = sum(
                    op.done and (name != "take" or op.result is not None) for op in trace.of(NAME, name)
                )
                in_doubt = sum(op.unknown for op in trace.of(NAME, name)) + _too_late(trace, name, counted)
                if not done <= counted[name] - of_expiry <= done + in_doubt:
                    yield f"{counted[name]} times {name} is counted, {done} are done, {in_doubt} in doubt"

    return check


def _too_late(trace: Trace, name: str, counted: dict[str, int]) -> int:
    """Return the most takes that were stopped, and whose leases ended before they could be undone."""
    stopped = sum(isinstance(op.error, WaitStopped) for op in trace.of(NAME, name)) if name == "take" else 0
    return min(stopped, counted["ttl"] + counted["ttr"])


def attempts_are_takes(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task has no more attempts than takes, and no more failures than attempts before it."""
    takes = trace.of(NAME, "take")
    in_doubt = sum(op.unknown for op in takes)
    received = [op for op in takes if op.done and op.result]
    for op in received:
        task: Task = op.result
        so_far = [other for other in received if other.result.id == task.id and other.began < (op.ended or 0)]
        if task.attempts > len(so_far) + in_doubt or task.failures > task.attempts - 1:
            yield f"take {len(so_far)} of {task.data!r} is attempt {task.attempts}, {task.failures} failed"
