"""A worker that waits for tasks and holds one dies by SIGKILL: others get its task, and new ones, soon."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, TaskQueue
from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.seam import Transaction
from tests.conftest import DURABLE
from tests.spawned import crew
from tests.support import wait_until
from tests.tasks.workers import NAME, hold_and_wait, wait_for_item

SOON_S = 6.0
"""Seconds on a busy machine; the kernel needs none, signs of life 3. It took 10 to 18 s."""
TTR_S = {"embedded": 100.0, "fdb": 2.0}
"""A directory tells who is gone; on a cluster a lost task comes back with its ttr."""
WAIT_S = 60.0

on_both = pytest.mark.parametrize("engine", DURABLE, indirect=True)


@contextmanager
def killed_waiter(db: fdbqueue.Database, line: LineKeys, work: object, *arguments: object) -> Iterator[None]:
    """A process that does `work`, and is killed as soon as its request is in the line."""
    with crew() as workers:
        workers.spawn(work, *arguments)  # type: ignore[arg-type]
        wait_until(lambda: requests_in(db, line) == 1, 60)
        workers.end()
        yield


def requests_in(db: fdbqueue.Database, line: LineKeys) -> int:
    @fdbqueue.transactional
    def count(tr: Transaction) -> int:
        return len(tr.get_range(line.requests.start, line.requests.stop).to_list())

    return count(db)


@on_both
def test_tasks_pass_a_killed_worker_by(engine: str, url: str, db: fdbqueue.Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, NAME, "fifottl", ttr=TTR_S[engine], root=space)
    queue.put(db, "lost")
    line = LineKeys(queue._shape.keys.line)
    with killed_waiter(db, line, hold_and_wait, url, space.key().hex()):
        died = time.monotonic()
        assert queue.take(db, WAIT_S).data == "lost"
        assert time.monotonic() - died < SOON_S


@on_both
def test_a_new_task_passes_a_killed_worker_by(url: str, db: fdbqueue.Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, NAME, "fifottl", root=space)
    line = LineKeys(queue._shape.keys.line)
    with killed_waiter(db, line, hold_and_wait, url, space.key().hex()):
        queue.put(db, "new")
        put = time.monotonic()
        assert queue.take(db, WAIT_S).data == "new"
        assert time.monotonic() - put < SOON_S


@on_both
def test_a_new_item_passes_a_killed_process_by(url: str, db: fdbqueue.Database, space: Subspace) -> None:
    queue = Queue(space["items"])
    with killed_waiter(db, LineKeys(queue._recipe.keys.line), wait_for_item, url, space.key().hex()):
        queue.enqueue(db, "new")
        put = time.monotonic()
        assert queue.dequeue(db, timeout=WAIT_S) == "new"
        assert time.monotonic() - put < SOON_S


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_call_that_waits_sees_the_death_of_the_one_before(
    url: str, db: fdbqueue.Database, space: Subspace
) -> None:
    """Nothing wakes it but the kernel: the dead process had the place of the one that is woken."""
    queue = Queue(space["items"])
    line = LineKeys(queue._recipe.keys.line)
    got: list[float] = []
    with crew() as workers:
        workers.spawn(wait_for_item, url, space.key().hex())
        wait_until(lambda: requests_in(db, line) == 1, 60)
        waiter = db.runtime.spawn(lambda: got.append(queue.dequeue(db, timeout=WAIT_S)), "waits")
        wait_until(lambda: requests_in(db, line) == 2, 60)
        workers.end()
        wait_until(lambda: requests_in(db, line) == 1, SOON_S)
        queue.enqueue(db, "new")
        waiter.join(SOON_S)
    assert got == ["new"]
