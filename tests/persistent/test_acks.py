"""Which delivery an ack is about (section 2.2)."""

import pytest

from fdbqueue import PersistentQueue
from fdbqueue.core.errors import NotUnacked
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.task import Task, TaskState
from fdbqueue.queues.unacked import Unacked
from tests.persistent.conftest import Opened
from tests.persistent.support import drained, fetched, filled


def test_the_very_object_is_acked_even_if_an_equal_one_is_older(q: PersistentQueue) -> None:
    filled(q, [{"n": 1}, {"n": 1}, {"n": 2}])
    first, second, _third = fetched(q, 3)
    assert first == second
    assert first is not second
    q.ack(second)
    assert q.unacked[0] is first
    q.close()


def test_of_equal_ones_the_earliest_is_acked(q: PersistentQueue, opened: Opened) -> None:
    filled(q, [["x"], ["y"], ["x"]])
    fetched(q, 3)
    q.ack(["x"])  # a copy: neither of them by identity
    assert q.unacked == [["y"], ["x"]]
    q.ack(["x"])
    with pytest.raises(KeyError):
        q.ack(["x"])
    q.close()
    assert drained(opened()) == [["y"]]


def test_changing_a_fetched_object_changes_nothing_stored(q: PersistentQueue) -> None:
    q.put({"tries": 0})
    with q.connect() as proxy:
        item = proxy.get()
        item["tries"] = 99
    assert q.get() == {"tries": 0}


def test_a_changed_object_is_still_the_one_that_was_fetched(q: PersistentQueue) -> None:
    q.put({"tries": 0})
    item = q.get()
    item["tries"] = 99
    q.ack(item)
    q.join()


def test_the_error_says_what_and_is_a_key_error(q: PersistentQueue) -> None:
    with pytest.raises(KeyError) as caught:
        q.ack("nothing")
    assert str(caught.value).startswith("'nothing' is not un-acked here: ")
    assert caught.value.item == "nothing"


def unacked_of(*items: object) -> Unacked:
    unacked = Unacked(RealRuntime().lock())
    for number, item in enumerate(items):
        unacked.add(Task(str(number), TaskState.TAKEN, item), thread=number % 2)
    return unacked


def test_one_object_put_twice_is_acked_in_the_order_of_gets() -> None:
    same = ["same"]
    unacked = unacked_of(same, "x", same)
    assert [unacked.pick(same).number, unacked.pick(same).number] == [0, 2]
    with pytest.raises(NotUnacked):
        unacked.pick(same)


def test_the_oldest_is_that_of_the_thread_and_else_of_all() -> None:
    unacked = unacked_of("a", "b", "c")
    picked = [unacked.pick_oldest(1), unacked.pick_oldest(1), unacked.pick_oldest(1), unacked.pick_oldest(1)]
    assert [delivery and delivery.item for delivery in picked] == ["b", "a", "c", None]


def test_an_ack_of_the_later_of_two_equal_leaves_the_first() -> None:
    """Both gets have returned one object. The thread that has fetched it second is the first to finish."""
    same = ["same"]
    unacked = unacked_of(same, same)
    finished = unacked.pick_oldest(1)
    assert finished is not None
    assert finished.number == 1
    assert unacked.pick(same).number == 0
