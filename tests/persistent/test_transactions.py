"""Gets, puts and acks as one unit (section 2.3)."""

import threading
from queue import Empty, Full
from typing import Any

import pytest

from fdbqueue import PersistentQueue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.errors import (
    DatabaseClosed,
    InvalidArgument,
    NotUnacked,
    ProxyClosed,
    TooMuchForOneTransaction,
    TransactionOpen,
    WaitStopped,
)
from tests.persistent.conftest import Opened, Still
from tests.persistent.support import Running, drained, fetched, filled


class Crash(Exception):
    pass


def test_an_interrupt_after_the_commit_undoes_nothing(
    q: PersistentQueue, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(q, "ab")
    interrupt(q, monkeypatch)
    with pytest.raises(KeyboardInterrupt), q.transaction():
        item = q.get()
        assert q.get() == "b"
        q.put("c")
        q.ack(item)
    assert q.unacked == ["b"]
    assert drained(opened()) == ["c"]


def test_an_ack_that_is_interrupted_after_its_commit_is_done(
    q: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(q, "a").get()
    interrupt(q, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        q.ack("a")
    assert q.unacked == []


def interrupt(q: PersistentQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an interrupt come after each commit."""
    do = q._stored.do

    def interrupted(*args: Any) -> bool:
        do(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(q._stored, "do", interrupted)


def test_a_block_interrupted_while_it_waits_for_room_is_undone(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    q = filled(opened(maxsize=1), "a")
    with pytest.raises(KeyboardInterrupt), q.transaction():
        q.ack(q.get())
        opened().put("x")
        q.put("b")
        monkeypatch.setattr(Waiter, "sleep", interrupted)
    assert q.unacked == []
    assert drained(q) == ["a", "x"]


def test_an_undone_block_takes_no_item_from_another_client(still: Still) -> None:
    q, other = filled(still.opened(ttr=10), "a"), still.opened()
    with pytest.raises(Crash), q.transaction():
        q.get()
        still.clock.advance(10)
        still.end_the_dead()
        assert other.get() == "a"
        raise Crash
    assert (q.qsize(), other.unacked) == (0, ["a"])
    other.ack("a")


def test_if_nothing_can_be_given_back_all_is_still_unacked(
    q: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(q, "ab")
    held = q.get()
    with monkeypatch.context() as patch, pytest.raises(DatabaseClosed), q.transaction():
        patch.setattr(q._stored, "release", failing)
        item = q.get()
        q.ack(item)
        q.ack(held)
        raise Crash
    assert q.unacked == ["a", "b"]
    q.ack(held)
    q.ack(item)
    q.join()


def failing(_: Any) -> None:
    raise DatabaseClosed


def test_items_of_an_open_transaction_are_invisible(q: PersistentQueue, opened: Opened) -> None:
    filled(q, "ab")
    other = opened()
    with q.transaction():
        q.get()
        q.put("c")
        assert other.qsize() == 1
        assert other.get() == "b"
        with pytest.raises(Empty):
            other.get_nowait()
    assert other.get() == "c"


def test_a_get_does_not_wait_for_its_own_puts(q: PersistentQueue) -> None:
    with q.transaction():
        q.put("mine")
        with pytest.raises(Empty):
            q.get()
        with pytest.raises(Empty):
            q.get(timeout=0.05)
    assert q.get() == "mine"


def test_a_get_inside_waits_as_any_other(q: PersistentQueue, opened: Opened) -> None:
    def consume() -> str:
        with q.transaction():
            item: str = q.get()
            q.put(item.upper())
            q.ack(item)
        return item

    consumer = Running(consume)
    assert consumer.is_waiting
    other = opened()
    other.put("came")
    assert consumer.result() == "came"
    assert other.get() == "CAME"


def test_if_the_lease_was_over_the_whole_fails(still: Still) -> None:
    q = filled(still.opened(ttr=10), "a")
    item = q.get_nowait()
    with pytest.raises(NotUnacked), q.transaction():
        q.put("result")
        q.ack(item)
        still.clock.advance(10)
        still.end_the_dead()
    other = still.opened()
    assert drained(other) == ["a"]
    assert q.unacked == []


def test_a_lost_item_fails_the_block_before_a_lack_of_room(still: Still) -> None:
    """The block can never commit: it must not wait for room."""
    q = filled(still.opened(maxsize=1, ttr=10), "a")
    item = q.get_nowait()
    q.put("b")
    with pytest.raises(NotUnacked), q.transaction():
        q.ack(item)
        q.put_nowait("result")
        still.clock.advance(10)
        still.end_the_dead()
    assert drained(still.opened()) == ["a", "b"]


def delete_first(db: Any, space: Any) -> None:
    tasks = TaskQueue.open(db, "q", root=space)
    tasks.delete(db, tasks.tasks(db, "t", 1)[0].id)


def test_of_two_acked_items_the_deleted_one_alone_is_lost(q: PersistentQueue, db: Any, space: Any) -> None:
    items = fetched(filled(q, "ab"), 2)
    with pytest.raises(NotUnacked, match="'a'"), q.transaction():
        for item in items:
            q.ack(item)
        delete_first(db, space)
    assert q.unacked == ["b"]


def test_a_lost_item_that_was_only_fetched_undoes_the_block(still: Still) -> None:
    """It has not been fetched then, so nothing that came of it is put."""
    q = filled(still.opened(ttr=10), "a")
    with pytest.raises(NotUnacked), q.transaction():
        q.put(q.get_nowait() + " result")
        still.clock.advance(10)
        still.end_the_dead()
    assert drained(still.opened()) == ["a"]


@pytest.mark.commits_by_hand
def test_a_transaction_may_take_its_time(still: Still) -> None:
    """Longer than any transaction of the database lives; heartbeats go on."""
    q = filled(still.opened(ttr=10), "a")
    with q.transaction():
        item = q.get_nowait()
        for _ in range(10):
            still.clock.advance(9)
            still.tick()
        q.put("b")
        q.ack(item)
    assert drained(q) == ["b"]


def test_transactions_of_a_thread_do_not_nest(q: PersistentQueue) -> None:
    with q.transaction():
        q.put("a")
        with pytest.raises(TransactionOpen), q.transaction():
            pass
        q.put("b")
    assert drained(q) == ["a", "b"]


def test_a_transaction_is_one_threads(q: PersistentQueue) -> None:
    with pytest.raises(Crash), q.transaction():
        q.put("inside")
        Running(lambda: q.put("beside")).result()
        assert q.qsize() == 1
        raise Crash
    assert drained(q) == ["beside"]


def test_a_block_waits_for_room_unless_it_can_never_fit(opened: Opened) -> None:
    q = filled(opened(maxsize=2), "ab")

    def put_two() -> None:
        with q.transaction():
            q.put("c")
            q.put("d")

    putter = Running(put_two)
    assert putter.is_waiting
    assert fetched(q, 2) == ["a", "b"]
    putter.result()
    with pytest.raises(Full), q.transaction():
        for item in "efg":
            q.put(item)
    assert drained(q) == ["c", "d"]


@pytest.mark.parametrize("order", [(None, 0.05, 3600), (3600, 0.05, None), (0.05, None, 3600)])
def test_a_unit_is_as_patient_as_its_least_patient_put(
    opened: Opened, order: tuple[float | None, ...]
) -> None:
    q = filled(opened(maxsize=3), "axy")
    with pytest.raises(Full), q.transaction():
        for timeout in order:
            q.put("b", timeout=timeout)
    with pytest.raises(InvalidArgument), q.transaction():
        q.put("b", timeout=-1)
    assert drained(q) == ["a", "x", "y"]


def test_the_stop_of_any_put_ends_the_wait_of_a_unit(opened: Opened) -> None:
    q = filled(opened(maxsize=2), "a")
    stop = threading.Event()
    stop.set()
    with pytest.raises(WaitStopped), q.transaction():
        q.put("b", stop=threading.Event())
        q.put("c", timeout=1, stop=stop)
    assert drained(q) == ["a"]


def test_too_much_is_refused_and_nothing_has_happened(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 4)
    q = filled(opened(), "ab")
    with pytest.raises(TooMuchForOneTransaction), q.transaction():
        for item in fetched(q, 2):
            q.ack(item)
        for item in "cde":
            q.put(item)
    assert drained(q) == ["a", "b"]


def test_fetched_items_count_for_the_bound_of_a_unit(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 4)
    q = filled(opened(), "abcde")
    with pytest.raises(TooMuchForOneTransaction), q.transaction():
        fetched(q, 5)
    assert q.unacked == []
    assert drained(q) == ["a", "b", "c", "d", "e"]


def test_only_one_item_of_a_unit_may_be_large(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 100)
    q = opened()
    with pytest.raises(TooMuchForOneTransaction), q.transaction():
        q.put("a" * 60)
        q.put("b" * 60)
    with q.transaction():
        q.put("c" * 120)
    assert drained(q) == ["c" * 120]


def test_many_are_given_back_in_bounded_transactions(
    q: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    filled(q, range(7))
    with pytest.raises(Crash), q.transaction():
        fetched(q, 5)
        raise Crash
    assert q.unacked == []
    assert drained(q) == list(range(7))


def test_a_proxy_closed_inside_undoes_the_unit(q: PersistentQueue) -> None:
    q.put("a")
    proxy = q.connect()
    with pytest.raises(ProxyClosed), proxy.transaction():
        proxy.get()
        proxy.put("b")
        proxy.close()
    assert drained(q) == ["a"]


@pytest.mark.parametrize("wrong", [(1, 2), {1: 2}, float("nan")])
def test_bad_input_inside_undoes_the_earlier_calls(q: PersistentQueue, wrong: Any) -> None:
    q.put("a")
    with pytest.raises(TypeError), q.transaction():
        q.ack(q.get())
        q.put("b")
        q.put(wrong)
    assert drained(q) == ["a"]


def test_a_block_that_fails_in_a_new_session_keeps_no_old_item(still: Still) -> None:
    q = filled(still.opened(ttr=10), "ab")
    assert q.get_nowait() == "a"
    with pytest.raises(Crash), q.transaction():
        q.ack("a")
        still.clock.advance(10)
        still.end_the_dead()
        still.tick()
        assert q.get_nowait() == "a"  # in a new session
        raise Crash
    assert q.unacked == []
    assert q.qsize() == 2


def test_an_error_in_a_forked_child_undoes_nothing(
    q: PersistentQueue, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(q, "a")
    with pytest.raises(Crash), q.transaction():
        assert q.get() == "a"
        monkeypatch.setattr(q._runtime, "process_id", lambda: 1)
        raise Crash
    assert opened().empty()
