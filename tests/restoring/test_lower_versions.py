"""A backup that is restored into a database with lower versions keeps working.

Only the requests of waiting lines have versionstamps in their keys. The stamps of new requests are lower than
those of restored ones, so new requests stand ahead of these.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueDropped
from fdbqueue.core.line.decision import Ticket
from fdbqueue.core.line.staging import Line, request_lasts_us
from tests.conftest import open_engine
from tests.restoring.support import (
    LongAgo,
    is_waiting,
    left_requests,
    make_a_root,
    make_newer,
    requests_of,
    require_working,
    restore,
    waiting_for,
)
from tests.support import PATIENCE_S, wait_until


def now_us() -> int:
    return round(time.time() * 1_000_000)


@pytest.fixture
def target() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def line_of(queue: Queue) -> Line:
    return queue._recipe.zero.line


@pytest.mark.parametrize("count", [3, 2 * limits.SERVE_MAX + 5])
@pytest.mark.parametrize(
    "alive_us", [-1, pytest.param(1_000_000, marks=pytest.mark.slow)], ids=["dead", "alive"]
)
def test_new_requests_stand_ahead_of_restored_ones(
    db: Database, space: Subspace, target: Database, count: int, alive_us: int
) -> None:
    """A restored request that seems to be alive may delay an item until its deadline, and no longer."""
    queue = Queue(space)
    make_newer(db, space.key())
    left_requests(db, line_of(queue), count, now_us() - request_lasts_us() + alive_us)
    restore(db, target, space.key())
    found: list[object] = []
    waits = [
        threading.Thread(target=lambda: found.append(queue.dequeue(target, timeout=PATIENCE_S)))
        for _ in range(2)
    ]
    for wait in waits:
        wait.start()
    wait_until(lambda: is_waiting(target, line_of(queue)))
    queue.enqueue_many(target, ["a", "b"])
    for wait in waits:
        wait.join(2 * PATIENCE_S)
    assert sorted(map(str, found)) == ["a", "b"]
    assert verify(target, queue=queue).sound


def test_dead_requests_go_although_they_stand_behind(db: Database, space: Subspace, target: Database) -> None:
    queue = Queue(space)
    make_newer(db, space.key())
    left_requests(db, line_of(queue), 3 * limits.SERVE_MAX, now_us() - 2 * request_lasts_us())
    queue.enqueue(db, "kept")
    restore(db, target, space.key())
    assert queue.dequeue(target) == "kept"
    wait_until(lambda: queue.dequeue(target) is None and not requests_of(target, line_of(queue)))


def test_a_request_is_found_ahead_of_restored_ones(db: Database, space: Subspace, target: Database) -> None:
    queue = Queue(space)
    make_newer(db, space.key())
    line = line_of(queue)
    for n in range(limits.BATCH_ITEMS_MAX + 1):
        key = line.keys.request(Ticket(b"\xf0" * 10, b"r%011d" % n, 1))
        target.set(key, b"\x00\x00\x00\x01" + bytes(8))
    [mine] = left_requests(target, line, 1, now_us())
    assert run(target, lambda tr: line.find(tr, mine.rid)) == mine


def test_a_restored_root_keeps_working(
    engine: str, tmp_path: Path, space: Subspace, target: Database
) -> None:
    with open_engine(engine, tmp_path / "source", LongAgo()) as source:
        make_newer(source, space.key())
        make_a_root(source, space)
        with waiting_for("waited", source, space):
            restore(source, target, space.key())
    require_working(target, space)


def test_a_restored_root_is_as_it_was_at_the_backup(db: Database, space: Subspace, target: Database) -> None:
    """A task that was acked since then runs again."""
    jobs = TaskQueue.create(db, "jobs", root=space)
    jobs.put(db, "x")
    restore(db, target, space.key())
    task = jobs.take(db, 0)
    assert task is not None
    jobs.ack(db, task)
    again = TaskQueue.open(target, "jobs", root=space).take(target, 0)
    assert again is not None
    assert (again.data, again.attempts) == ("x", 1)


def test_a_process_that_stayed_connected_has_to_start_again(
    db: Database, space: Subspace, tmp_path: Path
) -> None:
    """Its handle is refused, and writes into no other queue that has the same number."""
    url = f"embedded:{tmp_path / 'target'}"
    TaskQueue.create(db, "restored", root=space)
    with fdbqueue.open(url) as target:
        stale = TaskQueue.create(target, "replaced", root=space)
        stale.put(target, "of before")
        target.clear_range_startswith(space.key())
        restore(db, target, space.key())
        with pytest.raises(QueueDropped):
            stale.put(target, "of after")
    with fdbqueue.open(url) as target:
        restored = TaskQueue.open(target, "restored", root=space)
        restored.put(target, "of after")
        assert restored.statistics(target)["tasks"]["total"] == 1
