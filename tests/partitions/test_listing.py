"""Listings of a queue with partitions show each task once, whatever is due or has expired."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import Database, TaskQueue, transactional
from fdbqueue.core import limits
from tests.partitions.support import PARTITIONS, key_in
from tests.tasks.support import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def db(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as db:
        yield db


def put_all(queue: TaskQueue, db: Database, count: int, **options) -> list[str]:
    """Put them into one partition: they have one task key, or one turn."""
    within = transactional(lambda tr: [queue.put(tr, n, **options).id for n in range(count)])
    return within(db)


def listed(queue: TaskQueue, db: Database, limit: int, after: str | None = None) -> list[str]:
    """The tasks of all pages behind `after`."""
    found = list[str]()
    for _ in range(1000):
        page = transactional(lambda tr, after=after: queue.tasks(tr, "r", limit, after=after))(db)
        found += [task.id for task in page]
        after = page.next
        if after is None:
            return found
    raise AssertionError("the listing has no end")


def test_an_empty_page_in_a_partition_is_not_its_last(db: Database, clock: StillClock) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", partitions=2)
    keys = {queue.put(db, 0, key=key).id[1:4]: key for key in "abcdef"}
    queue.truncate(db)
    for key in keys.values():
        put_all(queue, db, limits.DUE_BATCH + 2, key=key, ttl=1)
        put_all(queue, db, 1, key=key)
    clock.advance(2)
    assert len(listed(queue, db, 1)) == len(keys)


def test_late_tasks_are_listed_once_in_each_partition(db: Database, clock: StillClock) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", partitions=2)
    keys = {queue.put(db, 0, key=key).id[1:4]: key for key in "abcdef"}
    queue.truncate(db)
    put = [put_all(queue, db, 2 * limits.DUE_BATCH, key=key, delay=1) for key in keys.values()]
    clock.advance(2)
    assert sorted(listed(queue, db, 10)) == sorted(id_ for ids in put for id_ in ids)


def test_due_tasks_are_listed_behind_a_page_of_expired_ones(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DUE_BATCH", 2)
    queue = TaskQueue.create(db, "q", "fifottl")
    put_all(queue, db, 3, ttl=1)
    put = put_all(queue, db, 2) + put_all(queue, db, 2, delay=2)
    clock.advance(3)
    assert sorted(listed(queue, db, 1)) == sorted(put)


def test_the_end_of_a_due_task_hides_no_other_from_a_listing(
    db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the timers that stand among the ready tasks goes between two pages."""
    monkeypatch.setattr(limits, "DUE_BATCH", 2)
    queue = TaskQueue.create(db, "q", "fifottl")
    ready, due = put_all(queue, db, 3), put_all(queue, db, 5, delay=1)
    clock.advance(2)
    first = transactional(lambda tr: queue.tasks(tr, "r", 1))(db)
    queue.delete(db, due[0])
    rest = listed(queue, db, 1, first.next)
    assert sorted([task.id for task in first] + rest) == sorted(ready + due[1:])


def test_pages_go_on_in_the_first_partition_that_has_tasks(db: Database) -> None:
    queue = TaskQueue.create(db, "q", "utube", partitions=PARTITIONS)
    put = put_all(queue, db, 3, key=key_in(2)) + put_all(queue, db, 2, key=key_in(3))
    assert listed(queue, db, 1) == put
