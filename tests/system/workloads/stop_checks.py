"""The checkers of the workload `stops`."""

from collections import Counter
from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.core.errors import WaitStopped
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace
from tests.system.workloads.leftovers import nothing_left

NAME = "stops"

# These faults delay no transaction by seconds, so a stopped call ends within a few transactions.
PROMPT_S = 0.6
HARMLESS = {"not_committed", "watch_missed", "watch_spurious", "watch_late", "watch_very_late"}


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (exact_statistics(NAME), each_finished_once, no_watch_left_behind)
    if active <= HARMLESS:
        yield from (nothing_taken_after_closing, nothing_left(NAME), stopped_at_once)


def each_finished_once(trace: Trace, _: Database) -> Iterator[str]:
    finished = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    maybe = {op.argument for op in trace.of(NAME, "finish") if not op.done}
    for put in trace.of(NAME, "put"):
        count = finished[put.argument]
        if count > 1 or (put.done and not count and put.argument not in maybe):
            yield f"{put.argument!r} was finished {count} times"


def nothing_taken_after_closing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take commits after its database was closed."""
    closed_s = {op.argument: op.ended_s for op in trace.of(NAME, "close") if op.ended_s is not None}
    for tr in trace.transactions:
        takes = tr.operation is not None and tr.operation.name == "take"
        if takes and tr.at_s > closed_s.get(tr.who.partition("/")[0], tr.at_s):
            yield f"{tr.who} committed transaction {tr.number} after its database was closed"


def stopped_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take ends soon after its event is set, `argument` seconds after the call."""
    for take in trace.of(NAME, "take"):
        if isinstance(take.error, WaitStopped) and take.ended_s is not None:
            late_s = take.ended_s - take.began_s - take.argument
            if late_s > PROMPT_S:
                yield f"{take.client} was stopped {late_s:.1f} s late"
