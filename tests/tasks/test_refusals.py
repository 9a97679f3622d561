"""A call that is refused in a caller's transaction leaves no part of a change in it.

The transaction may go on, and commit. The task may be due, or its lease or life may be over, before a sweep.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import (
    DeadLetters,
    FdbQueueError,
    Group,
    Limit,
    QueueDropped,
    QueueFull,
    Session,
    Task,
    TaskQueue,
    transactional,
    verify,
)
from fdbqueue.core.seam import Transaction
from tests.tasks.support import LONG_S, StillClock

QUEUES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "timed": ("fifottl", {}, {}),
    "full": ("limfifottl", {"capacity": 1}, {}),
    "keyed": ("utubettl", {}, {"key": "k"}),
    "unique": ("fifottl", {}, {"unique": "u"}),
    "partitions": ("fifottl", {"partitions": 2}, {}),
    "limits": ("fifottl", {"limits": ["slots"]}, {}),
}
"""A kind, options of the queue, and options of its task."""

Call = Callable[[Transaction], object]
Case = tuple["Bench", str, Call, Mapping[bytes, bytes]]
"""A bench, a call with its name, and all rows before it."""


@dataclass
class Bench:
    """A queue with one task, and two sessions."""

    db: fdbqueue.Database
    clock: StillClock
    queue: TaskQueue
    put_options: dict[str, Any]

    def __post_init__(self) -> None:
        self.session, self.other = Session(self.db, ttr=LONG_S), Session(self.db, ttr=LONG_S)
        self.letters = DeadLetters.open(self.db, self.queue.name)
        self.task: Task

    def close(self) -> None:
        self.db.close()

    def put(self, **options: Any) -> None:
        self.task = self.queue.put(self.db, 1, **self.put_options, **options)

    def take(self, session: Session, **options: Any) -> None:
        self.put(**options)
        taken = self.queue.take(self.db, 0, session=session)
        assert taken is not None
        self.task = taken

    def calls(self) -> Iterator[tuple[str, Call]]:
        """Calls on the task: by its lease, by its id, and puts beside it."""
        q, task, id_ = self.queue, self.task, self.task.id
        mine: dict[str, Any] = {"session": self.session}
        group = Group.create(self.db)
        yield "ack", lambda tr: q.ack(tr, task)
        yield "ack by id", lambda tr: q.ack(tr, id_, **mine)
        yield "bury", lambda tr: q.bury(tr, task)
        yield "bury by id", lambda tr: q.bury(tr, id_)
        yield "cancel", lambda tr: q.cancel(tr, id_)
        yield "defer", lambda tr: q.defer(tr, task, 5, **mine)
        yield "delete", lambda tr: q.delete(tr, task)
        yield "delete by id", lambda tr: q.delete(tr, id_)
        yield "excuse", lambda tr: q.excuse(tr, task)
        yield "exhaust", lambda tr: q.exhaust(tr, task, 1)
        yield "give_back", lambda tr: q.give_back(tr, task)
        yield "progress", lambda tr: q.progress(tr, task, 0.5, **mine)
        yield "release", lambda tr: q.release(tr, task, **mine)
        yield "release by id", lambda tr: q.release(tr, id_, **mine)
        yield "renew", lambda tr: q.renew(tr, [task])
        yield "result", lambda tr: q.result(tr, id_)
        yield "step", lambda tr: q.step(tr, task, "a", lambda _: 1, **mine)
        yield "touch", lambda tr: q.touch(tr, task, 5, **mine)
        yield "edit", lambda tr: self.letters.edit(tr, id_, 2)
        yield "kick one", lambda tr: self.letters.kick(tr, id_)
        yield "kick", lambda tr: q.kick(tr, 2)
        yield "kick matching", lambda tr: self.letters.kick_matching(tr)
        yield "release all", lambda tr: q.release_all(tr)
        yield "take", lambda tr: q.take(tr, **mine)
        yield "truncate", lambda tr: q.truncate(tr)
        yield "truncate some", lambda tr: q.truncate_some(tr, 2)
        yield "pause", lambda tr: q.pause(tr)
        yield "resume", lambda tr: q.resume(tr)
        yield "paused", lambda tr: q.paused(tr)
        yield "peek", lambda tr: q.peek(tr, id_)
        yield "statistics", lambda tr: q.statistics(tr)
        yield "tasks", lambda tr: q.tasks(tr, "r", 1)
        yield "put", lambda tr: q.put(tr, 3)
        yield "put after", lambda tr: q.put(tr, 3, after=id_)
        yield "put many", lambda tr: q.put_many(tr, [3, 4])
        yield "put into a group", lambda tr: q.put(tr, 3, group=group)
        debounce: dict[str, Any] = {"delay": 5, "debounce_max": 60}
        for how, given in (("skip", {}), ("replace", {}), ("debounce", debounce)):
            yield f"put unique, {how}", partial(q.put, data=3, unique="u", on_conflict=how, **given)


def buried(bench: Bench) -> None:
    bench.take(bench.session)
    bench.queue.bury(bench.db, bench.task.id)


def cancelled(bench: Bench) -> None:
    bench.take(bench.session)
    bench.queue.cancel(bench.db, bench.task.id)


def gone(bench: Bench) -> None:
    bench.take(bench.session)
    bench.queue.ack(bench.db, bench.task)


STATES: Mapping[str, tuple[Callable[[Bench], None], float]] = {
    "ready": (lambda bench: bench.put(), 0),
    "delayed": (lambda bench: bench.put(delay=50), 0),
    "due": (lambda bench: bench.put(delay=5), 6),
    "expired": (lambda bench: bench.put(ttl=5), 6),
    "taken": (lambda bench: bench.take(bench.session), 0),
    "taken by another": (lambda bench: bench.take(bench.other), 0),
    "lease over": (lambda bench: bench.take(bench.session, ttr=5), 6),
    "lease and life over": (lambda bench: bench.take(bench.session, ttr=5, ttl=5), 12),
    "buried": (buried, 0),
    "cancelled": (cancelled, 0),
    "gone": (gone, 0),
}
"""How the task comes into a state, and the seconds that pass behind it."""


def bench_in(state: str, kind: str) -> Bench:
    clock = StillClock()
    db = fdbqueue.open("memory:", runtime=clock)
    Limit.set(db, "slots", slots=5)
    name, options, put_options = QUEUES[kind]
    bench = Bench(db, clock, TaskQueue.create(db, "bench", name, **options), put_options)
    prepare, seconds = STATES[state]
    prepare(bench)
    clock.advance(seconds)
    return bench


def image(bench: Bench) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in bench.db.get_range(b"", b"\xff")}


def refused(bench: Bench, call: Call) -> list[FdbQueueError]:
    """Make the call in a transaction that goes on behind a refusal, and commits."""
    errors: list[FdbQueueError] = []

    @transactional
    def go_on(tr: Transaction) -> None:
        errors.clear()
        try:
            call(tr)
        except FdbQueueError as error:
            errors.append(error)

    go_on(bench.db)
    return errors


def benches(kind: str, state: str, prepare: Callable[[Bench], None] = lambda _: None) -> Iterator[Case]:
    """A case for each call, from the same rows: what a call has changed is put back."""
    with closing(bench_in(state, kind)) as bench:
        calls = [*bench.calls()]
        assert verify(bench.db, "bench").findings == ()
        prepare(bench)
        before = image(bench)
        for name, call in calls:
            yield bench, name, call, before
            if image(bench) != before:
                put_back(bench.db, before)


@transactional
def put_back(tr: Transaction, rows: Mapping[bytes, bytes]) -> None:
    tr.clear_range(b"", b"\xff")
    for key, value in rows.items():
        tr[key] = value


def is_sound(bench: Bench, before: Mapping[bytes, bytes]) -> bool:
    """The rows `before` have been verified."""
    return image(bench) == before or verify(bench.db, "bench").findings == ()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", QUEUES)
def test_a_refused_call_leaves_no_part_of_a_change(kind: str, state: str) -> None:
    """A full queue has been swept for room: a whole change, and sound."""
    for bench, name, call, before in benches(kind, state):
        errors = refused(bench, call)
        if errors and not isinstance(errors[0], QueueFull):
            assert image(bench) == before, name
        assert is_sound(bench, before), name


@pytest.mark.parametrize("state", ["ready", "delayed", "taken", "buried"])
@pytest.mark.parametrize("kind", ["timed", "keyed", "partitions"])
def test_a_call_behind_a_repartition_leaves_no_part(kind: str, state: str) -> None:
    """A queue that was repartitioned in the same transaction refuses most calls."""
    for bench, name, call, rows in benches(kind, state):
        before = bench.queue.statistics(bench.db)

        def repartition_first(tr: Transaction, bench: Bench = bench, call: Call = call) -> None:
            bench.queue.repartition(tr, 3)
            call(tr)

        if refused(bench, repartition_first):
            assert bench.queue.statistics(bench.db) == before, name
        assert is_sound(bench, rows), name


def drop(bench: Bench) -> None:
    bench.queue.drop(bench.db)


def drop_and_create_again(bench: Bench) -> None:
    bench.queue.drop(bench.db)
    TaskQueue.create(bench.db, "bench", "fifottl")


@pytest.mark.parametrize("state", ["ready", "delayed", "due", "expired", "buried", "gone"])
@pytest.mark.parametrize(
    ("kind", "prepare"), [*((kind, drop) for kind in QUEUES), ("timed", drop_and_create_again)]
)
def test_a_call_on_a_dropped_queue_writes_nothing(
    kind: str, prepare: Callable[[Bench], None], state: str
) -> None:
    for bench, name, call, before in benches(kind, state, prepare):
        errors = refused(bench, call)
        assert [type(error) for error in errors] == [QueueDropped], name
        assert image(bench) == before, name


@pytest.mark.parametrize("kind", QUEUES)
def test_a_call_behind_a_drop_leaves_no_part(kind: str) -> None:
    """The queue was dropped in the same transaction."""
    for bench, name, call, before in benches(kind, "ready"):

        def drop_first(tr: Transaction, bench: Bench = bench, call: Call = call) -> None:
            bench.queue.drop(tr)
            call(tr)

        assert refused(bench, drop_first), name
        assert image(bench).items() <= before.items(), name
