"""The checkers of the workload `item_partitions`."""

from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.queues.recipe.keys import QueueKeys
from fdbqueue.testing.checkers import (
    exact_statistics,
    never_nothing,
    no_key_left_behind,
    no_watch_left_behind,
    prompt,
    total_queue,
)
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import is_definition, line_left_empty
from tests.system.workloads.item_partitions_deeds import BATCH, CLEAR, GIVE_BACK, HOLD, NAME

PROMPT_S = 0.8
HARMLESS = {"clock_skew_s", "watch_spurious"}
"""These faults delay no wake-up."""


def checks(active: set[str], more: str | None) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`, and calls of the sort `more`."""
    yield from (total_queue(NAME), exact_statistics(NAME), no_watch_left_behind, no_key_left)
    if "die" not in active:
        yield line_left_empty(NAME)
        if more != GIVE_BACK:
            yield batches_keep_their_order
    if not {"die", "stall"} & active and more not in (HOLD, CLEAR):
        yield never_nothing(NAME)
    if active <= HARMLESS:
        yield prompt(NAME, PROMPT_S)


def batches_keep_their_order(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the survivor got the values of one call, which are in one partition, in their order."""
    got = [value for op in trace.of(NAME, "dequeue") if op.client == "survivor" for value in op.result or ()]
    for put in (op for op in trace.of(NAME, "enqueue") if len(op.argument) == BATCH):
        together = [value for value in got if value in put.argument]
        if together != [value for value in put.argument if value in together]:
            yield f"out of order: {together}"


def no_key_left(trace: Trace, database: Database) -> Iterator[str]:
    """Check that all partitions but the first have gone, and left nothing."""
    registry = Registry(DEFAULT_ROOT)
    contents = registry.contents(registry.find(database, NAME))
    keys, shared = QueueKeys(contents), SharedKeys(contents)

    def is_allowed(key: bytes, value: bytes) -> bool:
        if key in (keys.floor, shared.bell, shared.flag(0)):
            return True
        return is_definition(key, value) or (key == keys.size and not any(value))

    yield from no_key_left_behind(DEFAULT_ROOT.key(), is_allowed)(trace, database)
