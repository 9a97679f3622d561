"""A worker tells how long the tasks of a queue with a chronicle waited and ran, once a minute."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import fdbqueue
from fdbqueue import Database, Overview, TaskQueue, Worker
from fdbqueue.core import limits
from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import run
from fdbqueue.core.errors import DatabaseClosed, DefinitionUnreadable, FdbQueueError
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.fleet import timing
from fdbqueue.fleet.held import Hold
from fdbqueue.tasks.times import BUCKETS, Times, bucket_of
from tests.support import wait_until


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def worked(db: Database, queue: TaskQueue, tasks: int, **options: Any) -> None:
    for number in range(tasks):
        queue.put(db, number, **options)
    Worker(db, queue.name, lambda _: None).run(until_empty=True)


def times_of(overview: Overview, db: Database) -> tuple[Times | None, dict[Any, Times | None]]:
    [queue] = overview.figures(db).queues
    assert queue.tasks is not None
    return queue.tasks.times, {one.key: one.times for one in queue.tasks.busiest}


def counts(times: Times | None) -> tuple[int, int]:
    assert times is not None
    return tuple(0 if one is None else one.count for one in (times.waiting, times.running))  # type: ignore[return-value]


def test_the_end_of_a_worker_adds_its_counts(db: Database) -> None:
    queue, overview = TaskQueue.create(db, "q", "fair", chronicle=True), Overview()
    worked(db, queue, 5, key="a")
    worked(db, queue, 3, key="b")
    queue.put_many(db, range(2), key="a")
    assert counts(times_of(overview, db)[0]) == (8, 8)
    assert counts(times_of(overview, db)[1]["a"]) == (5, 5)


def test_the_wait_of_a_later_attempt_is_unknown(db: Database) -> None:
    queue, failed = TaskQueue.create(db, "q", chronicle=True), list[int]()

    def fail_once(_: Any) -> None:
        if not failed:
            failed.append(1)
            raise ValueError

    queue.put(db, 1)
    Worker(db, "q", fail_once, backoff=fdbqueue.Backoff(0, cap_s=0)).run(until_empty=True)
    assert counts(times_of(Overview(), db)[0]) == (1, 2)


def test_a_worker_without_a_chronicle_has_no_timing(db: Database) -> None:
    queue = TaskQueue.create(db, "q")
    worker = Worker(db, "q", lambda _: None)
    worked(db, queue, 1)
    assert worker._timing is None
    assert times_of(Overview(), db)[0] is None


def test_the_keeper_adds_once_a_minute(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """And forgets what it has added; a queue that was dropped stops nothing."""
    monkeypatch.setattr(limits, "TIMES_ADDED_EVERY_S", 0.0)
    queue = TaskQueue.create(db, "q", chronicle=True)
    found = timing.Timing(db, queue._shape.root, [queue])
    asked = list[Any]()
    found._counted = {"q": {b"": [1] * 2 * BUCKETS}}

    class Round:
        ask = asked.append

    found.do(Round())  # type: ignore[arg-type]
    found.do(Round())  # type: ignore[arg-type]
    assert len(asked) == 1
    found._counted = {"q": {b"": [1] * 2 * BUCKETS}}
    queue.drop(db)
    found.end()


@pytest.mark.parametrize(
    ("error", "asked", "left"),
    [(DefinitionUnreadable(name="p", reason="damaged"), ["p", "q"], []), (DatabaseClosed(), ["p"], ["q"])],
)
def test_a_queue_that_fails_costs_no_other_its_counts(
    db: Database, error: FdbQueueError, asked: list[str], left: list[str]
) -> None:
    """They wait for the next time while the database is away."""
    queues = [TaskQueue.create(db, name, chronicle=True) for name in "pq"]
    found = timing.Timing(db, queues[0]._shape.root, queues)
    found._counted = {name: {b"": [1] * 2 * BUCKETS} for name in "pq"}
    names = list[str]()

    def fail_first(adding: Any) -> None:
        names.append(adding._queue.name)
        if len(names) == 1:
            raise error

    with pytest.raises(type(error)):
        found._add(fail_first)
    assert (names, list(found._counted)) == (asked, left)


def test_an_unknown_result_adds_nothing_twice(db: Database) -> None:
    queue = TaskQueue.create(db, "q", chronicle=True)
    adding = timing.Adding(queue, {b"": [1] * 2 * BUCKETS}, db.runtime.now_us)
    for _ in range(3):  # the first one has committed, and its retry does not know
        run(db, adding)
    assert counts(times_of(Overview(), db)[0]) == (BUCKETS, BUCKETS)


def test_the_keys_of_a_queue_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEYS_TIMED", 2)
    counted = {bytes([key]): [key] * 2 * BUCKETS for key in range(1, 6)}
    assert set(timing.heaviest({b"": [15] * 2 * BUCKETS, **counted})) == {b"", b"\x04", b"\x05"}


def test_a_worker_is_a_chore_while_it_works(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMES_ADDED_EVERY_S", 0.0)
    queue, ends = TaskQueue.create(db, "q", chronicle=True), threading.Event()
    keeper = keeper_of(db, queue._shape.root)
    worker = Worker(db, "q", lambda task: ends.wait() if task.data else None, threads=1)
    queue.put_many(db, [0, 1])
    worker.start()
    try:
        wait_until(lambda: worker.status().tally.done == 1)
        wait_until(lambda: keeper.tick() or counts(times_of(Overview(), db)[0])[1] == 1)
        assert worker._timing in keeper._added
    finally:
        ends.set()
        worker.stop()
        worker.join()
    assert keeper._added == []


def held(key: Any, waited_s: float) -> Hold:
    """Of a first attempt, which has begun."""
    task = SimpleNamespace(queue="q", key=key, created=10.0, taken=10.0 + waited_s, attempts=1)
    return cast(Hold, SimpleNamespace(task=task, began_at=0.0))


def test_waits_and_runs_are_counted_apart_and_by_key(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of more than limits.KEYS_COUNTED, with the whole queue, counts for the queue only."""
    monkeypatch.setattr(limits, "KEYS_COUNTED", 2)
    queue = TaskQueue.create(db, "q", "fair", chronicle=True)
    found = timing.Timing(db, queue._shape.root, [queue])
    for key in "aba":
        found.note(held(key, 4.0), 0.5)
    places = (bucket_of(4.0), BUCKETS + bucket_of(0.5))
    told = {key: [numbers[place] for place in places] for key, numbers in found._counted["q"].items()}
    assert told == {b"": [3, 3], key_bytes("a"): [2, 2]}


def test_counts_end_with_the_option(db: Database) -> None:
    queue = TaskQueue.create(db, "q", chronicle=True)
    adding = timing.Adding(queue, {b"": [1] * 2 * BUCKETS}, db.runtime.now_us)
    TaskQueue.open(db, "q").alter(db, chronicle=None)
    run(db, adding)
    assert not list(db.get_range(queue._shape.shared.times.start, queue._shape.shared.times.stop))
