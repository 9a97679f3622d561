"""The checkers of the workload `emptied`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from fdbqueue.core.database import Database
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.runtime import EPOCH_S
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace, longest_pause_s
from tests.system.workloads.leftovers import nothing_left

NAME = "emptied"
PROMPT_S = 0.8
Span = tuple[float, float]


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (exact_statistics(NAME), each_ends_once, no_watch_left_behind)
    if "die" not in active:
        yield from (none_waits_beside_a_task, nothing_left(NAME))


def each_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each put task was acked once, or was removed, or has expired."""
    acked = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    removed = {op.result for op in trace.of(NAME, "remove") if op.done}
    unknown = {op.argument for op in trace.of(NAME, "finish") if not op.done}
    lives = {op.result[0]: op.result[1] for op in trace.of(NAME, "take") if op.result}
    for put in trace.of(NAME, "put"):
        value, truncates = put.argument, [op for op in trace.of(NAME, "truncate") if not op.before(put)]
        may_be_gone = (
            bool(truncates) or value in unknown or any(op.unknown for op in trace.of(NAME, "remove"))
        )
        if acked[value] > 1:
            yield f"acked {acked[value]} times: {value!r}"
        expires = put.done and (put.result.expires is not None or lives.get(value, inf) < inf)
        if put.done and not (acked[value] or value in removed or may_be_gone or expires):
            yield f"lost: {value!r}"


def none_waits_beside_a_task(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take waits for long while a task is ready and the queue is not paused.

    A task is ready from its put, or from the end of the delay of its return, to the end of the call that took
    or removed it. For runs without late answers.
    """
    open_ = _spans_without_pause(trace)
    for put in (op for op in trace.of(NAME, "put") if op.done):
        for ready in _spans_of(trace, put):
            for wait in trace.of(NAME, "take"):
                for span in open_:
                    both = _common(ready, (wait.began_s, wait.ended_s or wait.began_s), span)
                    beside_s = both[1] - both[0]
                    if beside_s > PROMPT_S and beside_s > PROMPT_S + _pauses_s(trace, both):
                        yield f"{wait.client} waited for {beside_s:.1f} s beside the ready {put.argument!r}"


def _spans_of(trace: Trace, put: Operation) -> Iterator[Span]:
    """The times at which a task was ready for sure."""
    value, removals = put.argument, [*trace.of(NAME, "remove"), *trace.of(NAME, "truncate")]
    opened = [op for op in (put, *trace.of(NAME, "return")) if op.argument == value and op.done]
    takes = [op for op in trace.of(NAME, "take") if op.result and op.result[0] == value]
    removals = [op for op in removals if op.name == "truncate" or op.argument == put.result.id]
    expires_s = inf if put.result.expires is None else put.result.expires - EPOCH_S
    for op in opened:
        began_s = (op.ended_s or inf) + (op.result if op.name == "return" else 0.0)
        # It may have been taken or removed within the call that put it there.
        ends = [take.ended_s for take in takes if take.ended_s is not None and take.ended_s >= op.began_s]
        # A task that was cancelled while it was taken does not come back.
        gone = [it.began_s for it in removals if it.name == "remove" or not it.before(op)]
        yield began_s, min([*ends, *gone, expires_s], default=began_s)


def _spans_without_pause(trace: Trace) -> Sequence[Span]:
    began, spans = 0.0, []
    for op in trace.of(NAME, "pause", "resume"):
        if op.name == "pause":
            spans.append((began, op.began_s))
        began = op.ended_s or inf
    return [*spans, (began, inf)]


def _common(*spans: Span) -> Span:
    return max(begin for begin, _ in spans), min(end for _, end in spans)


def _pauses_s(trace: Trace, span: Span) -> float:
    """The longest pauses that the refused attempts of takes in `span` may have had."""
    refused, pauses_s = Counter[tuple[str, int]](), 0.0
    for attempt in trace.transactions:
        if attempt.outcome == "committed" or attempt.operation is None or attempt.operation.name != "take":
            continue
        transaction = attempt.who, attempt.number
        if span[0] <= attempt.at_s <= span[1]:
            pauses_s += longest_pause_s(refused[transaction])
        refused[transaction] += 1
    return pauses_s
