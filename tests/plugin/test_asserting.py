"""assert_put and assert_buried: true counts pass, and others show the tasks."""

import pytest

from fdbqueue import Database, InvalidArgument, Queue, Subspace, TaskQueue
from fdbqueue.testing.pytest_plugin import assert_buried, assert_put


@pytest.fixture
def mails(fdbqueue_db: Database) -> TaskQueue:
    queue = TaskQueue.create(fdbqueue_db, "mails", "fifottl", ttr=60)
    queue.put(fdbqueue_db, {"to": "ann"})
    queue.put(fdbqueue_db, {"to": "bob"}, delay=60)
    return queue


def test_ready_and_delayed_tasks_count_and_taken_ones_do_not(fdbqueue_db: Database, mails: TaskQueue) -> None:
    assert_put(mails, 2)

    mails.take(fdbqueue_db, 0)

    assert_put(mails, 1)


def test_only_tasks_that_fit_the_condition_count(mails: TaskQueue) -> None:
    assert_put(mails, 1, where=lambda task: task.data["to"] == "ann")
    assert_put(mails, 0, where=lambda task: task.data["to"] == "eve")


def test_another_number_fails_and_shows_the_tasks(mails: TaskQueue) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_put(mails, 1, where=lambda task: task.data["to"] == "eve")

    assert str(raised.value) == (
        "1 were wanted; 2 wait, of which 0 fit `where`:"
        "\n  {'to': 'ann'}\n  {'to': 'bob'}, due in 60 s after its put"
    )


def test_a_long_queue_is_counted_whole_and_shown_in_part(fdbqueue_db: Database, mails: TaskQueue) -> None:
    for _ in range(3):
        mails.put_many(fdbqueue_db, [{"to": "all"}] * 1_000)

    assert_put(mails, 3_002)
    with pytest.raises(AssertionError, match="and 2992 more"):
        assert_put(mails, 1)


def test_buried_tasks_are_counted_apart(fdbqueue_db: Database, mails: TaskQueue) -> None:
    mails.bury(fdbqueue_db, mails.take(fdbqueue_db, 0))

    assert_buried(mails, 1, where=lambda task: task.data == {"to": "ann"})
    assert_put(mails, 1)
    with pytest.raises(AssertionError, match="2 were wanted; 1 are buried"):
        assert_buried(mails, 2)


def test_items_of_a_queue_count_in_their_database(fdbqueue_db: Database) -> None:
    items = Queue(Subspace(("items",)))
    items.enqueue(fdbqueue_db, "a")

    assert_put(items, 1, where=lambda item: item == "a", db=fdbqueue_db)
    with pytest.raises(InvalidArgument):
        assert_put(items, 1)
