"""Corruptions of lanes: each is found, and mending ends those that it can end."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Flaw, Limit, TaskQueue, verify
from fdbqueue.tasks.limits.lanes import UNNAMED, Lanes
from fdbqueue.tasks.stored.records import ID_BYTES
from tests.verifying.corruptions import Corruptions, require_found_and_mended

API, MAILS = b"\x01", b"\x02"
"""Lanes."""


def lanes_of(db: Database) -> Lanes:
    discipline = TaskQueue.open(db, "q")._shape.discipline
    assert isinstance(discipline, Lanes)
    return discipline


def entry(db: Database, lane: bytes) -> bytes:
    under = lanes_of(db).tasks_of(lane)
    return next(bytes(row.key) for row in db.get_range(under.start, under.stop))


def file_elsewhere(db: Database) -> None:
    """The entry of a task lies in the lane of another limit."""
    old = entry(db, API)
    ready = TaskQueue.open(db, "q")._shape.keys.ready.start
    db.set(ready + MAILS + old[len(ready) + 1 :], db.get(old))
    db.set(lanes_of(db).open_key(MAILS), b"")
    db.clear(old)


CORRUPTIONS: Corruptions = {
    "a lane with tasks is closed": (lambda db: db.clear(lanes_of(db).open_key(API)), {Flaw.STATE}),
    "an entry is missing": (lambda db: db.clear(entry(db, API)), {Flaw.STATE, Flaw.COUNTER}),
    "an entry and its lane are missing": (
        lambda db: [db.clear(key) for key in (entry(db, API), lanes_of(db).open_key(API))],
        {Flaw.STATE, Flaw.COUNTER},
    ),
    "an entry of the other tasks is missing": (
        lambda db: db.clear(entry(db, UNNAMED)),
        {Flaw.STATE, Flaw.COUNTER},
    ),
    "an entry is damaged": (lambda db: db.set(entry(db, API), b"damaged"), {Flaw.COPY}),
    "an entry lies in another lane": (file_elsewhere, {Flaw.STATE, Flaw.STRAY}),
}


@pytest.fixture
def db() -> Any:
    with fdbqueue.open("memory:") as database:
        for name in ("api", "mails"):
            Limit.set(database, name, slots=5)
        queue = TaskQueue.create(database, "q", task_limits=["api", "mails"])
        queue.put(database, 1, limits=["api"])
        queue.put(database, 2)
        yield database


@pytest.mark.parametrize(("corrupt", "flaws"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_found_and_mended(
    db: Database, corrupt: Callable[[Database], Any], flaws: set[Flaw]
) -> None:
    require_found_and_mended(db, corrupt, flaws)
    assert sorted(task.data for task in TaskQueue.open(db, "q").take_many(db, 9)) == [1, 2]


@pytest.mark.parametrize("lane", [b"", b"\x00", b"\x04", b"\x01\x02", b"\x01\x01\x01"])
def test_a_key_of_no_lane_is_a_finding(db: Database, lane: bytes) -> None:
    db.set(lanes_of(db).open_key(lane), b"")
    assert [finding.flaw for finding in verify(db, mend=True).findings] == [Flaw.UNKNOWN]


def test_a_take_mends_a_damaged_entry(db: Database) -> None:
    queue = TaskQueue.open(db, "q")
    db.set(entry(db, API), b"damaged")

    assert sorted(task.data for task in queue.take_many(db, 9)) == [1, 2]
    assert not verify(db).findings


def test_a_take_passes_a_task_of_a_lane_that_nothing_can_mend(db: Database) -> None:
    queue = TaskQueue.open(db, "q")
    for key in (entry(db, API), queue._shape.keys.task(entry(db, API)[-ID_BYTES:])):
        db.set(key, b"damaged")

    assert [task.data for task in queue.take_many(db, 9)] == [2]
    assert len(queue.aside(db, 9)) == 1
    assert not verify(db).findings
