"""The checkers of the workload `proxies`, one for each promise of a persistent queue."""

from collections.abc import Iterator
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.trace import Operation, Trace

NAME = "proxies"
SHARED = "shared"


def left(trace: Trace) -> list[Any]:
    """Return the items that the survivor found, in order."""
    (drain,) = trace.of(NAME, "drain")
    return list(drain.result)


def may_have_happened(op: Operation) -> bool:
    return op.done or op.unknown


def one_copy_each(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no item is lost or doubled, and no committed stage is undone."""
    there = left(trace)
    stages = dict(there)
    values = [value for value, _ in there]
    yield from (f"{values.count(value)} copies of {value!r}" for value in stages if values.count(value) > 1)
    puts = {op.argument: op for op in trace.of(NAME, "put")}
    yield from (f"never put: {value!r}" for value in stages if value not in puts)
    ends = {op.argument[0] for op in trace.of(NAME, "ack") if may_have_happened(op)}
    for value, op in puts.items():
        if op.done and value not in stages and value not in ends:
            yield f"lost: {value!r}"
    advances = [(op.argument[0], op.argument[1] + 1) for op in trace.of(NAME, "advance") if op.done]
    advances += [op.result for op in trace.of(NAME, "consume") if op.done]
    for value, stage in advances:
        if value in stages and stages[value] < stage:
            yield f"{value!r} had reached stage {stage}, and is at {stages[value]}"


def acked_for_good(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an acked item is never delivered again."""
    there = {value for value, _ in left(trace)}
    for ack in (op for op in trace.of(NAME, "ack") if op.done):
        value = ack.argument[0]
        again = [op for op in trace.of(NAME, "get") if op.done and op.result[0] == value]
        if value in there or any(ack.before(op) for op in again):
            yield f"delivered after its ack: {value!r}"


def no_late_ack(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no client acks an item, alone or with a put, after a later delivery to another client."""
    gets = [op for op in trace.of(NAME, "get") if op.done]
    for ack in (op for op in trace.of(NAME, "ack", "advance") if op.done):
        of_item = [op for op in gets if tuple(op.result) == ack.argument]
        own = [op for op in of_item if op.client == ack.client and op.before(ack)]
        for other in of_item:
            if own and own[-1].before(other) and other.before(ack):
                yield f"{ack.client} acked {ack.argument}, which {other.client} had got since"


def no_item_after_losing_the_name(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a client fetches no item once another client has opened its name."""
    opens = [op for op in trace.of(NAME, "open") if op.done]
    shared = [op for op in opens if op.argument == SHARED]
    for get in (op for op in trace.of(NAME, "get") if op.done):
        worker = get.client.split("/")[0]
        mine = [op for op in opens if op.client == worker and op.before(get)][-1]
        if mine in shared and any(mine.before(op) and op.before(get) for op in shared):
            yield f"{get.client} fetched {get.result} in a name that it had lost"


def in_order(trace: Trace, _: Database) -> Iterator[str]:
    """Check that returned items keep their places: a producer's untouched ones are in the order of puts."""
    untouched = [value for value, stage in left(trace) if stage == 0]
    for producer in {value.split(".")[0] for value in untouched}:
        steps = [int(value.split(".")[1]) for value in untouched if value.split(".")[0] == producer]
        if steps != sorted(steps):
            yield f"out of order: {steps} of {producer}"


CHECKS = [
    exact_statistics(NAME),
    one_copy_each,
    acked_for_good,
    no_late_ack,
    no_item_after_losing_the_name,
    in_order,
    no_watch_left_behind,
]
