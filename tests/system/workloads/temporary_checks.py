"""The checkers of the workload `temporary`."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueDropped, QueueExists, UnknownSession
from fdbqueue.core.limits import CLOCK_SKEW_S, CLOSE_TIMEOUT_S
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.faults import DELAYING, Faults
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace

NAME = "temporary"
NAMES = ("one", "two")
SESSION_TTR_S = 3.0


class Made(NamedTuple):
    """A queue, as its owner has made it."""

    name: str
    contents: bytes
    puts: int
    """Counted in it."""


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (an_old_queue_is_over, a_new_queue_is_empty, none_is_left, refused_for_a_live_owner)
    # A clock that is ahead by more than the ttr takes live sessions for dead ones.
    if not DELAYING & set(faults.active):
        yield from (a_live_owner_keeps_its_queue, each_task_is_finished)


def makes(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "make") if op.done)


class Finish(NamedTuple):
    """The number and the time of the event with which a client finished."""

    at: int
    at_s: float
    in_time: bool
    """True if the client has ended its session for certain: closing gives up after a time."""


def finishes(trace: Trace) -> dict[str, Finish]:
    """The finishes of clients, by client."""
    last_s = {op.client: op.ended_s for op in trace.operations if op.ended_s is not None}
    return {
        who: Finish(at, at_s, at_s - last_s.get(who, at_s) < CLOSE_TIMEOUT_S)
        for at, (at_s, who, what, _) in enumerate(trace.events)
        if what == "finished"
    }


def is_other(one: Operation, other: Operation) -> bool:
    """True if two owners have made two queues of one name."""
    made: Made = one.result
    later: Made = other.result
    return made.name == later.name and made.contents != later.contents


def an_old_queue_is_over(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no call succeeds in a queue that another one of its name has replaced, and no put in a queue
    whose owner has ended. (Another process may be about to remove its tasks.)
    """
    finished = {who: finish.at for who, finish in finishes(trace).items() if finish.in_time}
    made, ended, replaced = list(makes(trace)), dict[bytes, int](), dict[bytes, int]()
    for op in made:
        later = [other.ended or 0 for other in made if op.before(other) and is_other(op, other)]
        replaced[op.result.contents] = min(later, default=len(trace.events))
        ended[op.result.contents] = finished.get(op.client, len(trace.events))
    for op in trace.of(NAME, "put", "finish"):
        contents, value = op.argument
        over = replaced.get(contents, op.began)
        if op.name == "put":
            over = min(over, ended.get(contents, op.began))
        if op.done and over < op.began:
            yield f"{op.client} has called {op.name} for {value!r} in a queue that was over"


def a_new_queue_is_empty(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a queue counts no puts of the queue before it."""
    for op in makes(trace):
        earlier = [put for put in trace.of(NAME, "put") if put.argument[0] == op.result.contents]
        may_count = sum(put.began < (op.ended or 0) for put in earlier)
        if op.result.puts > may_count:
            yield f"{op.client} has made {op.result.name}, and it counts {op.result.puts} puts"


def none_is_left(trace: Trace, database: Database) -> Iterator[str]:
    """Check that the tasks of an owner go with its session, and that a replaced queue leaves no key."""
    for look in trace.of(NAME, "left"):
        if look.result:
            yield f"{look.result} tasks are left of the last owner of {look.argument}, which has ended"
    last = {op.result.name: op.result.contents for op in makes(trace)}
    for op in makes(trace):
        under = TaskKeys(Subspace((), op.result.contents)).contents
        if op.result.contents != last[op.result.name]:
            for row in database.get_range(under.start, under.stop):
                yield f"left of {op.result.name} of {op.client}: {row.key!r}"


def refused_for_a_live_owner(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a queue is refused only while an owner of that name may live."""
    late_s = SESSION_TTR_S + CLOCK_SKEW_S
    ended_s = {
        who: finish.at_s + (0 if finish.in_time else late_s) for who, finish in finishes(trace).items()
    }
    died_s = {who: at_s for at_s, who, what, told in trace.events if (what, told) == ("fault", ("die",))}
    for op in trace.of(NAME, "make"):
        if isinstance(op.error, QueueExists):
            owners = [other for other in trace.of(NAME, "make") if other.argument == op.argument]
            live = [
                other
                for other in owners
                if not isinstance(other.error, QueueExists)
                and other.began < (op.ended or 0)
                and ended_s.get(other.client, op.began_s) >= op.began_s
                and died_s.get(other.client, op.began_s) + late_s >= op.began_s
            ]
            if not live:
                yield f"{op.client} was refused {op.argument}, and no owner lives"


def a_live_owner_keeps_its_queue(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no owner in time learns that its queue or session has ended. For runs without delays."""
    for made in makes(trace):
        for op in trace.of(NAME, "put", "finish", "empty"):
            if op.client == made.client and isinstance(op.error, QueueDropped | UnknownSession):
                yield f"{op.client} is alive, and has lost its queue: {op.error}"


def each_task_is_finished(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task that was put before its owner emptied the queue is finished once."""
    finished = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    for value, count in finished.items():
        if count > 1:
            yield f"finished {count} times: {value}"
    for emptied in (op for op in trace.of(NAME, "empty") if op.result == 0):
        for put in trace.of(NAME, "put"):
            is_of_it = put.argument[0] == emptied.argument and put.before(emptied)
            if put.done and is_of_it and not finished[put.argument]:
                yield f"lost: {put.argument[1]!r}"
