"""Checkers: functions of a run's trace and its final database that yield one sentence for each violation.

The checkers of queues read operations that a workload records with `Client.call(subject, name, argument,
...)`:

    enqueue     the argument is a list of values; each value is enqueued only once
    dequeue     the argument is the number of values wanted, the result a list of values
    dequeue and return  the same; the call also gave values back. Of 0 values: it did nothing else
    clear
    audit       the result is (counted, found)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace

RETURNING = "dequeue and return"


class Fates:
    """The operations on each value of some queues, as their clients saw them."""

    def __init__(self, trace: Trace, subjects: Sequence[str]) -> None:
        self.enqueues = [op for s in subjects for op in trace.of(s, "enqueue")]
        self.dequeues = [op for s in subjects for op in trace.of(s, "dequeue", RETURNING)]
        self.clears = [op for s in subjects for op in trace.of(s, "clear")]
        self.enqueued = {value: op for op in self.enqueues for value in op.argument}
        self.takers: dict[Any, list[Operation]] = {}
        for op in self.dequeues:
            for value in op.result or ():
                self.takers.setdefault(value, []).append(op)

    def may_have_cleared(self, value: Any) -> bool:
        """True unless each clear had ended before the value's enqueue began."""
        enqueue = self.enqueued[value]
        return any(not clear.before(enqueue) for clear in self.clears)

    @property
    def in_limbo(self) -> int:
        """Return the number of values that clients which died in a dequeue may have taken."""
        return sum(op.argument for op in self.dequeues if op.unknown)


def total_queue(*subjects: str, present: Callable[[Database], Iterable[Any]] = lambda _: ()) -> Checker:
    """Check that each enqueued value was dequeued once, is `present`, or was cleared, and no other value
    appears.

    Several subjects count as one queue: values may move between them. If a client died in a call, the call
    may have happened or not.
    """

    def check(trace: Trace, database: Database) -> Iterator[str]:
        fates = Fates(trace, subjects)
        left = Counter(present(database))
        yield from _duplicates(fates, left)
        yield from _after_clears(fates)
        lost = [
            value
            for value, enqueue in fates.enqueued.items()
            if enqueue.done
            and value not in fates.takers
            and value not in left
            and not fates.may_have_cleared(value)
        ]
        if len(lost) > fates.in_limbo:
            yield f"lost: {lost} of {subjects}; clients that died can have taken at most {fates.in_limbo}"

    return check


def _duplicates(fates: Fates, left: Counter[Any]) -> Iterator[str]:
    for value in [*fates.takers, *(value for value in left if value not in fates.takers)]:
        takers = fates.takers.get(value, [])
        count = left[value] + sum(op.result.count(value) for op in takers)
        if value not in fates.enqueued:
            yield f"never enqueued: {value!r}"
        elif count > 1:
            yield f"delivered {count} times: {value!r}, to {', '.join(op.client for op in takers)}"


def _after_clears(fates: Fates) -> Iterator[str]:
    for clear in (clear for clear in fates.clears if clear.done):
        for value, takers in fates.takers.items():
            enqueue = fates.enqueued.get(value)
            if enqueue is not None and enqueue.before(clear) and clear.before(takers[0]):
                yield f"cleared, and delivered afterwards: {value!r}"


def order(subject: str, overtaken_max: int = 0, consumer: str | None = None) -> Checker:
    """Check first in, first out: at most `overtaken_max` values that were enqueued after a value overtake it.

    Value b overtakes a if a's enqueue had ended when b's began, and b's dequeue had ended when a's began.
    With `consumer`, only the values that this client dequeued are compared. A value that was enqueued while a
    call gave values back may come before them. Not for runs in which clients die or stall: the values that
    they held come back later.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        returning = trace.of(subject, RETURNING)
        taken = [
            (value, fates.enqueued[value], ops[0])
            for value, ops in fates.takers.items()
            if value in fates.enqueued and consumer in (None, ops[0].client)
        ]
        for value, enqueue, dequeue in taken:
            ahead = [(other, e) for other, e, d in taken if enqueue.before(e) and d.before(dequeue)]
            by = [other for other, e in ahead if not _overlaps(e, returning)]
            if len(by) > overtaken_max:
                yield f"out of order: {value!r} was overtaken by {by}"
        for op in fates.dequeues:
            yield from _order_within(op, fates)

    return check


def _overlaps(operation: Operation, others: Iterable[Operation]) -> bool:
    return any(not (operation.before(other) or other.before(operation)) for other in others)


def _order_within(dequeue: Operation, fates: Fates) -> Iterator[str]:
    """Check that values enqueued by one call and dequeued by one call keep their order."""
    for enqueue in fates.enqueues:
        together = [value for value in dequeue.result or () if value in enqueue.argument]
        if together != [value for value in enqueue.argument if value in together]:
            yield f"out of order: {together} in one dequeue"


def prompt(subject: str, within_s: float) -> Checker:
    """Check that a waiting client gets a value within `within_s` after its enqueue.

    Not for runs with slow replies or late watches.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        for value, (dequeue, *_rest) in fates.takers.items():
            enqueue = fates.enqueued.get(value)
            if enqueue is None or enqueue.ended_s is None or dequeue.ended_s is None:
                continue
            late_s = dequeue.ended_s - max(enqueue.ended_s, dequeue.began_s)
            if late_s > within_s:
                yield f"late: {value!r} reached {dequeue.client}, which was waiting, after {late_s:.1f} s"

    return check


def never_nothing(subject: str) -> Checker:
    """Check that a dequeue answers "nothing" only if no value was in the queue during the whole call.

    Not for runs in which clients die or stall: the values that they hold are in no queue.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        for empty in (op for op in fates.dequeues if op.done and op.argument and not op.result):
            for value, enqueue in fates.enqueued.items():
                takers = fates.takers.get(value, [])
                if enqueue.before(empty) and takers and all(empty.before(op) for op in takers):
                    yield f"told {empty.client} that there is nothing while {value!r} lay there"

    return check


def exact_statistics(subject: str) -> Checker:
    """Check that each `audit` found as many values as the counter said."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        audits = [op for op in trace.of(subject, "audit") if op.done]
        for counted, found in (op.result for op in audits):
            if counted != found:
                yield f"the counter of {subject} says {counted}, found are {found}"

    return check


def bounded_transactions(keys_read_max: int, keys_written_max: int, size_bytes_max: int) -> Checker:
    """Check the bounds of each transaction (I9), except for audits, which read the whole queue."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for tr in trace.transactions:
            if tr.operation is not None and tr.operation.name == "audit":
                continue
            if (
                tr.keys_read > keys_read_max
                or tr.keys_written > keys_written_max
                or tr.size_bytes > size_bytes_max
            ):
                yield (
                    f"transaction {tr.number} of {tr.who} read {tr.keys_read} keys and wrote "
                    f"{tr.keys_written}, {tr.size_bytes} bytes"
                )

    return check


def no_watch_left_behind(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no finished client has left a watch open: a connection has ten thousand at most."""
    for _at, who, what, particulars in trace.events:
        if what == "finished" and particulars[0]:
            yield f"{who} has finished and left {particulars[0]} watches open"


def no_key_left_behind(prefix: bytes, allowed: Callable[[bytes, bytes], bool]) -> Checker:
    """Check that at the end `allowed(key, value)` is true for each key below `prefix`."""

    def check(_: Trace, database: Database) -> Iterator[str]:
        for entry in database.get_range_startswith(prefix):
            if not allowed(entry.key, entry.value):
                yield f"left behind: {entry.key!r} = {entry.value!r}"

    return check
