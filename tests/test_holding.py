"""Items that are shown before they leave: held, settled, put back, or left by a dead holder."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import transactional
from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.line.decision import Notice, Ticket
from fdbqueue.core.line.staging import Outcome, Turn
from fdbqueue.queues.recipe.queue import Queue
from tests.support import ManualClock

OVERDUE_S = limits.REQUEST_DEADLINE_S + 1


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space["queue"], root=space["root"])


@pytest.fixture
def timed(clock: ManualClock) -> Iterator[fdbqueue.Database]:
    """A database with a clock set by hand."""
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def test_payloads_of_several_megabytes_are_held_a_few_at_a_time(db: fdbqueue.Database, queue: Queue) -> None:
    """Within limits.BATCH_BYTES_MAX, like every take of many."""
    large = "x" * 600_000
    for _ in range(3):
        queue.enqueue(db, large)
    holder = queue.holder(db)
    assert holder.hold(3) == [large]
    assert holder.settle(shown=1)
    assert queue.size(db) == 2


def test_no_more_than_one_serving_is_held(db: fdbqueue.Database, queue: Queue) -> None:
    queue.enqueue_many(db, list(range(limits.SERVE_MAX + 10)))
    assert queue.holder(db).hold(1_000) == list(range(limits.SERVE_MAX))


def test_a_crowded_line_returns_the_items_of_a_dead_holder(
    timed: fdbqueue.Database, queue: Queue, clock: ManualClock
) -> None:
    """In a crowd each take goes to the line at once, and always finds an item of its own there."""
    queue.enqueue_many(timed, list("abc"))
    assert queue.holder(timed).hold(1) == ["a"]
    clock.advance(OVERDUE_S)
    memory = queue._calls_of(timed)._narrow._memory  # type: ignore[attr-defined]
    memory.note(Turn(Outcome.SERVED, ["x"], crowd=limits.CROWD_MIN))
    assert queue.dequeue(timed) == "a"


def test_clear_removes_held_items(db: fdbqueue.Database, queue: Queue) -> None:
    queue.enqueue_many(db, list("ab"))
    holder = queue.holder(db)
    holder.hold(1)
    queue.clear(db)
    assert not holder.settle(shown=0)
    assert queue.size(db) == 0
    assert queue.items(db, 10) == []


def test_clear_removes_values_held_from_partitions(db: fdbqueue.Database, space: Subspace) -> None:
    """They lie in the line that all partitions share."""
    queue = Queue.named(db, "q", partitions=2, root=space["root"])
    queue.enqueue_many(db, list("ab"))
    holder = queue.holder(db)
    assert holder.hold(1) == ["a"]
    queue.clear(db)
    assert not holder.settle(shown=0)
    assert (queue.dequeue(db), queue.size(db)) == (None, 0)


def test_a_holder_gets_values_laid_ready_in_a_partition(db: fdbqueue.Database, space: Subspace) -> None:
    """A call that stood in the line of one partition has died."""
    queue = Queue.named(db, "q", partitions=2, root=space["root"])
    queue.enqueue(db, "a")
    [number] = [one.number for one in queue.partitions(db) if one.ready]
    part = queue._recipe_of(db).part(number)

    @transactional
    def lay_ready(tr: Any) -> None:
        deliveries = part.deliver(tr, list(part.available(tr, 1, 0)), b"")
        part.line.results.leave(tr, Ticket(b"", b"dead", 1), deliveries, Notice(deadline_us=0, crowd=1))

    lay_ready(db)
    assert queue.holder(db).hold(1) == ["a"]


def test_a_holder_sets_aside_a_damaged_item_alone(db: fdbqueue.Database, queue: Queue) -> None:
    queue.enqueue(db, "bad")
    items = queue._recipe.keys.items
    [row] = db.get_range(items.start, items.stop)
    db[row.key] = b"\x00{"
    holder = queue.holder(db)
    for _ in range(2):
        assert holder.hold(1) == []
    assert (queue.size(db), queue.unreadable(db)) == (0, 1)
    assert queue.items(db, 10) == []


def test_a_wait_does_not_sleep_beside_an_item(
    db: fdbqueue.Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[object]()
    monkeypatch.setattr(Waiter, "sleep", lambda *given: slept.append(given))
    holder = queue.holder(db)
    holder.wait(60)
    assert len(slept) == 1
    queue.enqueue(db, "a")
    holder.wait(60)
    assert len(slept) == 1


def test_waiting_ends_when_something_comes(db: fdbqueue.Database, queue: Queue) -> None:
    holder = queue.holder(db)
    putting = db.runtime.spawn(lambda: queue.enqueue(db, "a"), "putting")
    began = db.runtime.monotonic()
    while not (values := holder.hold(1)):
        holder.wait(60)
    putting.join()
    assert values == ["a"]
    assert db.runtime.monotonic() - began < 20


def test_a_dropped_queue_is_noticed(db: fdbqueue.Database, space: Subspace) -> None:
    from fdbqueue.core.errors import QueueDropped
    from fdbqueue.core.registry import Registry

    root = space["root"]
    holder = Queue.named(db, "q", root=root).holder(db)
    Registry(root).drop(db, "q")
    with pytest.raises(QueueDropped):
        holder.hold(1)
