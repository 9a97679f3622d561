"""The checkers of the workload `weighty`."""

from collections.abc import Iterator, Sequence
from typing import Any

from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import Database
from fdbqueue.core.errors import TooMuchForOneTransaction
from fdbqueue.testing.checkers import never_nothing, no_watch_left_behind, prompt, total_queue
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Trace

NAME = "weighty"
BYTES_MAX, SERVE_BYTES_MAX = 10_000, 5_000
SIZES = (10, 10, 900, 3_000, 4_990, 9_900, 15_000)
BYTES_PER_KEY = 200
"""Of a key, its conflict keys and a record, beside the payloads of a transaction."""
PROMPT_S = 0.8
_JSON = codec_named("json")


def checks(active: set[str], waits: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`, in which takes wait or not."""
    yield from (total_queue(NAME), within_bytes, refused_for_a_reason, pages_hold_all, no_watch_left_behind)
    if active <= {"clock_skew_s", "watch_spurious"}:
        yield prompt(NAME, PROMPT_S)
    # An item may lie ready for a call that waits, and whose time is over.
    if not waits and not {"die", "stall"} & active:
        yield never_nothing(NAME)


def bytes_of(values: Sequence[Any]) -> int:
    return sum(len(_JSON.encode(value)) for value in values)


def within_bytes(trace: Trace, _: Database) -> Iterator[str]:
    """Check the bytes of each answer with several values, and of each transaction."""
    for op in trace.of(NAME, "dequeue"):
        if op.done and len(op.result) > 1 and bytes_of(op.result) > BYTES_MAX:
            yield f"{op.client} got {len(op.result)} values of {bytes_of(op.result)} bytes in one answer"
    # Results that a dead or slow machine has not collected go back by their number: some kilobytes each here.
    if any(trace.faults[name] for name in ("die", "stall", "slow_reply")):
        return
    for tr in trace.transactions:
        others = BYTES_PER_KEY * (tr.keys_read + tr.keys_written)
        if tr.size_bytes > max(BYTES_MAX + SERVE_BYTES_MAX, *SIZES) + others:
            yield f"transaction {tr.number} of {tr.who} has {tr.size_bytes} bytes"


def pages_hold_all(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the pages of a queue hold all of its values, though bytes cut them short."""
    for op in trace.of(NAME, "pages"):
        if op.result != op.argument:
            yield f"{op.result} values are in the pages of a queue with {op.argument}"


def refused_for_a_reason(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a put of several values is refused above the bound, and only then."""
    for op in trace.of(NAME, "enqueue"):
        too_much = len(op.argument) > 1 and bytes_of(op.argument) > BYTES_MAX
        if (op.done and too_much) or (isinstance(op.error, TooMuchForOneTransaction) and not too_much):
            yield f"a put of {bytes_of(op.argument)} bytes: {op.error!r}"
