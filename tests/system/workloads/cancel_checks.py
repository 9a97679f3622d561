"""The promises of a cancel, checked after a simulated run."""

from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace
from tests.system.workloads.effects import effects_in

NAME = "cancels"
RAN_OUT = "ran out"
LEARNS_S = 5.0
"""A heartbeat comes after a third of the ttr, 2 s. Without one for 2 s, the lease is lost."""


def none_begins(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take that began after a cancel had returned gave the cancelled task."""
    for cancel in (op for op in trace.of(NAME, "cancel") if op.done):
        for take in trace.of(NAME, "take"):
            if take.result == cancel.argument and cancel.before(take):
                yield f"{take.client} took {cancel.argument}, which {cancel.client} had cancelled"


def handlers_learn(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no handler ran to its end for long after the cancel of its task."""
    cancelled = {op.argument: op.ended_s for op in trace.of(NAME, "cancel") if op.done}
    for run_ in (op for op in trace.of(NAME, "handle") if op.result == RAN_OUT):
        at = cancelled.get(run_.argument)
        if at is not None and run_.ended_s is not None and at + LEARNS_S < run_.ended_s:
            yield f"{run_.client} ran {run_.argument} for {run_.ended_s - at:.1f} s after its cancel"


def each_has_one_end(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task had its effect once, or was cancelled; and that the counts say so."""
    effects = effects_in(database)
    asked = {op.argument for op in trace.of(NAME, "cancel")}
    yield from (f"{count} effects of {id_}" for id_, count in effects.items() if count != 1)
    for put in trace.of(NAME, "put"):
        if put.done and put.result not in effects | dict.fromkeys(asked, 0):
            yield f"lost: {put.result}"
    for calls in (op.result for op in trace.of(NAME, "end") if op.done):
        if (calls["ack"], calls["put"]) != (len(effects), len(effects) + calls["cancel"]):
            yield f"{calls} are counted, and {len(effects)} tasks had their effect"


PROMISES: tuple[Checker, ...] = (none_begins, handlers_learn, each_has_one_end)
