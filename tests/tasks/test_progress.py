"""Progress: told by the holder of a task, shown where the task is shown, and gone with the lease."""

import threading
from typing import Any

import pytest

from fdbqueue import Database, TaskQueue, transactional
from fdbqueue.core.errors import NotADatabase, TaskNotFound, WaitStopped
from tests.support import PATIENCE_S
from tests.tasks.support import Bench, MakeBench


def fraction(b: Bench, id_: str) -> float | None:
    return b.queue.peek(b.db, id_).fraction


def wait(b: Bench, id_: str, seen: float | None = None, timeout: float = 0) -> float | None:
    found = b.queue.wait_for_progress(b.db, id_, seen, timeout)
    return None if found is None else found.fraction


def test_an_explanation_tells_the_progress(bench: MakeBench) -> None:
    b = bench("fifottl", ttr=60)
    id_ = b.put("x")
    b.queue.progress(b.db, b.take(), 0.4)
    b.clock.advance(7)
    (reason,) = b.queue.explain(b.db, id_).reasons
    assert reason.text.endswith("has held it for 7.0 s, and told 40% 7.0 s ago.")


def test_a_wait_returns_at_once_for_another_progress(bench: MakeBench) -> None:
    b = bench("fifottl", ttr=60)
    id_ = b.put("x")
    task = b.take()
    assert wait(b, id_) is None
    b.queue.progress(b.db, task, 0.4)
    assert wait(b, id_) == 0.4
    assert b.queue.wait_for_progress(b.db, id_, 0.4, 0) is None
    b.queue.release(b.db, task)
    assert b.queue.wait_for_progress(b.db, id_, 0.4, 0) == b.queue.peek(b.db, id_)


def test_a_wait_returns_the_data_of_the_task(bench: MakeBench) -> None:
    """A large payload lies beside the record."""
    b, large = bench("fifottl", ttr=60), "x" * 10_000
    id_ = b.put(large)
    b.queue.progress(b.db, b.take(), 0.4)
    found = b.queue.wait_for_progress(b.db, id_, None, 0)
    assert found.data == large


def test_a_wait_sees_the_end_of_a_lease_by_its_time(bench: MakeBench) -> None:
    """No key changes then."""
    b = bench("fifottl", ttr=60)
    id_ = b.put("x")
    b.queue.progress(b.db, b.take(), 0.4)
    assert b.queue.wait_for_progress(b.db, id_, 0.4, 50) is None
    found = b.queue.wait_for_progress(b.db, id_, 0.4, 50)
    assert found.fraction is None


def test_a_wait_needs_a_database(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")

    @transactional
    def within(tr: Any) -> None:
        b.queue.wait_for_progress(tr, id_, None, 0)

    with pytest.raises(NotADatabase):
        within(b.db)


def following(db: Database, queue: TaskQueue, id_: str, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits for each progress of the task, and its notes."""
    notes: list[Any] = []

    def follow() -> None:
        seen: float | None = None
        try:
            while (task := queue.wait_for_progress(db, id_, seen, **options)) is not None:
                notes.append(seen := task.fraction)
        except (TaskNotFound, WaitStopped) as end:
            notes.append(type(end).__name__)

    thread = threading.Thread(target=follow)
    thread.start()
    return thread, notes


@pytest.mark.usefixtures("without_looks")
def test_a_wait_wakes_at_each_progress_and_at_the_end(db: Database, space: Any) -> None:
    queue = TaskQueue.create(db, "jobs", "fifottl", ttr=60, root=space)
    queue.put(db, "x")
    task = queue.take(db, 0)
    thread, notes = following(db, queue, task.id, timeout=100 * PATIENCE_S)
    for number in (0.25, 0.5):
        queue.progress(db, task, number)
        while notes[-1:] != [number]:
            thread.join(0.01)
    queue.ack(db, task)
    thread.join(20)
    assert notes == [0.25, 0.5, "TaskNotFound"]


def test_a_stop_ends_a_wait_for_progress(db: Database, space: Any) -> None:
    queue = TaskQueue.create(db, "jobs", root=space)
    id_, stop = queue.put(db, "x").id, db.runtime.event()
    thread, notes = following(db, queue, id_, stop=stop)
    stop.set()
    thread.join(20)
    assert notes == ["WaitStopped"]
