"""A process forgets the queues that it does not use any more, and none that it does."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, FairQueue, PersistentQueue, Queue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import Services
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.queues.recipe.calls import QueueCalls
from tests.support import PATIENCE_S, wait_until

REMEMBERED = 20
MANY = 10 * REMEMBERED
SPACE = Subspace(("services",))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(limits, "SERVICES_REMEMBERED", REMEMBERED)
    with fdbqueue.open("memory:") as database:
        yield database


def remembered(db: Database) -> int:
    gc.collect()  # a service and its combiners refer to each other
    return len(db._services.all())


def use_others(db: Database) -> None:
    for number in range(MANY):
        Queue(SPACE["other", number]).enqueue(db, number)


def use_subspace(db: Database, number: int) -> None:
    queue = Queue(SPACE[number])
    queue.enqueue(db, number)
    assert queue.dequeue(db) == number


def use_fair(db: Database, number: int) -> None:
    queue = FairQueue(SPACE[number], key=str)
    queue.put(db, number)
    assert queue.get(db) == number


def use_named(db: Database, number: int) -> None:
    queue = Queue.named(db, f"named {number}")
    queue.enqueue(db, number)
    Registry().drop(db, f"named {number}")


def use_tasks(db: Database, number: int) -> None:
    queue = TaskQueue.create(db, f"tasks {number}")
    queue.put(db, number)
    task = queue.take(db, 0)
    assert task is not None
    queue.ack(db, task)
    queue.drop(db)


@pytest.mark.parametrize("use", [use_subspace, use_fair, use_named, use_tasks])
def test_the_queues_that_a_process_remembers_are_bounded(
    memory: Database, use: Callable[[Database, int], None]
) -> None:
    for number in range(MANY):
        use(memory, number)
    assert remembered(memory) <= 2 * REMEMBERED + 5
    keeper = keeper_of(memory, RootKeys(DEFAULT_ROOT))
    assert len(keeper._living()) <= REMEMBERED + 2


def test_a_queue_that_was_forgotten_is_used_again(memory: Database) -> None:
    queue, tasks = Queue(SPACE["forgotten"]), TaskQueue.create(memory, "tasks")
    queue.enqueue(memory, 1)
    tasks.put(memory, 1)
    use_others(memory)
    gc.collect()
    assert queue.dequeue(memory) == 1
    task = tasks.take(memory, 0)
    assert task is not None
    use_others(memory)
    gc.collect()
    assert tasks.ack(memory, task).data == 1


def test_calls_of_a_root_without_recent_use_share_its_slot(memory: Database) -> None:
    """Otherwise the keys of its receipts would become more, and closing would clear the last ones only."""
    queue = Queue(SPACE["seldom"], root=SPACE["its root"])
    for number in range(2):
        queue.enqueue(memory, number)
        use_others(memory)
        gc.collect()
    receipts = RootKeys(SPACE["its root"]).receipts
    assert len(list(memory.get_range(receipts.start, receipts.stop))) == 1


class Part:
    def __init__(self, needed: bool) -> None:
        self.needed = needed

    def close(self) -> None: ...
    def is_needed(self) -> bool:
        return self.needed


@pytest.mark.parametrize("when", ["at once", "when it has not been used for some time"])
def test_a_service_that_is_needed_is_kept(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(limits, "SERVICES_REMEMBERED", REMEMBERED)
    services = Services()
    part = Part(needed=when == "at once")
    services.add("part", part)
    for number in range(REMEMBERED):
        services.add(number, Part(needed=False))
    part.needed = True
    del part
    for number in range(REMEMBERED, MANY):
        services.add(number, Part(needed=False))
    gc.collect()
    assert services.find("part") is not None
    assert len(services.all()) <= 2 * REMEMBERED + 1


@pytest.mark.parametrize(
    "make", [lambda _: Queue(SPACE["waited for"]), lambda db: TaskQueue.create(db, "waited for")]
)
def test_a_call_that_waits_is_served_whatever_else_is_used(
    memory: Database, make: Callable[..., Any]
) -> None:
    queue, found, lines = make(memory), [], memory.counters.requests
    wait = queue.dequeue if isinstance(queue, Queue) else queue.take
    thread = threading.Thread(target=lambda: found.append(wait(memory, timeout=PATIENCE_S)))
    thread.start()
    wait_until(lambda: memory.counters.requests > lines)
    use_others(memory)
    gc.collect()
    (queue.enqueue if isinstance(queue, Queue) else queue.put)(memory, "x")
    thread.join(PATIENCE_S)
    assert [getattr(one, "data", one) for one in found] == ["x"]


@pytest.mark.usefixtures("ordinary")
def test_calls_in_flight_and_later_ones_share_one_combiner(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a combiner of its own, the second generation of callers would not see the first."""
    queue, append = Queue(SPACE["combined"]), QueueCalls._append
    begun, may_end, seen = threading.Event(), threading.Event(), []

    def append_late(calls: QueueCalls, tr: Any, items: Any, random: bytes) -> Any:
        if calls.recipe.keys.prefix == SPACE["combined"].key():
            seen.append(id(calls))
            begun.set()
            assert may_end.wait(PATIENCE_S)
        return append(calls, tr, items, random)

    monkeypatch.setattr(QueueCalls, "_append", append_late)
    threads = [threading.Thread(target=queue.enqueue, args=(memory, number)) for number in range(2)]
    threads[0].start()
    assert begun.wait(PATIENCE_S)
    use_others(memory)
    gc.collect()
    threads[1].start()
    wait_until(lambda: sum(thread.is_alive() for thread in threads) == 2)
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (queue.size(memory), len(set(seen))) == (2, 1)


def test_a_callback_gets_all_changes_of_a_queue_without_calls(memory: Database) -> None:
    queue, told = TaskQueue.create(memory, "told", "fifottl"), threading.Event()
    queue.on_task_change(lambda _, event: told.set() if event == "ttl" else None)
    queue.put(memory, "x", ttl=0.5)
    use_others(memory)
    gc.collect()
    assert told.wait(PATIENCE_S)


def test_remembered_services_close_with_their_database(memory: Database) -> None:
    queue = TaskQueue.create(memory, "closed")
    queue.put(memory, 1)
    queue.take(memory, 0)
    use_others(memory)
    memory.close()
    assert all(session.lost for session in keeper_sessions(memory))


def keeper_sessions(db: Database) -> list[Any]:
    return [session for service in db._services.all() for session in getattr(service, "_sessions", [])]


@pytest.mark.parametrize(
    "make",
    [
        lambda db: Queue.named(db, "gone").enqueue_many(db, range(3)),
        lambda db: Queue.named(db, "gone").enqueue(db, "x" * 200_000),
        lambda db: TaskQueue.create(db, "gone", "fifottl").put_many(db, range(3)),
        lambda db: TaskQueue.create(db, "gone", "utube").put(db, 1, key="k"),
        lambda db: PersistentQueue(db, "gone").put(1),
        lambda db: ElementQueue.named(db, "gone", {"body": "string"}).add(db, {"body": "x"}),
    ],
    ids=["queue", "pieces", "fifottl", "utube", "persistent", "elements"],
)
def test_nothing_is_left_of_a_queue_that_was_dropped(
    memory: Database, make: Callable[[Database], object]
) -> None:
    """Nor its size."""
    make(memory)
    contents = Registry().contents(Registry().find(memory, "gone")).key()
    assert list(memory.get_range_startswith(contents))
    Registry().drop(memory, "gone")
    assert list(memory.get_range_startswith(contents)) == []
