"""Grants: the halves of a queue do their half on every engine, and refuse the other one."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import (
    FairConsumer,
    FairProducer,
    FairQueue,
    Queue,
    QueueConsumer,
    QueueProducer,
    TaskConsumer,
    TaskProducer,
    TaskQueue,
)
from fdbqueue.core.errors import FairQueueFull, NotGranted, QueueDropped

OF_THE_QUEUE = (
    "drop",
    "truncate",
    "kick",
    "delete",
    "cancel",
    "pause",
    "repartition",
    "remove_aside",
    "tasks",
)


@pytest.fixture
def tasks(db: fdbqueue.Database, space: Any) -> TaskQueue:
    return TaskQueue.create(db, "tasks", "fifottl", root=space)


@pytest.fixture
def items(db: fdbqueue.Database, space: Any) -> Queue:
    return Queue.named(db, "items", root=space)


@pytest.fixture
def fair(space: Any) -> FairQueue:
    return FairQueue(space["fair"], key=lambda item: item[0], root=space)


def test_a_producer_puts_and_a_consumer_takes(db: fdbqueue.Database, tasks: TaskQueue) -> None:
    producer, consumer = tasks.producer(), tasks.consumer()
    put = producer.put(db, "x", pri=1)
    producer.put_many(db, ["y"], pri=2)
    task = consumer.take(db, 5)
    assert task is not None
    assert (task.id, task.data) == (put.id, "x")
    consumer.renew(db, [task])
    consumer.ack(db, consumer.take(db, 0) or task)
    consumer.release(db, task)
    assert tasks.statistics(db)["tasks"]["ready"] == 1


def test_halves_of_a_plain_queue_share_its_items(db: fdbqueue.Database, items: Queue) -> None:
    producer, consumer = items.producer(), items.consumer()
    producer.enqueue(db, "a")
    producer.enqueue_many(db, ["b", "c"])
    assert consumer.peek(db) == "a"
    assert consumer.dequeue(db, timeout=5) == "a"
    consumer.give_back(db, ["a"])
    assert consumer.dequeue_many(db, 9) == ["a", "b", "c"]
    assert consumer.empty(db)


def test_halves_of_a_fair_queue_share_its_rounds(db: fdbqueue.Database, fair: FairQueue) -> None:
    producer, consumer = fair.producer(), fair.consumer()
    for item in ("a1", "a2", "b1"):
        producer.put(db, item)
    assert consumer.size(db) == 3
    assert consumer.take_item(db, timeout=5) == (True, "a1")
    assert fdbqueue.transactional(lambda tr: consumer.get(tr), parameter="tr")(db) == "b1"
    consumer.give_back(db, "a1")
    assert [fair.get(db) for _ in range(3)] == ["a2", "a1", None]


def test_a_producer_meets_the_bound_of_a_fair_queue(db: fdbqueue.Database, space: Any) -> None:
    producer = FairQueue(space["small"], key=len, capacity=1, root=space).producer()
    producer.put(db, "x")
    with pytest.raises(FairQueueFull):
        producer.put(db, "y")


def test_halves_work_in_a_transaction(db: fdbqueue.Database, tasks: TaskQueue, items: Queue) -> None:
    tasks.put(db, 1)

    @fdbqueue.transactional
    def moved(tr: fdbqueue.Transaction) -> None:
        task = tasks.consumer().take(tr)
        assert task is not None
        items.producer().enqueue(tr, task.data)
        tasks.consumer().ack(tr, task)

    moved(db)
    assert items.dequeue(db) == 1


@pytest.mark.parametrize(
    ("half", "verbs"),
    [
        (TaskQueue.producer, ("take", "take_many", "ack", "release", "renew", "bury", *OF_THE_QUEUE)),
        (TaskQueue.consumer, ("put", "put_many", *OF_THE_QUEUE)),
        (Queue.producer, ("dequeue", "dequeue_many", "peek", "clear", "repartition", "items")),
        (Queue.consumer, ("enqueue", "enqueue_many", "clear", "repartition", "aside")),
        (FairQueue.producer, ("get", "take_item", "give_back", "size", "snapshot", "aside")),
        (FairQueue.consumer, ("put", "snapshot", "key_statistics", "remove_aside")),
    ],
)
def test_a_half_refuses_all_other_verbs(
    tasks: TaskQueue, items: Queue, fair: FairQueue, half: Callable[[Any], Any], verbs: tuple[str, ...]
) -> None:
    grant = half({"TaskQueue": tasks, "Queue": items, "FairQueue": fair}[half.__qualname__.partition(".")[0]])
    for verb in verbs:
        assert not hasattr(grant, verb)
        with pytest.raises(NotGranted, match=f"{type(grant).__name__} has no `{verb}`"):
            getattr(grant, verb)


def test_a_half_has_no_unknown_private_name(tasks: TaskQueue) -> None:
    with pytest.raises(AttributeError, match="_nothing"):
        tasks.producer()._nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_half_of_a_dropped_queue_says_so(tasks: TaskQueue, db: fdbqueue.Database) -> None:
    producer = tasks.producer()
    tasks.drop(db)
    with pytest.raises(QueueDropped):
        producer.put(db, "x")


def test_every_verb_of_a_half_is_one_of_its_queue() -> None:
    halves: dict[type, tuple[type, type]] = {
        TaskQueue: (TaskProducer, TaskConsumer),
        Queue: (QueueProducer, QueueConsumer),
        FairQueue: (FairProducer, FairConsumer),
    }
    for queue, (producer, consumer) in halves.items():
        names = [{name for name in dir(half) if not name.startswith("_")} for half in (producer, consumer)]
        assert names[0] | names[1] < set(dir(queue))
        assert names[0] & names[1] <= {"name", "kind", "options", "contents", "require_codec"}
