"""Waits for all partitions: the next item wakes them at once, also beside items that they pass over."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fdbqueue import Queue, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import PayloadMismatch
from fdbqueue.core.runtime import Waitable
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.tasks.stored.records import id_bytes
from tests.partitions.support import key_in
from tests.support import becomes_ready
from tests.tasks.partitions import MakeParted
from tests.tasks.support import StillClock
from tests.tasks.test_groups_sweeps import settle
from tests.tasks.test_poison import spoil_records

PARTITIONS = 2


class Meanwhile(StillClock):
    """Calls `meanwhile` in the first wait."""

    meanwhile: Callable[[], Any] | None = None

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        waited_for, call, self.meanwhile = list(futures), self.meanwhile, None
        if call is not None:
            call()
            any(becomes_ready(one, 0.2) for one in waited_for)
        return super().wait_any(waited_for, timeout_s)


@pytest.fixture
def clock() -> Meanwhile:
    return Meanwhile()


@pytest.mark.parametrize("kind", ["fifo", "utube", "bag"])
def test_a_take_beside_unreadable_tasks_is_woken_at_once(
    parted: MakeParted, clock: Meanwhile, kind: str
) -> None:
    b = parted(kind, partitions=PARTITIONS)
    for number in range(9):
        b.put("a text", **({"key": number} if b.keyed else {}))
    typed = TaskQueue.open(b.db, "bench", type=int, root=b.root)
    clock.meanwhile = lambda: b.put(7, **({"key": 99} if b.keyed else {}))
    began = clock.now()
    assert typed.take(b.db, 60, session=b.session).data == 7
    assert clock.now() == began


@pytest.mark.parametrize("partition", range(PARTITIONS))
@pytest.mark.parametrize("end", ["delete", "truncate", "damage"])
def test_a_put_that_waits_for_room_is_woken_at_once(
    parted: MakeParted, clock: Meanwhile, partition: int, end: str
) -> None:
    b = parted("limfifottl", partitions=PARTITIONS, capacity=PARTITIONS)
    [id_] = [id_ for id_ in b.put_each(range(PARTITIONS)) if b.places()[id_] == partition]
    if end == "damage":
        spoil_records(b.db, b.queue, id_bytes(id_))
    ends = {"truncate": lambda: b.queue.truncate(b.db)}
    clock.meanwhile = ends.get(end, lambda: b.queue.delete(b.db, id_))
    began = clock.now()
    assert b.queue.put(b.db, "x", timeout=60).data == "x"
    assert clock.now() == began


@pytest.mark.parametrize("of", ["items", "tasks"])
@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_a_repartition_prolongs_no_wait(
    parted: MakeParted, clock: Meanwhile, partitions: int, of: str
) -> None:
    """A wait that began without partitions goes on with them, for the rest of its time."""
    b = parted(partitions=partitions)
    queue = Queue.named(b.db, "items", partitions=partitions, root=b.root)

    def repartition() -> None:
        clock.advance(59)
        (queue if of == "items" else b.queue).repartition(b.db, 3)

    clock.meanwhile, began = repartition, clock.now()
    assert (queue.dequeue(b.db, timeout=60) if of == "items" else b.take(60)) is None
    assert 60 <= clock.now() - began < 61


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_a_take_is_woken_by_a_task_that_a_group_starts(
    parted: MakeParted, clock: Meanwhile, partitions: int
) -> None:
    """The end of the task before it was earlier, and rings no more."""
    b = parted("fifo", partitions=partitions)
    parent = b.put("parent")
    b.queue.put(b.db, "child", after=parent)
    b.queue.delete(b.db, parent)
    clock.meanwhile = lambda: settle(b)
    began = clock.now()
    assert b.take(60).data == "child"
    assert clock.now() == began


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_an_end_of_waits_ends_a_take_at_once(parted: MakeParted, clock: Meanwhile, partitions: int) -> None:
    b = parted("fifo", partitions=partitions)
    clock.meanwhile = lambda: b.queue.end_waits(b.db, session=b.session)
    began = clock.now()
    assert b.take(60) is None
    assert clock.now() == began


def test_a_take_in_a_paused_queue_is_woken_by_its_resume(parted: MakeParted, clock: Meanwhile) -> None:
    b = parted("fifo", partitions=PARTITIONS)
    b.put("x")
    b.queue.pause(b.db)
    clock.meanwhile = lambda: b.queue.resume(b.db)
    began = clock.now()
    assert b.take(60).data == "x"
    assert clock.now() == began


def made(b: Any, **options: Any) -> Queue:
    return Queue.named(b.db, "items", partitions=PARTITIONS, root=b.root, **options)


def test_a_dequeue_beside_unreadable_values_is_woken_at_once(parted: MakeParted, clock: Meanwhile) -> None:
    b = parted()
    queue, typed = made(b), made(b, type=int)
    for _ in range(PARTITIONS):
        queue.enqueue(b.db, "a text")
    clock.meanwhile = lambda: queue.enqueue(b.db, 7)
    began = clock.now()
    assert typed.dequeue(b.db, timeout=60) == 7
    assert clock.now() == began


@pytest.mark.parametrize("has_unreadable", [False, True])
def test_a_holder_is_woken_at_once(parted: MakeParted, clock: Meanwhile, has_unreadable: bool) -> None:
    """Flags of empty partitions are there: their values have been dequeued at the homes."""
    b = parted()
    queue, typed = made(b), made(b, type=int)
    for number in range(8):
        queue.enqueue(b.db, number)
    for _ in range(8):
        queue.dequeue(b.db)
    if has_unreadable:
        for _ in range(PARTITIONS):
            queue.enqueue(b.db, "a text")
        with pytest.raises(PayloadMismatch):
            typed.dequeue(b.db)
    holder = typed.holder(b.db)
    clock.meanwhile = lambda: queue.enqueue(b.db, 7)
    began = clock.now()
    holder.wait(60)
    assert clock.now() == began
    assert holder.hold(1) == [7]


@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_take_wakes_for_the_first_due_task_of_any_partition(parted: MakeParted, partition: int) -> None:
    b = parted("utubettl", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        b.put(number, key=key_in(number, PARTITIONS), delay=0.25 if number == partition else 0.75)
    began = b.clock.now()
    assert b.take(60).data == partition
    assert b.clock.now() - began == pytest.approx(0.25, abs=0.01)


def test_a_take_in_a_transaction_goes_past_a_home_that_has_gone(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = parted("fifottl", partitions=4)
    b.repartition(1)
    b.settle()
    b.put(0)
    monkeypatch.setattr("fdbqueue.core.line.wide.Homes.next", lambda *_: 3)
    task = run(b.db, lambda tr: b.queue.take(tr, session=b.session))
    assert task.data == 0


def test_the_end_of_the_own_session_ends_no_wait(parted: MakeParted, clock: Meanwhile) -> None:
    """The home of the dead session was empty."""
    b = parted("fifottl", partitions=PARTITIONS)
    root = b.queue._shape.root

    def die() -> None:
        end_session(b.db, root, own_session_of(b.db, root).id(), lambda *_: True, died=True)
        clock.meanwhile = lambda: b.put("work")

    clock.meanwhile = die
    found = b.queue.take(b.db, 8)
    assert found.data == "work"
