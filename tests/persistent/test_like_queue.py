"""It behaves like queue.Queue: the library reference holds for both (section 2.4).

Every test runs with the standard class first: a test that asks for more than it keeps is wrong.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from tests.conftest import ENGINES, TEST_ROOT, open_engine
from tests.persistent.support import Running
from tests.support import PATIENCE_S

Make = Callable[..., Any]


@pytest.fixture(params=["queue.Queue", *ENGINES])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """`make(maxsize)`"""
    if request.param == "queue.Queue":
        yield queue.Queue
        return
    root = TEST_ROOT[os.urandom(8)]
    with open_engine(request.param, tmp_path / "data") as db:
        yield lambda maxsize=0: fdbqueue.PersistentQueue(db, "like", maxsize, root=root)
        db.clear_range_startswith(root.key())


def test_first_in_first_out(make: Make) -> None:
    q = make()
    for item in (111, 333, 222):
        q.put(item)
    assert [q.get(), q.get(), q.get()] == [111, 333, 222]


@pytest.mark.parametrize("item", [None, 0, "", False, [], {}, [1, {"a": None}], "text", 2.5, {"k": [1]}])
def test_any_item_is_legal_none_too(make: Make, item: Any) -> None:
    q = make()
    q.put(item)
    found = q.get(timeout=PATIENCE_S)
    assert found == item
    assert type(found) is type(item)


@pytest.mark.parametrize("maxsize", [0, -1])
def test_a_maxsize_of_zero_or_less_is_no_bound(make: Make, maxsize: int) -> None:
    q = make(maxsize)
    for item in range(30):
        q.put_nowait(item)
    assert q.maxsize == maxsize
    assert q.qsize() == 30
    assert not q.full()


def test_qsize_empty_and_full_follow_puts_and_gets(make: Make) -> None:
    q = make(2)
    assert (q.qsize(), q.empty(), q.full()) == (0, True, False)
    q.put(1)
    assert (q.qsize(), q.empty(), q.full()) == (1, False, False)
    q.put(2)
    assert (q.qsize(), q.empty(), q.full()) == (2, False, True)
    q.get()
    assert (q.qsize(), q.empty(), q.full()) == (1, False, False)


def test_a_full_queue_refuses_at_once_or_after_the_timeout(make: Make) -> None:
    q = make(1)
    q.put("there")
    for refused in (
        lambda: q.put("x", block=False),
        lambda: q.put("x", False, -1),  # a timeout has no effect without a wait
        lambda: q.put_nowait("x"),
        lambda: q.put("x", timeout=0),
        lambda: q.put("x", True, 0.05),
    ):
        with pytest.raises(queue.Full):
            refused()
    assert q.qsize() == 1
    assert q.get() == "there"
    assert q.empty()


def test_an_empty_queue_says_so_at_once_or_after_the_timeout(make: Make) -> None:
    q = make()
    for refused in (
        lambda: q.get(block=False),
        lambda: q.get(False, -1),
        lambda: q.get_nowait(),
        lambda: q.get(True, 0),
        lambda: q.get(timeout=0.05),
    ):
        with pytest.raises(queue.Empty):
            refused()


def test_a_timeout_is_waited_for(make: Make) -> None:
    q = make(1)
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.2)
    assert time.monotonic() - began >= 0.2
    q.put(1)
    began = time.monotonic()
    with pytest.raises(queue.Full):
        q.put(2, timeout=0.2)
    assert time.monotonic() - began >= 0.2


def test_a_negative_timeout_is_a_value_error_without_a_wait_too(make: Make) -> None:
    q = make(2)
    q.put(1)
    with pytest.raises(ValueError, match="timeout"):
        q.put(2, timeout=-1)
    with pytest.raises(ValueError, match="timeout"):
        q.get(timeout=-1)
    assert q.qsize() == 1


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("timeout", [None, 100 * PATIENCE_S])
def test_a_get_waits_for_a_put(make: Make, timeout: float | None) -> None:
    q = make()
    getter = Running(lambda: q.get(timeout=timeout))
    assert getter.is_waiting
    q.put("came")
    assert getter.result() == "came"


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("timeout", [None, 100 * PATIENCE_S])
def test_a_put_waits_for_a_get(make: Make, timeout: float | None) -> None:
    q = make(1)
    q.put(1)
    putter = Running(lambda: q.put(2, timeout=timeout))
    assert putter.is_waiting
    assert q.get() == 1
    putter.result()
    assert q.get() == 2


@pytest.mark.usefixtures("without_looks")
def test_several_waiting_gets_return_an_item_each(make: Make) -> None:
    q = make()
    getters = [Running(q.get) for _ in range(8)]
    assert all(getter.thread.is_alive() for getter in getters)
    for item in range(8):
        q.put(item)
    assert sorted(getter.result() for getter in getters) == list(range(8))


def test_many_threads_share_it(make: Make) -> None:
    q = make(5)
    found: list[list[int]] = [[] for _ in range(4)]

    def work(mine: list[int]) -> None:
        while (item := q.get()) is not None:
            mine.append(item)
            q.task_done()
        q.task_done()

    workers = [Running(lambda mine=mine: work(mine)) for mine in found]
    producers = [Running(lambda first=n * 25: [q.put(first + i) for i in range(25)]) for n in range(4)]
    for producer in producers:
        producer.result()
    for _ in workers:
        q.put(None)
    q.join()
    for worker in workers:
        worker.result()
    assert sorted(item for mine in found for item in mine) == list(range(100))
    for mine in found:  # of each producer the items come in its order
        for n in range(4):
            of_one = [item for item in mine if item // 25 == n]
            assert of_one == sorted(of_one)


def test_task_done_without_an_item_is_a_value_error(make: Make) -> None:
    q = make()
    with pytest.raises(ValueError, match=r"^task_done\(\) called too many times$"):
        q.task_done()


def test_task_done_once_too_often_is_a_value_error(make: Make) -> None:
    q = make()
    for item in range(3):
        q.put(item)
        q.get()
    for _ in range(3):
        q.task_done()
    with pytest.raises(ValueError, match="too many times"):
        q.task_done()


def test_join_returns_at_once_where_nothing_was_put(make: Make) -> None:
    make().join()


def test_join_waits_until_every_item_is_done_and_works_again(make: Make) -> None:
    q = make()
    for _ in range(2):
        q.put("a")
        q.put("b")
        joined = Running(q.join)
        assert joined.is_waiting
        q.get()
        q.task_done()
        q.get()
        assert joined.is_waiting  # fetched is not finished
        q.task_done()
        joined.result()


def test_join_waits_for_daemon_workers(make: Make) -> None:
    """The library reference's own example, in our words."""
    q, done = make(), []

    def worker() -> None:
        while True:
            item = q.get()
            if item is None:
                return
            done.append(item)
            q.task_done()

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    for item in range(30):
        q.put(item)
    q.join()
    assert done == list(range(30))
    q.put(None)
    thread.join(PATIENCE_S)
