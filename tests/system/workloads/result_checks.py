"""The answers of waits for results, and the checks of these answers."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NoResult, ResultTimeout, TaskFailed
from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.trace import Operation, Trace

NAME = "results"
COMMITTED = b"committed/"
"""Keys of the results, each written in the transaction of an ack."""
VALUE, FAILED, NONE, PENDING = "value", "failed", "none", "pending"
KEPT_S, SHORT_S = 1e6, 3.0
PROMPT_S = 2.0
HARMLESS = {"clock_skew_s", "watch_spurious", "not_committed"}
"""These faults delay no answer for long."""


class Answer(NamedTuple):
    """The answer of a wait: a value, the message of a failure, the reason of none, or the state."""

    kind: str
    told: Any


def answer_of(error: TaskFailed | NoResult | ResultTimeout) -> Answer:
    if isinstance(error, TaskFailed):
        failure = error.failure  # type: ignore[attr-defined]
        return Answer(FAILED, None if failure is None else failure.message)
    if isinstance(error, NoResult):
        return Answer(NONE, error.reason)  # type: ignore[attr-defined]
    return Answer(PENDING, error.state)  # type: ignore[attr-defined]


def waits_of(trace: Trace, kind: str) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "wait") if op.done and op.result.kind == kind)


def one_answer(trace: Trace, db: Database) -> Iterator[str]:
    """Check that each wait returned the value that an ack committed, and not before that ack began."""
    committed = {
        row.key[len(COMMITTED) :].decode(): row.value.decode() for row in db.get_range_startswith(COMMITTED)
    }
    acks = {op.argument[1]: op for op in trace.of(NAME, "ack")}
    for wait in waits_of(trace, VALUE):
        value = wait.result.told
        if committed.get(wait.argument) != value:
            yield f"{wait.client} was told {value!r}, and {committed.get(wait.argument)!r} was committed"
        if value in acks and wait.before(acks[value]):
            yield f"{wait.client} was told {value!r} before its ack"


def acked_by_holders(trace: Trace, db: Database) -> Iterator[str]:
    """Check that the committed result of a task is that of its last attempt."""
    last: dict[str, int] = {}
    for op in trace.of(NAME, "take"):
        if op.done and op.result:
            last[op.result.id] = max(last.get(op.result.id, 0), op.result.attempts)
    for row in db.get_range_startswith(COMMITTED):
        id_, attempt = row.key[len(COMMITTED) :].decode(), int(row.value.decode().partition(" ")[0])
        if attempt < last.get(id_, 0):
            yield f"the attempt {attempt} of {id_} stored a result, and the last one is {last[id_]}"


def ends_are_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a failure, a deletion and a state were told only where there was one."""
    buried = {op.argument[1]: op for op in trace.of(NAME, "bury")}
    for wait in waits_of(trace, FAILED):
        burial = buried.get(wait.result.told)
        if burial is None or burial.argument[0] != wait.argument or wait.before(burial):
            yield f"{wait.client} was told the failure {wait.result.told!r} of {wait.argument}"
    ended = {op.argument for name in ("delete", "cancel") for op in trace.of(NAME, name)}
    for wait in waits_of(trace, NONE):
        if ("deleted" in wait.result.told or "cancelled" in wait.result.told) and wait.argument not in ended:
            yield f"{wait.client} was told of {wait.argument}: {wait.result.told}"
    for wait in waits_of(trace, PENDING):
        if wait.result.told == "buried":
            yield f"{wait.client} waited for the buried task {wait.argument}"


def results_are_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check, where results are kept for long, that each wait that began after an ack was told its value."""
    acks = [op for op in trace.of(NAME, "ack") if op.done]
    if not any(op.argument == KEPT_S for op in trace.of(NAME, "left")):
        return
    for ack in acks:
        for wait in trace.of(NAME, "wait"):
            if (
                wait.done
                and wait.argument == ack.argument[0]
                and ack.before(wait)
                and wait.result.kind != VALUE
            ):
                yield f"{wait.client} was told {wait.result} after the ack of {wait.argument}"


def swept_when_over(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no key of a result that is over is left."""
    for op in trace.of(NAME, "left"):
        if op.argument == SHORT_S and op.result:
            yield f"{op.result} keys of results are left"


def told_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a wait ended soon after the ack, or the burial, of its task."""
    ends = [op for name in ("ack", "bury") for op in trace.of(NAME, name) if op.done]
    for wait in (op for op in trace.of(NAME, "wait") if op.done and op.result.kind != PENDING):
        told = [op for op in ends if op.argument == (wait.argument, wait.result.told)]
        for op in told:
            assert op.ended_s is not None
            assert wait.ended_s is not None
            if wait.ended_s > max(op.ended_s, wait.began_s) + PROMPT_S:
                yield f"{wait.client} was told {wait.result} late, of {op.name} {op.argument}"


def left(q: TaskQueue, tr: Transaction) -> int:
    """Return the number of keys of results."""
    keys = SharedKeys(q.contents)
    return len(tr.snapshot.get_range(keys.results.start, keys.result_times.stop).to_list())
