"""Proxies: the items of each, and their return (sections 1, 2.1 and 2.5 of the specification)."""

import gc
import threading
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PersistentQueue, Proxy, TaskQueue
from fdbqueue.core.errors import (
    InvalidArgument,
    NotUnacked,
    PayloadTooLarge,
    ProxyClosed,
    QueueDropped,
    QueueExists,
    QueueKindMismatch,
    UnsupportedOption,
)
from tests.persistent.conftest import Opened, Still
from tests.persistent.support import Running, drained, fetched, filled
from tests.support import PATIENCE_S


def test_connect_gives_distinct_proxies_with_growing_numbers(q: PersistentQueue) -> None:
    proxies = [q.connect() for _ in range(3)]
    assert [q.number, *(proxy.number for proxy in proxies)] == [0, 1, 2, 3]
    assert len({proxy.id for proxy in proxies}) == 3
    proxies[0].put("shared")
    assert [proxy.qsize() for proxy in proxies] == [1, 1, 1]
    assert proxies[2].get() == "shared"
    assert [proxy.unacked for proxy in (q, *proxies)] == [[], [], [], ["shared"]]


def test_a_persistent_queue_with_partitions_is_refused(
    q: PersistentQueue, db: fdbqueue.Database, space: Subspace
) -> None:
    tasks = TaskQueue.open(db, "q", root=space)
    q.put("a")
    tasks.repartition(db, 2)
    for call in (q.qsize, partial(q.put, "b")):
        with pytest.raises(UnsupportedOption, match="partitions"):
            call()
    task = tasks.take(db, 0)
    assert task is not None
    assert (task.data, tasks.take(db, 0)) == ("a", None)


@pytest.mark.parametrize("maxsize", [0, 9])
def test_the_first_put_after_a_repartition_elsewhere_is_refused(still: Still, maxsize: int) -> None:
    q = still.opened(maxsize=maxsize)
    q.put("a")
    other = fdbqueue.Database(still.db.engine, still.clock)
    TaskQueue.open(other, "q", root=still.root).repartition(other, 2)
    with pytest.raises(UnsupportedOption, match="partitions"):
        q.put("b")
    assert TaskQueue.open(still.db, "q", root=still.root).statistics(still.db)["tasks"]["total"] == 1
    q.close()


def test_connect_is_safe_from_many_threads(q: PersistentQueue) -> None:
    threads = [Running(q.connect) for _ in range(20)]
    proxies = [thread.result() for thread in threads]
    assert sorted(proxy.number for proxy in proxies) == list(range(1, 21))
    assert len({proxy.id for proxy in proxies}) == 20


def test_the_queue_is_a_proxy_without_a_session_until_a_get(q: PersistentQueue) -> None:
    q.put("x")
    assert q.id is None
    assert q.get() == "x"
    assert q.id is not None
    q.ack("x")
    assert q.qsize() == 0


def test_a_proxy_is_a_context_manager_and_may_close_twice(q: PersistentQueue) -> None:
    q.put("x")
    with q.connect() as proxy:
        proxy.get()
    proxy.close()
    assert q.qsize() == 1


def test_the_end_of_the_database_is_the_end_of_its_proxies(still: Still) -> None:
    q = filled(still.opened(owner="me"), "a")
    with fdbqueue.Database(still.db.engine, still.clock) as another:
        theirs = PersistentQueue(another, "q", root=still.root)
        assert theirs.get_nowait() == "a"
    assert q.qsize() == 1
    theirs.close()
    with pytest.raises(ProxyClosed):
        theirs.get()


def test_a_closed_proxy_refuses_everything(q: PersistentQueue) -> None:
    proxy = q.connect()
    proxy.close()
    for call in (
        lambda: proxy.put(1),
        proxy.get,
        proxy.get_nowait,
        proxy.qsize,
        proxy.full,
        proxy.join,
        proxy.task_done,
        lambda: proxy.ack(1),
        lambda: proxy.unacked,
        lambda: proxy.transaction().__enter__(),
    ):
        with pytest.raises(ProxyClosed):
            call()
    assert q.empty()


def test_closing_the_queue_closes_its_proxies(opened: Opened) -> None:
    with opened() as q:
        filled(q, "abc")
        proxies = [q.connect() for _ in range(2)]
        for proxy in (q, *proxies):
            proxy.get()
    for proxy in proxies:
        with pytest.raises(ProxyClosed):
            proxy.get()
    with pytest.raises(ProxyClosed):
        q.connect()
    assert drained(opened()) == ["a", "b", "c"]


