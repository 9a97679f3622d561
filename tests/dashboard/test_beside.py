"""The first page tells limits, schedules and groups, what is wrong with them, and each cure."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import Database, Group, Limit, Schedule, TaskQueue
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.rule import LimitKeys
from tests.dashboard.conftest import HOSTILE
from tests.dashboard.support import browsing
from tests.tasks.support import StillClock


@pytest.fixture
def still() -> Iterator[tuple[Database, StillClock]]:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        yield db, clock


def page(db: Database) -> str:
    with browsing(db) as browser:
        assert HOSTILE not in browser.get("/")
        return browser.said("/")


def test_without_any_of_them_there_is_no_table(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    TaskQueue.create(db, "q")
    said = page(db)
    assert not any(word in said for word in ("Limits", "Schedules", "Groups"))


def test_limits_tell_their_use(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    Limit.set(db, "api", slots=2)
    Limit.set(db, "mails", rate=60, per=60, burst=4)
    queue = TaskQueue.create(db, "orders", limits=["api"])
    queue.put_many(db, range(5))
    queue.take_many(db, 2)
    said = page(db)
    assert "api Reached 2 slots 2 in use 3 orders" in said
    assert "mails Fine 60 starts in 1m, burst 4 4 tokens 0" in said
    assert "All is well" in said


def test_a_limit_of_slots_and_a_rate_tells_the_use_of_both(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    Limit.set(db, "host", slots=2, rate=6, per=60, burst=4)
    queue = TaskQueue.create(db, "pages", limits=["host"])
    queue.put_many(db, range(5))
    queue.take(db, 0)
    assert "host Fine 2 slots; 6 starts in 1m, burst 4 1 in use, 3 tokens 0" in page(db)


def test_a_missing_limit_is_a_finding(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    Limit.set(db, HOSTILE, slots=2)
    TaskQueue.create(db, "orders", limits=[HOSTILE])
    Limit.delete(db, HOSTILE)
    said = page(db)
    assert "1 limit needs attention" in said
    assert "does not exist, and tasks of orders run without it." in said


def test_an_unreadable_limit_is_a_finding(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    Limit.set(db, HOSTILE, slots=2)
    TaskQueue.create(db, "orders", limits=[HOSTILE])
    db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, HOSTILE).row] = b"damaged"
    said = page(db)
    assert "1 limit needs attention" in said
    assert "cannot be read, and tasks of orders run without it." in said


def test_schedules_tell_due_times_and_trouble(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    TaskQueue.create(db, "q")
    gone = TaskQueue.create(db, "gone")
    for name in ("late", "held", HOSTILE):
        Schedule.create(db, name, every=30, queue="gone" if name == HOSTILE else "q", paused=name == "held")
    gone.drop(db)
    clock.advance(90)
    said = page(db)
    assert "2 schedules need attention" in said
    assert "The schedule late is late by 1m: no process passes." in said
    assert "has the queue gone, which does not exist." in said
    assert "held Paused q" in said
    db[RootKeys(DEFAULT_ROOT).schedule("held")] = b"damaged"
    clock.advance(5)
    assert "The schedule held is not fired:" in page(db)


def test_a_group_that_burials_hold_is_a_finding(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    queue, group, other = TaskQueue.create(db, "q"), Group.create(db), Group.create(db)
    said = page(db)
    assert "Groups 2 have not ended No buried member holds one of them." in said
    for one in (group, other):
        one.put_many(db, queue, list("ab"))
        for task in queue.take_many(db, 2):
            queue.bury(db, task)
    said = page(db)
    assert "The group" in said
    assert "waits for 2 buried tasks, and 1 more does alike." in said
    assert "2 things need attention" in said  # the queue, and the group
