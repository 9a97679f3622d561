"""Checkers: functions of a run's trace and its final database that name what is wrong, a sentence each.

Those of queues look at operations that a workload records with `Client.call(subject, name, argument, ...)`:
`enqueue` with a list of values, `dequeue` with how many are wanted and a list of values as its result,
`clear`, `audit` with (counted, found) as its result. Every value is enqueued once, so that it has one fate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fdbqueue.database import Database
from fdbqueue.testing.simulation import Checker
from fdbqueue.testing.trace import Operation, Trace


class Fates:
    """What became of every value of some queues, as their clients saw it."""

    def __init__(self, trace: Trace, subjects: Sequence[str]) -> None:
        self.enqueues = [op for s in subjects for op in trace.of(s, "enqueue")]
        self.dequeues = [op for s in subjects for op in trace.of(s, "dequeue")]
        self.clears = [op for s in subjects for op in trace.of(s, "clear")]
        self.enqueued = {value: op for op in self.enqueues for value in op.argument}
        self.takers: dict[Any, list[Operation]] = {}
        for op in self.dequeues:
            for value in op.result or ():
                self.takers.setdefault(value, []).append(op)

    def may_have_cleared(self, value: Any) -> bool:
        """Whether a clear came after the value's enqueue began."""
        enqueue = self.enqueued[value]
        return any(not clear.before(enqueue) for clear in self.clears)

    @property
    def in_limbo(self) -> int:
        """How many values may have gone to clients that died while they dequeued."""
        return sum(op.argument for op in self.dequeues if op.unknown)


def total_queue(*subjects: str, present: Callable[[Database], Iterable[Any]] = lambda _: ()) -> Checker:
    """Everything enqueued was dequeued, or is `present`, or was cleared; nothing twice, nothing else.

    Several subjects are one queue: values may move between them. A call whose client died counts as maybe.
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
            yield f"lost: {lost} of {subjects}, of which at most {fates.in_limbo} to clients that died"

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
    """First in, first out: no value is overtaken by more than `overtaken_max` that were enqueued after it.

    By the clock of calls: b overtook a if a's enqueue had ended when b's began, and b's dequeue had ended
    when a's began. Not for runs in which clients die or stall: what they held comes back later. Of one
    `consumer`, only what it dequeued is compared.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        taken = [
            (value, fates.enqueued[value], ops[0])
            for value, ops in fates.takers.items()
            if value in fates.enqueued and consumer in (None, ops[0].client)
        ]
        for value, enqueue, dequeue in taken:
            by = [other for other, e, d in taken if enqueue.before(e) and d.before(dequeue)]
            if len(by) > overtaken_max:
                yield f"out of order: {value!r} was overtaken by {by}"
        for op in fates.dequeues:
            yield from _order_within(op, fates)

    return check


def _order_within(dequeue: Operation, fates: Fates) -> Iterator[str]:
    """Of values that one call enqueued and one call dequeued, the order is the caller's."""
    for enqueue in fates.enqueues:
        together = [value for value in dequeue.result or () if value in enqueue.argument]
        if together != [value for value in enqueue.argument if value in together]:
            yield f"out of order: {together} in one dequeue"


def prompt(subject: str, within_s: float) -> Checker:
    """Who waits gets a value within `within_s` of its being there. Not for slow replies or late watches."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        for value, (dequeue, *_rest) in fates.takers.items():
            enqueue = fates.enqueued.get(value)
            if enqueue is None or enqueue.ended_s is None or dequeue.ended_s is None:
                continue
            late_s = dequeue.ended_s - max(enqueue.ended_s, dequeue.began_s)
            if late_s > within_s:
                yield f"late: {value!r} reached {dequeue.client}, who was waiting, after {late_s:.1f} s"

    return check


def never_nothing(subject: str) -> Checker:
    """A dequeue answers "nothing" only if there was nothing: no value lay there all the time it took.

    Not for runs in which clients die or stall: what they hold is neither there nor gone.
    """

    def check(trace: Trace, _: Database) -> Iterator[str]:
        fates = Fates(trace, (subject,))
        for empty in (op for op in fates.dequeues if op.done and not op.result):
            for value, enqueue in fates.enqueued.items():
                takers = fates.takers.get(value, [])
                if enqueue.before(empty) and takers and all(empty.before(op) for op in takers):
                    yield f"told {empty.client} that there is nothing while {value!r} lay there"

    return check


def exact_statistics(subject: str) -> Checker:
    """Every `audit` found what the counter said, at the end and on the way."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        audits = [op for op in trace.of(subject, "audit") if op.done]
        for counted, found in (op.result for op in audits):
            if counted != found:
                yield f"the counter of {subject} says {counted}, found are {found}"

    return check


def bounded_transactions(keys_read_max: int, keys_written_max: int, size_bytes_max: int) -> Checker:
    """No transaction read or wrote more keys, or was larger, than it may (I9); audits look at everything."""

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
    """Whoever has finished has no watch open: a connection has ten thousand and no more."""
    for _at, who, what, particulars in trace.events:
        if what == "finished" and particulars[0]:
            yield f"{who} has finished and left {particulars[0]} watches open"


def no_key_left_behind(prefix: bytes, allowed: Callable[[bytes, bytes], bool]) -> Checker:
    """At the end every key below `prefix` is `allowed(key, value)`."""

    def check(_: Trace, database: Database) -> Iterator[str]:
        for entry in database.get_range_startswith(prefix):
            if not allowed(entry.key, entry.value):
                yield f"left behind: {entry.key!r} = {entry.value!r}"

    return check