def test_a_proxy_in_a_cycle_gives_back_when_it_is_collected(q: PersistentQueue) -> None:
    filled(q, "ab")

    class Worker:
        def __init__(self, proxy: Proxy) -> None:
            self.proxy, self.itself = proxy, self

    Worker(q.connect()).proxy.get()
    gc.collect()
    assert q.qsize() == 2


def test_a_proxy_is_collected_with_any_lock_held(q: PersistentQueue) -> None:
    """Nothing runs when a proxy is collected: its end is found out later, so nothing dead-locks."""
    q.put("x")
    proxy = q.connect()
    proxy.get()
    with q._opening, q._stored.keeper._lock, q._stored.keeper._ending, q._stored.database._lock:
        del proxy
        gc.collect()
    assert q.get(timeout=PATIENCE_S) == "x"


def test_the_end_of_a_thread_is_the_end_of_its_proxy(q: PersistentQueue) -> None:
    filled(q, "abc")
    kept: list[Proxy] = []

    def work() -> None:
        kept.append(q.connect())
        kept[0].ack(kept[0].get())
        kept[0].get()

    Running(work).result()
    assert q.qsize() == 2
    assert kept[0].unacked == []
    with pytest.raises(KeyError):
        kept[0].ack("b")
    assert drained(q) == ["b", "c"]


@pytest.mark.usefixtures("without_looks")
def test_a_crashed_thread_returns_its_items_and_wakes_gets(q: PersistentQueue) -> None:
    q.put("x")
    has_it, may_end = threading.Event(), threading.Event()

    def crash() -> None:
        proxy = q.connect()
        proxy.get()
        has_it.set()
        may_end.wait(PATIENCE_S)
        raise RuntimeError("crashed")

    worker = Running(crash)
    assert has_it.wait(PATIENCE_S)
    waiting = Running(q.get)
    assert waiting.is_waiting
    may_end.set()
    assert waiting.result() == "x"
    with pytest.raises(RuntimeError):
        worker.result()


def test_the_queue_itself_belongs_to_no_thread(opened: Opened) -> None:
    made: list[PersistentQueue] = []

    def make() -> None:
        made.append(filled(opened(), "ab"))
        made[0].get()

    Running(make).result()
    assert made[0].qsize() == 1
    made[0].ack("a")


