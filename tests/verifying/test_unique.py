"""Entries and windows of unique keys are verified, and mended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Flaw, Task, TaskQueue, verify
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.records import id_bytes

MEND = "--mend"
LATER_US = 4_000_000_000_000_000
"""In the year 2096: a sweep clears a window whose time is over."""


@dataclass
class Place:
    """A queue with a task of each scope, and one without a unique key."""

    db: Database
    root: Subspace
    queue: TaskQueue
    tasks: dict[str, Task]

    @property
    def shared(self) -> SharedKeys:
        return self.queue._shape.shared

    def entry(self, name: str) -> bytes:
        return self.shared.unique(key_bytes(name))

    def id(self, name: str) -> bytes:
        return id_bytes(self.tasks[name].id)

    def window(self) -> bytes:
        [row] = self.db.get_range(self.shared.windows.start, self.shared.windows.stop)
        return bytes(row.key)

    def verify(self, mend: bool = False) -> Any:
        return verify(self.db, "q", root=self.root, mend=mend)


@pytest.fixture(params=[1, 4], ids=["whole", "parted"])
def place(db: Database, space: Subspace, request: pytest.FixtureRequest) -> Place:
    queue = TaskQueue.create(db, "q", "fifottl", partitions=request.param, root=space)
    scopes: dict[str, Any] = {"queued": "queued", "unfinished": "unfinished", "hour": 3_600}
    tasks = {name: queue.put(db, "x", unique=name, scope=scope) for name, scope in scopes.items()}
    tasks["plain"] = queue.put(db, "x")
    return Place(db, space, queue, tasks)


PLANTS: dict[str, tuple[Callable[[Place, Any], object], Flaw, str]] = {
    "no entry": (lambda at, tr: tr.clear(at.entry("queued")), Flaw.STATE, MEND),
    "a damaged entry": (lambda at, tr: tr.set(at.entry("other"), b"x"), Flaw.VALUE, MEND),
    "another task": (lambda at, tr: tr.set(at.entry("other"), at.id("plain")), Flaw.STRAY, MEND),
    "a missing task": (lambda at, tr: tr.set(at.entry("other"), bytes(20)), Flaw.STRAY, MEND),
    "no window": (lambda at, tr: tr.clear(at.window()), Flaw.TIMER, MEND),
    "a stray window": (
        lambda at, tr: tr.set(at.shared.window(LATER_US, key_bytes("other")), bytes(20)),
        Flaw.STRAY,
        MEND,
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_wrong_entry_is_found_and_mended(place: Place, name: str) -> None:
    plant, flaw, cure = PLANTS[name]
    assert place.verify().findings == ()
    _run(place, plant)
    [found] = place.verify().findings
    assert (found.flaw, cure in found.cure) == (flaw, True)
    assert [finding.mended for finding in place.verify(mend=True).findings] == [True]
    assert place.verify().findings == ()


def test_two_tasks_of_one_key_are_told_and_left(place: Place) -> None:
    def plant(at: Place, tr: Any) -> None:
        tr.set(at.entry("queued"), at.id("unfinished"))

    _run(place, plant)
    flaws = {finding.flaw for finding in place.verify().findings}
    assert flaws == {Flaw.STRAY, Flaw.COPY}


def test_a_task_that_has_moved_has_its_key(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", partitions=2, root=space)
    for key in range(8):
        queue.put(db, "x", key=key, unique=key, delay=1_000)
        queue.bury(db, queue.put(db, "x", key=key, unique=(key,)))
    queue.repartition(db, 7)
    queue.kick(db, 8)
    assert verify(db, "q", root=space).findings == ()


def test_a_moved_task_in_a_closing_partition_has_its_key(db: Database, space: Subspace) -> None:
    """It waits there for a take, as it is ready."""
    queue = TaskQueue.create(db, "q", "utubettl", partitions=2, root=space)
    for key in range(8):
        queue.bury(db, queue.put(db, "x", key=key, unique=key))
    assert queue.repartition(db, 7).is_finished
    queue.kick(db, 8)
    assert not queue.repartition(db, 2).is_finished
    assert verify(db, "q", root=space).findings == ()


def _run(place: Place, plant: Callable[[Place, Any], object]) -> None:
    tr = place.db.create_transaction()
    plant(place, tr)
    tr.commit().wait()
