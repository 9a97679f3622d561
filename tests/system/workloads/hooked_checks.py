"""The checkers of the workload `hooked`."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from fdbqueue.core.database import Database
from fdbqueue.testing.faults import Faults
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace

NAME, SECOND = "hooked", "second"
MARKS = b"marks/"
DONE, DEFERRED, FAILED, BURIED, NEVER, END = b"done", b"deferred", b"failed", b"buried", b"never", b"end"
OUTCOMES = {DONE: "succeeded", DEFERRED: "snoozed", FAILED: "retried", BURIED: "buried"}
"""The event of an attempt that ended with this mark."""
TALLIED = {
    "succeeded": "done",
    "retried": "failed",
    "snoozed": "snoozed",
    "buried": "buried",
    "cancelled": "cancelled",
    "lease_lost": "lost",
}


class Told(NamedTuple):
    """An event, as a hook is told of it: of its task the data, the attempt and the failures before it; the
    text of its error, and its delay.
    """

    data: str
    attempt: int
    error: str | None
    failures: int
    delay_s: float


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (each_moves_once, failed_handlers_write_nothing, told_after_the_commit, told_once, tallied)
    yield from (snoozed_without_a_failure, *(() if "clock_skew_s" in faults.active else (snoozed_in_time,)))
    if "die" not in faults.active:
        yield each_end_is_told


def marks(database: Database, what: bytes) -> dict[tuple[str, int], int]:
    """The number of marks by task and attempt."""
    found = {}
    for row in database.get_range_startswith(MARKS + what + b"/"):
        _, data, attempt = row.key[len(MARKS) :].decode().split("/")
        found[data, int(attempt)] = row.value[0]
    return found


def each_moves_once(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each task has left the first queue and the second one with one effect each."""
    for what in (DONE, END):
        ended: Counter[str] = Counter()
        for (data, _), count in marks(database, what).items():
            ended[data] += count
        puts = {op.argument: op for op in trace.of(NAME, "put")}
        for data, count in ended.items():
            if count != 1 or data not in puts:
                yield f"{count} effects {what.decode()} of {data!r}"
        for data, op in puts.items():
            if op.done and not ended[data]:
                yield f"lost before its effect {what.decode()}: {data!r}"


def failed_handlers_write_nothing(_: Trace, database: Database) -> Iterator[str]:
    for data, attempt in marks(database, NEVER):
        yield f"attempt {attempt} of {data!r} failed, and its writes are there"


def events(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME) if isinstance(op.argument, Told))


def told_after_the_commit(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an outcome without an error was committed when it was told, and is that of the handler."""
    for op in events(trace):
        if not op.done or op.name in ("started", "lease_lost"):
            continue
        wanted = [] if op.argument.error is not None else [op.name]
        may_be_exhausted = op.name == "buried" and not op.result
        if [OUTCOMES[what] for what in op.result] != wanted and not may_be_exhausted:
            yield f"{op.name} was told of {op.argument}, and the handler has committed {op.result}"


def after_a_snooze(trace: Trace) -> Iterator[tuple[Operation, Operation, Operation]]:
    """Attempts that a handler has put off: the begin of each, its end, and the begin of the next one."""
    known = {(op.argument.data, op.argument.attempt, op.name): op for op in events(trace)}
    for (data, attempt, name), op in known.items():
        began, later = known.get((data, attempt, "started")), known.get((data, attempt + 1, "started"))
        if name == "snoozed" and op.argument.error is not None and began is not None and later is not None:
            yield began, op, later


def snoozed_without_a_failure(trace: Trace, _: Database) -> Iterator[str]:
    for began, _op, later in after_a_snooze(trace):
        if later.argument.failures > began.argument.failures:
            yield f"{later.argument} failed more often than {began.argument}, which put the task off"


def snoozed_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task that was put off begins after the delay. For clocks that agree."""
    for began, op, later in after_a_snooze(trace):
        if later.began_s < began.began_s + op.argument.delay_s:
            yield f"{later.argument} began {later.began_s - began.began_s:.3f} s after {op.argument} did"


def told_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each attempt is told to begin once, and to end at most once, after that."""
    began: Counter[tuple[str, int]] = Counter()
    over: Counter[tuple[str, int]] = Counter()
    for op in events(trace):
        at = op.argument.data, op.argument.attempt
        (began if op.name == "started" else over)[at] += 1
        # A task without an attempt left is buried before the handler is called, and a lease may end. If it
        # ends before the burial, that one raises NotTaken, which is told.
        is_exhausted = op.name == "buried" and op.argument.error is None
        never_began = (is_exhausted or op.name == "lease_lost") and not began[at]
        if over[at] > 1 or (began[at] != 1 and not never_began):
            yield f"{op.name} of {at} is event {over[at]}, after {began[at]} begins"


def each_end_is_told(trace: Trace, database: Database) -> Iterator[str]:
    """Check that a hook was told of each outcome that a handler has committed. For runs without deaths."""
    if any(op.argument for op in trace.of(NAME, "tally")):
        return  # a handler that was stopped at once may have committed all the same
    told = {(op.argument.data, op.argument.attempt, op.name) for op in events(trace)}
    mine = {op.argument for op in trace.of(NAME, "put")}
    for what, name in OUTCOMES.items():
        for data, attempt in marks(database, what):
            if (data, attempt, name) not in told and data in mine:
                yield f"no hook was told that attempt {attempt} of {data!r} has {name}"


def tallied(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the tally of a worker has the events that its hooks were told of."""
    for op in trace.of(NAME, "tally"):
        if not op.done:
            continue
        told, tally = op.result
        if any(told[name] != getattr(tally, field) for name, field in TALLIED.items()):
            yield f"{op.client} told its hooks of {dict(told)}, and has {tally}"
