"""A client that knows the layout only, beside this library on one database."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from examples import layout_client, layout_tasks
from fdbqueue import Database, ElementQueue, Queue, TaskQueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from tests.support import PATIENCE_S

ROOT = DEFAULT_ROOT.key()
KINDS = sorted(layout_tasks.KINDS)
NOW_US = 1_700_000_000_000_000


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as one:
        yield one


def within(db: Database, body: Callable[[Any], Any]) -> Any:
    return fdbqueue.transactional(body)(db)


def put(db: Database, name: str, *payloads: bytes, **options: Any) -> list[bytes]:
    random = os.urandom(12)

    def body(tr: Any) -> list[bytes]:
        queue = layout_client.Queue(tr, ROOT, name, layout_tasks.KINDS)
        return layout_tasks.put(tr, queue, [*payloads], random, NOW_US, **options)

    return within(db, body)


def enqueue(db: Database, name: str, *payloads: bytes) -> None:
    random = os.urandom(12)
    within(
        db,
        lambda tr: layout_client.enqueue(
            tr, layout_client.Queue(tr, ROOT, name, ["queue"]), [*payloads], random
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_workers_take_the_tasks_of_the_client(db, kind, partitions):
    queue = TaskQueue.create(db, "tasks", kind, partitions=partitions)
    key = {"key": "ada"} if "key" in layout_tasks.KINDS[kind] else {}
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.take, db, PATIENCE_S)  # in the line, or about to stand there
        put(db, "tasks", b'"first"', **key)
        first = waiting.result()
    put(db, "tasks", b'"second"', b'"third"', **key)
    queue.ack(db, first)
    taken = [queue.take(db, PATIENCE_S).data]
    counts = queue.statistics(db)
    assert first.data == "first"
    assert taken[0] in ("second", "third")
    assert (counts["calls"]["put"], counts["tasks"]["total"], counts["tasks"]["done"]) == (3, 2, 1)
    assert not fdbqueue.verify(db).findings


def test_the_client_and_this_library_share_a_recipe_queue(db):
    queue = Queue.named(db, "events", codec="bytes")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.dequeue, db, None, PATIENCE_S)
        enqueue(db, "events", b"first")
        assert waiting.result() == b"first"
    queue.enqueue(db, b"second")
    enqueue(db, "events", b"third", b"x" * 100_000)

    def dequeue(tr: Any) -> list[bytes]:
        events = layout_client.Queue(tr, ROOT, "events", ["queue"])
        return layout_client.dequeue(tr, events, 2, NOW_US)

    assert within(db, dequeue) == [b"second", b"third"]
    assert (queue.size(db), queue.dequeue(db)) == (1, b"x" * 100_000)
    assert not fdbqueue.verify(db).findings


def test_puts_of_both_at_once_lose_no_task(db):
    """Of one task key: its pointer is written by both."""
    queue = TaskQueue.create(db, "tasks", "utube", codec="bytes")
    each, start = 20, threading.Barrier(4)

    def ours() -> None:
        start.wait()
        for number in range(each):
            queue.put(db, b"ours%d" % number, key="ada")

    def theirs() -> None:
        start.wait()
        for number in range(each):
            put(db, "tasks", b"theirs%d" % number, key="ada")

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work) for work in (ours, ours, theirs, theirs)]:
            done.result()
    taken = 0
    while (task := queue.take(db, 0)) is not None:
        queue.ack(db, task)
        taken += 1
    assert taken == 4 * each
    assert not fdbqueue.verify(db).findings


def test_an_element_of_the_client_is_read(db):
    queue = ElementQueue.named(db, "outbox", {"body": "string"})

    def add(tr: Any) -> str:
        outbox = layout_client.Queue(tr, ROOT, "outbox", ["elements"])
        return layout_client.add_element(tr, outbox, {"body": b"hello"}, 7, NOW_US)

    name = within(db, add)
    assert queue.lock(db, name)
    assert (queue.get(db, name), queue.count(db)) == ({"body": "hello"}, 1)
    assert not fdbqueue.verify(db).findings


def test_a_unique_key_of_the_client_counts(db):
    queue = TaskQueue.create(db, "tasks", "fifo")
    [id_] = put(db, "tasks", b'"one"', unique="u")
    assert queue.put(db, "two", unique="u").existed
    assert put(db, "tasks", b'"three"', unique="u") == []
    assert not fdbqueue.verify(db).findings
    assert len(id_) == 20


@pytest.mark.parametrize(
    "options", [{"temporary": True}, {"retain_s": 5}, {"capacity": 1}], ids=lambda one: next(iter(one))
)
def test_options_are_kept(db, options):
    kind = "limfifottl" if "capacity" in options else "fifo"
    queue = TaskQueue.create(db, "tasks", kind, **options)
    put(db, "tasks", b"1")
    if "capacity" in options:
        with pytest.raises(layout_client.Full):
            put(db, "tasks", b"2")
    assert queue.statistics(db)["tasks"]["total"] == 1
