"""The checkers of the workload `partitions`."""

from collections.abc import Iterator, Sequence
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.partitions.current import plan_of
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.effects import effects_in

NAME = "partitions"
SURVIVOR_S = 400.0
PROMPT_S = 0.8
KEYS = ("a", "b", "c")
"""Task keys of many tasks."""
GONE = {"die", "stall", "unknown_done", "unknown_after_conflict"}
"""With these faults a task may be held, and no call that has ended tells it."""
LATE = {"slow_reply", "watch_late", "watch_very_late", "watch_missed", "clock_skew_s", *GONE}
"""With these faults a take may wait beside a ready task."""


def checks(active: set[str], pauses: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (each_has_one_effect, the_repartition_ends, found_by_its_id, no_watch_left_behind)
    if not pauses and not active & GONE:
        yield nothing_is_true
    if not pauses and not active & LATE:
        yield woken_in_time


def is_under_way(q: TaskQueue, db: Any) -> bool:
    """True if a repartition has begun, and no process has finished it."""
    plan = plan_of(Registry(DEFAULT_ROOT).find(db, q.name))
    return plan is not None and plan.before > 0


def each_has_one_effect(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task was acked once, or was removed by its id, and no other value was acked."""
    effects, puts = effects_in(database), _puts(trace)
    removals = trace.of(NAME, "remove")
    removed = {op.result for op in removals if op.done}
    unknown = {op.argument for op in removals if not op.done and op.error is None}
    for value, count in effects.items():
        if count != 1 or value not in puts:
            yield f"{count} effects of {value!r}"
    for value, op in puts.items():
        if (
            op.done
            and not op.argument[3]
            and value not in effects
            and value not in removed
            and not unknown & set(op.result)
        ):
            yield f"lost: {value!r}"


def the_repartition_ends(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no repartition was under way at the end."""
    if any(op.result for op in trace.of(NAME, "is under way")):
        yield "the repartition has not ended"


def found_by_its_id(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a verb by id finds each task without a ttl that no call has begun to end."""
    ends = trace.of(NAME, "finish", "remove")
    put_by = {id_: op for op in trace.of(NAME, "put") if op.done and not op.argument[3] for id_ in op.result}
    for look in trace.of(NAME, "look", "remove"):
        put = put_by.get(look.argument)
        if not isinstance(look.error, TaskNotFound) or put is None or not put.before(look):
            continue
        of_it = (look.argument, *put.argument[0])
        if not any(op.argument in of_it and op is not look and not look.before(op) for op in ends):
            yield f"{look.client} was told that the task of {put.argument[0]} is not there"


def nothing_is_true(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take answers "nothing" only if no task was ready during the whole call."""
    takers = _takers(trace)
    for empty in (op for op in trace.of(NAME, "take") if op.done and op.result is None):
        for value, op in _ready_at_once(trace):
            of_it = takers.get(value, ())
            if of_it and op.before(empty) and all(empty.before(taker) for taker in of_it):
                yield f"told {empty.client} that there is nothing while {value!r} lay there"


def woken_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take which waits gets a task soon after its put, and none waits for longer beside it."""
    takers = _takers(trace)
    for value, op in _ready_at_once(trace):
        ended_s = op.ended_s
        # The first one to end: a take that began before it may have got the task after its first lease.
        taken_s = min((one.ended_s for one in takers.get(value, ()) if one.ended_s is not None), default=None)
        if ended_s is None or taken_s is None:
            continue
        for wait in trace.of(NAME, "take"):
            if wait.ended_s is None or not wait.argument:
                continue
            beside_s = min(wait.ended_s, taken_s) - max(wait.began_s, ended_s)
            if beside_s > PROMPT_S:
                yield f"{wait.client} waited for {beside_s:.1f} s beside the ready {value!r}"


def is_its_own(put: tuple[list[str], str | None, float, float | None]) -> bool:
    """True if the task key of a put belongs to no other put."""
    names, key, *_ = put
    return key is None or key == names[0]


def _puts(trace: Trace) -> dict[str, Operation]:
    return {value: op for op in trace.of(NAME, "put") for value in op.argument[0]}


def _ready_at_once(trace: Trace) -> Sequence[tuple[str, Operation]]:
    """The tasks that were ready from their put on: without a delay and a ttl, and of no key that others may
    hold.

    Not those that a verb was called for by their ids.
    """
    touched = {op.argument for op in trace.of(NAME, "remove", "look")}
    return [
        (value, op)
        for op in trace.of(NAME, "put")
        for value in op.argument[0]
        if op.done and not any(op.argument[2:]) and is_its_own(op.argument) and not touched & set(op.result)
    ]


def _takers(trace: Trace) -> dict[str, list[Operation]]:
    """The takes that have got each task, and the calls that finished it."""
    found: dict[str, list[Operation]] = {}
    for op in trace.of(NAME, "take", "finish"):
        value = op.argument if op.name == "finish" else op.result
        if value is not None:
            found.setdefault(value, []).append(op)
    return found
