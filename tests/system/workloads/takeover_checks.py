"""The checkers of the workload `takeover`."""

from collections.abc import Iterator

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.faults import DELAYING, Faults
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads import tasks
from tests.system.workloads.takeover_looks import NAME, SESSION_TTR_S, Lease

UNKNOWN = {"unknown_done", "unknown_not_done", "unknown_after_conflict"}
OF_SESSIONS = {
    columns.SESSION,
    columns.SESSION_NAME,
    columns.HEARTBEAT,
    columns.BEAT_DUE,
    columns.PRESENCE,
    columns.MEMBERSHIP,
}


def checks(faults: Faults, has_long_leases: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with these faults."""
    yield from (exact_statistics(NAME), tasks.once_each, no_watch_left_behind, no_session_left)
    yield from (lost_is_true, an_old_lease_renews_nothing, none_comes_back)
    yield beats_hold(SESSION_TTR_S - faults.clock_skew_s)
    if limits.BEATS_PER_TTR > 1 and not DELAYING - UNKNOWN & set(faults.active):
        yield ended_in_whole
    if not DELAYING & set(faults.active):
        yield ended_at_once
        if limits.BEATS_PER_TTR > 1:
            yield none_lost
            if has_long_leases:
                yield each_goes_on


def no_session_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that no key is left of a session that is over: it was ended, or all of its processes are dead."""
    keys = RootKeys(DEFAULT_ROOT)
    for entry in database.get_range_startswith(DEFAULT_ROOT.key()):
        if keys.shape_of(entry.key)[0] in OF_SESSIONS:
            yield f"left of a session: {entry.key!r} = {entry.value!r}"


def lost_is_true(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session that counts as lost is over."""
    for op in trace.of(NAME, "session"):
        if op.result == (True, True):
            yield f"{op.client} takes its session for lost, and it is stored"


def none_comes_back(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session that is over stays over, and that its owner learns of it by a heartbeat."""
    over: dict[bytes, Operation] = {}
    for op in (op for op in trace.of(NAME, "sessions", "beat") if op.done):
        seen = op.result if op.name == "sessions" else {op.argument: not op.result}
        for session, is_stored in seen.items():
            if not is_stored:
                over.setdefault(session, op)
            elif session in over and over[session].before(op):
                yield f"the session {session.hex()} was over, and {op.client} finds it alive"


def beats_hold(ttr_s: float) -> Checker:
    """Check that a session lives for `ttr_s` after a heartbeat that was in time."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        beaten_s: dict[tuple[str, bytes], float] = {}
        for op in (op for op in trace.of(NAME, "beat", "session") if op.done):
            at = op.client, op.argument
            if op.name == "beat" and not op.result:
                beaten_s[at] = op.began_s
            elif op.name == "session" and op.result == (op.result[0], False):
                age_s = (op.ended_s or 0) - beaten_s.get(at, float("-inf"))
                if age_s < ttr_s:
                    yield f"{op.client} has lost its session {age_s:.1f} s after a heartbeat"

    return check


def ended_in_whole(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session holds nothing once a call has ended it, unless another opener is ending it."""
    for op in trace.of(NAME, "left"):
        ends = [end for end in trace.of(NAME, "end") if end.argument == op.argument]
        is_going_on = any(not end.before(op) and not op.before(end) for end in ends)
        if op.done and op.result[1] and not op.result[0] and not is_going_on:
            yield f"{op.client} has ended the session {op.argument.hex()}, which holds {op.result[1]} tasks"


def ended_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session is over as soon as all of its processes have ended it."""
    for op in trace.of(NAME, "sessions"):
        if op.argument and any(op.result.values()):
            yield f"all processes have ended their sessions, and one goes on: {op.result}"


def none_lost(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no live process loses its session, and each that comes in time finds it."""
    for op in trace.of(NAME, "session", "open"):
        if op.error is not None or op.result in ((True, False), (False, False)):
            yield f"{op.client} has lost its session, though it is alive: {op.error or op.result}"


def an_old_lease_renews_nothing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a renewal by an old lease gives nothing, and leaves the task as it was."""
    for op in trace.of(NAME, "renew"):
        if op.done and not op.result.is_held and (op.result.is_renewed or changed(op.result)):
            yield f"{op.client} has renewed {op.argument!r} by an old lease: {op.result.after}"


def changed(lease: Lease) -> bool:
    """True if the lease in between is another one now. (A peek shows a lease that is over as ended.)"""
    return lease.after.state == TaskState.TAKEN and lease.before != lease.after


def each_goes_on(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a process finishes the tasks of the one before it, if that died a moment ago."""
    for op in trace.of(NAME, "go on"):
        value, is_fresh = op.argument
        if op.done and is_fresh and not op.result:
            yield f"{op.client} has lost {value!r}, which an earlier process of its session had taken"
