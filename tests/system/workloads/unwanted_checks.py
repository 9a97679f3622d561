"""The checkers of the workload `unwanted`."""

from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.testing.faults import DELAYING, Faults
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace

NAME = "unwanted"
SESSION_TTR_S = 3.0
HARMLESS = {"not_committed", "watch_spurious", "watch_late", "watch_very_late", "watch_missed"}


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (each_dead_session_is_ended, none_is_left_at_the_end)
    if not DELAYING & set(faults.active):
        yield a_wanted_session_stays
    if set(faults.active) <= HARMLESS:
        yield an_unwanted_session_ends


def a_wanted_session_stays(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session stays while it is wanted, and while its `wanted` fails."""
    for op in trace.of(NAME, "wanted"):
        if op.done and not op.result:
            yield f"the session {op.argument.hex()} of {op.client} is wanted, and is over"


def an_unwanted_session_ends(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session ends a moment after it is not wanted any more, though its process lives."""
    for op in trace.of(NAME, "unwanted"):
        if op.done and op.result:
            yield f"the session {op.argument.hex()} of {op.client} is not wanted, and goes on"


def each_dead_session_is_ended(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a dead session that cannot be ended holds up the end of no other."""
    dead = [entry for op in trace.of(NAME, "die") for entry in op.argument.items()]
    cursed = {session.hex() for session, is_cursed in dead if is_cursed}
    for op in trace.of(NAME, "unfinished"):
        for session in sorted(set(op.result or ()) - cursed - {op.argument.hex()}):
            yield f"the dead session {session} is not ended, beside one that cannot be ended"


def none_is_left_at_the_end(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an end that failed is tried again."""
    for op in trace.of(NAME, "unfinished at the end"):
        for session in sorted(set(op.result or ()) - {op.argument.hex()}):
            yield f"the dead session {session} is not ended, though it can be ended"
