"""The promises of redrives and edits, checked after a simulated run."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks import failures
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.dead.reading import RedriveStep
from fdbqueue.tasks.dead.redrive import step_size
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys, id_in, record_of
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.tasks import all_tasks, counted_and_found

NAME = "redriven"
EFFECTS = b"effect/"
MOVED_EARLIER = b"moved earlier"

Moved = tuple[RedriveStep, tuple[bytes, ...]]


def audited(q: TaskQueue, letters: DeadLetters, tr: Transaction) -> tuple[dict[str, Any], dict[str, Any]]:
    """The counters of states, classes and moved tasks; and the counts of the stored tasks."""
    keys = TaskKeys(q.contents)
    live, states = counted_and_found(q, tr)
    records = [record_of(entry.value) for entry in all_tasks(q, tr)]
    buried = Counter(record.error for record in records if record.state == TaskState.BURIED)
    filed = Counter(
        keys.class_in(bytes(row.key)) for row in tr.snapshot.get_range(keys.classed.start, keys.classed.stop)
    )
    calls, now = q.statistics(tr)["calls"], letters.redrive(tr)
    earlier = int.from_bytes(tr.snapshot.get(MOVED_EARLIER).value or b"", "little")
    counted = {
        **live,
        "classes": failures.counted(tr.snapshot, keys, 99),
        "filed": dict(filed),
        "moved": earlier + (0 if now is None else now.moved),
    }
    found = {
        **states,
        "classes": dict(buried),
        "filed": dict(buried),
        "moved": calls["kick"] + calls["delete"],
    }
    return counted, found


def moved_in(letters: DeadLetters, tr: Transaction) -> Moved:
    """One step in a transaction, and the ids of the tasks that it has moved."""
    buried = TaskKeys(letters.contents).buried
    before = [id_in(bytes(row.key)) for row in tr.snapshot.get_range(buried.start, buried.stop)]
    step = letters.step_redrive(tr)
    after = {id_in(bytes(row.key)) for row in tr.snapshot.get_range(buried.start, buried.stop)}
    return step, tuple(id_ for id_ in before if id_ not in after)


def steps_of(trace: Trace) -> Iterator[tuple[Operation, Moved]]:
    return ((op, op.result) for op in trace.of(NAME, "step") if op.done)


def once_each(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task had its effect once, in whatever queue, and no other value had one."""
    puts = {op.argument: op for op in trace.of(NAME, "put")}
    effects = {
        entry.key[len(EFFECTS) :].decode(): entry.value
        for entry in database.get_range_startswith(EFFECTS)
        if not entry.key.startswith(EFFECTS + b"edited/")
    }
    yield from (
        f"{count!r} effects of {v}" for v, count in effects.items() if count != b"\x01" or v not in puts
    )
    yield from (f"lost: {value}" for value, op in puts.items() if op.done and value not in effects)


def never_twice(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no redrive has moved a task twice."""
    moved = Counter((step.redrive.began, id_) for _, (step, ids) in steps_of(trace) for id_ in ids)
    yield from (
        f"the redrive of {began} moved {id_!r} {n} times" for (began, id_), n in moved.items() if n > 1
    )


def pauses_hold(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no step moves a task between the end of a pause, or of a stop, and the begin of a resume, or
    of another redrive.
    """
    opens = trace.of(NAME, "resume", "begin")
    for pause in (op for op in trace.of(NAME, "pause", "stop") if op.done):
        until = min((op.began for op in opens if not op.before(pause)), default=float("inf"))
        for op, (step, _ids) in steps_of(trace):
            if pause.before(op) and op.ended is not None and op.ended < until and step.moved:
                yield f"{op.client} moved {step.moved} tasks after a {pause.name}"


def edits_hold(trace: Trace, database: Database) -> Iterator[str]:
    """Check that a finished task had the data of its last edit."""
    edits = [op for op in trace.of(NAME, "edit") if op.done or op.unknown]
    for entry in database.get_range_startswith(EFFECTS + b"edited/"):
        value, data = entry.key[len(EFFECTS + b"edited/") :].decode(), bytes(entry.value).decode()
        of_value = [op for op in edits if op.argument[0] == value]
        wrote = [op for op in of_value if op.argument[1] == f"{value}+{data}"]
        later = [op for op in of_value if op.done and all(one.before(op) for one in wrote)]
        if later or (data and not wrote):
            yield f"{value} was finished with {data!r}, after the edits {[op.argument[1] for op in of_value]}"


def paced(trace: Trace, _: Database, skew_s: float) -> Iterator[str]:
    """Check that no redrive was faster than its rate, beyond one step and the difference of the clocks."""
    by_redrive: dict[float, list[tuple[Operation, RedriveStep]]] = {}
    for op, (step, _ids) in steps_of(trace):
        if step.moved:
            by_redrive.setdefault(step.redrive.began, []).append((op, step))
    for steps in by_redrive.values():
        redrive, began_s = steps[0][1].redrive, min(op.began_s for op, _step in steps)
        ordered = sorted(steps, key=lambda one: one[0].ended_s or 0.0)
        for (op, _step), moved in zip(ordered, accumulate(step.moved for _op, step in ordered), strict=True):
            span_s = (op.ended_s or 0.0) - began_s + limits.REDRIVE_STEP_S + skew_s
            if moved > redrive.rate_per_s * span_s + step_size(redrive):
                yield f"{moved} tasks in {span_s:.1f} s, at a rate of {redrive.rate_per_s} a second"