def test_a_get_in_a_session_that_has_ended_forgets_its_items(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat has told of the end: the get itself finds it, and opens another session."""
    q = filled(still.opened(ttr=10), "ab")
    assert fetched(q, 2) == ["a", "b"]
    still.clock.advance(10)
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.keeper.Keeper.beat", lambda _: None)
        still.end_the_dead()  # as another process does, which has no heartbeat for this one
    assert q.get_nowait() == "a"
    assert q.unacked == ["a"]


def test_a_late_ack_is_noticed_by_the_queue_itself(still: Still) -> None:
    """The process need not know yet that its session is over."""
    q = filled(still.opened(ttr=10), "ab")
    proxy = q.connect()
    assert proxy.get_nowait() == "a"
    still.clock.advance(10)
    still.end_the_dead()
    q.put("c")
    other = still.opened()
    assert other.get_nowait() == "a"
    before = still.stored()
    with pytest.raises(NotUnacked, match="'a' is not un-acked here"):
        proxy.ack("a")
    assert still.stored() == before
    assert proxy.unacked == []
    assert proxy.get_nowait() == "b"


def test_a_size_counts_the_item_of_an_overdue_session(still: Still) -> None:
    """Another process has died, and no sweep has seen it."""
    q = filled(still.opened(ttr=10), "a")
    assert q.get_nowait() == "a"
    still.clock.advance(11)
    with fdbqueue.Database(still.db.engine, runtime=still.clock) as db:
        assert PersistentQueue(db, "q", root=still.root).qsize() == 1


@pytest.mark.commits_by_hand
def test_heartbeats_keep_fetched_items(still: Still) -> None:
    q = filled(still.opened(ttr=10), "a")
    q.get_nowait()
    for _ in range(5):
        still.clock.advance(9)
        still.tick()
    q.ack("a")
    assert q.empty()


def test_returned_items_may_exceed_maxsize_and_then_put_waits(opened: Opened) -> None:
    q = filled(opened(maxsize=2), "ab")
    proxy = q.connect()
    fetched(proxy, 2)
    filled(q, "cd")
    proxy.close()
    assert q.qsize() == 4
    assert q.full()
    putter = Running(lambda: q.put("e"))
    for item in "abc":
        assert putter.is_waiting
        assert q.get() == item
    putter.result()
    assert q.qsize() == 2


def test_maxsize_belongs_to_the_opener(opened: Opened) -> None:
    bounded, unbounded = opened(maxsize=1), opened()
    unbounded.put(1)
    unbounded.put(2)
    assert bounded.full()
    assert not unbounded.full()
    assert not bounded.empty()


def test_a_put_that_waits_notices_another_maxsize(still: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    q, wait_any = filled(still.opened(maxsize=1), "a"), still.clock.wait_any

    def raised(*args: Any) -> bool:
        q.maxsize = 2
        return wait_any(*args)

    monkeypatch.setattr(still.clock, "wait_any", raised)
    q.put("b", timeout=600)
    assert q.qsize() == 2


def test_it_is_the_fifo_task_queue_of_that_name(q: PersistentQueue, db: object, space: object) -> None:
    filled(q, "ab")
    q.get()
    tasks = TaskQueue.open(db, "q", root=space)
    assert tasks.statistics(db)["tasks"] == {
        "ready": 1,
        "taken": 1,
        "buried": 0,
        "delayed": 0,
        "due": 0,
        "cancelled": 0,
        "unreadable": 0,
        "done": 0,
        "total": 2,
    }
    tasks.put(db, "c")
    q.task_done()
    assert drained(q) == ["b", "c"]


def test_bad_input_is_refused_and_nothing_is_written(opened: Opened, db: object, space: object) -> None:
    q = opened()
    for wrong in ({"ttr": 0}, {"ttr": -1}, {"ttr": "x"}, {"maxsize": 2.5}, {"owner": ""}, {"owner": 7}):
        with pytest.raises(InvalidArgument):
            opened("other", **wrong)
    with pytest.raises(QueueExists):
        opened(codec="msgpack")
    TaskQueue.create(db, "tasks", "fifottl", root=space)
    with pytest.raises(QueueKindMismatch):
        opened("tasks")
    with pytest.raises(InvalidArgument):
        opened("")
    with pytest.raises(TypeError):
        q.put((1, 2))  # a tuple would come back as a list
    with pytest.raises(PayloadTooLarge):
        q.put("x" * 8_000_001)
    with pytest.raises(InvalidArgument):
        q.put(1, timeout="soon")
    with pytest.raises(InvalidArgument):
        q.get(timeout=float("nan"))
    assert q.empty()


def test_a_dropped_queue_says_so(q: PersistentQueue, db: object, space: object) -> None:
    TaskQueue.open(db, "q", root=space).drop(db)
    for call in (lambda: q.put(1), q.get_nowait, q.qsize, q.join):
        with pytest.raises(QueueDropped):
            call()


# Items are tasks: one may be cancelled by its id, or put off.


def cancel_first(db: fdbqueue.Database, space: Subspace, state: str) -> None:
    tasks = TaskQueue.open(db, "q", root=space)
    tasks.cancel(db, tasks.tasks(db, state, 1)[0])


def test_a_cancelled_item_that_waits_is_gone(
    db: fdbqueue.Database, space: Subspace, q: PersistentQueue
) -> None:
    filled(q, "ab")
    cancel_first(db, space, "r")
    assert (q.qsize(), q.get()) == (1, "b")


def test_a_cancelled_item_that_was_fetched_can_be_acked(
    db: fdbqueue.Database, space: Subspace, q: PersistentQueue
) -> None:
    item = filled(q, "ab").get()
    cancel_first(db, space, "t")
    assert q.unacked == [item]
    q.ack(item)
    assert q.get() == "b"


def test_a_cancelled_item_does_not_come_back(
    db: fdbqueue.Database, space: Subspace, q: PersistentQueue
) -> None:
    """The end of its proxy ends it."""
    proxy = filled(q, "ab").connect()
    proxy.get()
    cancel_first(db, space, "t")
    proxy.close()
    assert (q.qsize(), q.get()) == (1, "b")
    q.task_done()
    q.join()


def test_a_join_waits_for_an_item_that_is_put_off(
    db: fdbqueue.Database, space: Subspace, q: PersistentQueue
) -> None:
    filled(q, "ab")
    tasks = TaskQueue.open(db, "q", root=space)
    for task in tasks.take_many(db, 2):
        tasks.defer(db, task, delay=60)
    joined = Running(q.join)
    assert joined.is_waiting
    for task in tasks.tasks(db, "~", 2):
        tasks.cancel(db, task)
    joined.result()
