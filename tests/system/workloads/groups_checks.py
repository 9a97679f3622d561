"""The promises of groups, checked after a simulated run."""

from collections import Counter
from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.soundness import unsound
from fdbqueue.testing.trace import Trace
from tests.system.audit.answers import TAKE

NAME, SECOND, THEN = "groups", "groups-second", "groups-then"
PROMPT_S = 15.0
"""Once faults and members have ended, each group ends within this time."""


def then_starts_never_early(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no look has seen a started task beside a member that was left."""
    for look in trace.of(NAME, "audit"):
        yield from look.result or ()


def then_starts_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task of `then` was acked at most once."""
    acked = Counter(op.argument for op in trace.of(THEN, "ack") if op.done)
    yield from (f"the task {id_} has run {times} times" for id_, times in acked.items() if times > 1)


def no_group_is_stuck(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each group has ended, and its task has run, if nothing has cancelled it."""
    acked = {op.argument for op in trace.of(THEN, "ack")}
    cancelled = {op.argument for op in trace.of(NAME, "cancel group") if op.result or not op.done}
    for look in trace.of(NAME, "left"):
        yield from look.result or ()
    for op in trace.of(NAME, "make"):
        group, then = op.result if op.done else ("", "")
        if group and group not in cancelled and then not in acked:
            yield f"the task {then} of the group {group} has not run"


def no_cancelled_member_is_taken(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take that began after the cancel of a group gave one of its members."""
    cancels = [op for op in trace.of(NAME, "cancel group") if op.done and op.result]
    for queue in (NAME, SECOND):
        for take in trace.of(queue, TAKE):
            groups = () if not take.done or take.result is None else take.result.groups
            for cancel in cancels:
                if cancel.argument in groups and cancel.before(take):
                    yield f"{take.client} got {take.result.id} of the cancelled group {cancel.argument}"


def counts_equal_a_scan(_: Trace, database: Database) -> Iterator[str]:
    """Check that a verification finds nothing."""
    yield from unsound(database)


PROMISES: tuple[Checker, ...] = (
    then_starts_never_early,
    then_starts_once,
    no_group_is_stuck,
    no_cancelled_member_is_taken,
    counts_equal_a_scan,
)
