"""The calls that wait in a line are listed: since when, for what, and by which session and process."""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, FairQueue, HolderProcess, Queue, Session, TaskQueue, WaitingCall
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, QueueDropped
from fdbqueue.core.line.decision import renewal_value
from fdbqueue.core.line.staging import ask_live, request_lasts_us
from tests.support import PATIENCE_S, wait_until

HERE = HolderProcess(platform.node(), os.getpid())


@contextmanager
def in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[None]:
    """A call that waits, in a thread, as long as the block runs."""
    stop = threading.Event()

    def run() -> None:
        with pytest.raises(fdbqueue.errors.WaitStopped):
            call(*arguments, timeout=PATIENCE_S, stop=stop, **options)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def listed(queue: Any, db: Database, count: int = 1) -> list[WaitingCall]:
    wait_until(lambda: len(queue.waiting(db, 100)) == count)
    found: list[WaitingCall] = queue.waiting(db, 100)
    return found


def check_times(db: Database, call: WaitingCall, began: float) -> None:
    assert began - 1 <= call.since <= db.runtime.now()
    assert call.since < call.until <= db.runtime.now() + 10


@pytest.mark.parametrize("options", [{}, {"partitions": 3}], ids=["one", "partitions"])
def test_of_tasks_with_their_session(db: Database, space: Subspace, options: dict[str, Any]) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space, **options)
    assert queue.waiting(db, 1) == []
    began = db.runtime.now()
    with Session(db, name="worker 7", root=space) as session, in_thread(queue.take, db, session=session):
        [call] = listed(queue, db)
        assert (call.session, call.name, call.processes) == (session.id.hex(), "worker 7", (HERE,))
        assert call.count == 1
        check_times(db, call, began)
    assert queue.waiting(db, 1) == []


def test_in_the_order_of_the_line(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    first, second = Session(db, root=space), Session(db, root=space)
    with in_thread(queue.take_many, db, 5, session=first):
        listed(queue, db)
        with in_thread(queue.take, db, session=second):
            found = listed(queue, db, 2)
            assert [one.session for one in found] == [first.id.hex(), second.id.hex()]
            assert found[0].count == 5
            assert queue.waiting(db, 1)[0].session == first.id.hex()


def test_of_items_with_their_process(db: Database, space: Subspace) -> None:
    queues = [
        (named := Queue.named(db, "items", root=space), named.dequeue),
        (parts := Queue.named(db, "parts", partitions=2, root=space), parts.dequeue),
        (fair := FairQueue(space["fair"], key=lambda item: item), fair.get),
    ]
    for queue, take in queues:
        began = db.runtime.now()
        with in_thread(take, db):
            [call] = listed(queue, db)
            assert (call.session, call.name, call.processes) == (None, None, (HERE,))
            check_times(db, call, began)
        assert queue.waiting(db, 1) == []


def test_a_request_of_another_program_may_tell_nothing(db: Database, space: Subspace) -> None:
    """Its params are empty, or of a form that this release does not know."""
    queue = Queue.named(db, "items", root=space)
    line = queue._recipe_of(db).wide.line
    for params in (b"", b"\xff", b"x" * 16, b"\x02a\x00"):
        tr = db.create_transaction()
        line.register(tr, os.urandom(12), 1, params, db.runtime.now_us())
        tr.commit().wait()
    assert [one.processes for one in queue.waiting(db, 9)] == [()] * 4


def test_a_request_that_has_renewed_itself_waits_since_its_begin(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "items", root=space)
    line = queue._recipe_of(db).wide.line
    since_us = db.runtime.now_us()

    def register(tr: Any) -> None:
        line.register(tr, bytes(12), 1, b"", since_us)

    def renew(tr: Any) -> None:
        [(ticket, _, _)] = ask_live(tr, line.keys, since_us, 9)()
        tr[line.keys.renewal(ticket)] = renewal_value(since_us + 5 * request_lasts_us())

    for body in (register, renew):
        run(db, body)
    [call] = queue.waiting(db, 9)
    assert round((call.until - call.since) * 1_000_000) == 5 * request_lasts_us()
    assert round(call.since * 1_000_000) == since_us


def test_in_a_transaction_it_conflicts_with_nothing(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    tr = db.create_transaction()
    assert queue.waiting(tr, 1) == []
    tr[space.pack(("other",))] = b""
    with Session(db, root=space) as session, in_thread(queue.take, db, session=session):
        listed(queue, db)
        tr.commit().wait()


@pytest.mark.parametrize("limit", [0, -1, "1", None, 1.5])
def test_a_bad_limit_is_refused(db: Database, space: Subspace, limit: Any) -> None:
    for queue in (
        TaskQueue.create(db, "q", root=space),
        Queue.named(db, "items", root=space),
        FairQueue(space["fair"], key=lambda item: item),
    ):
        with pytest.raises(InvalidArgument, match="limit"):
            queue.waiting(db, limit)


def test_a_dropped_queue_is_told(db: Database, space: Subspace) -> None:
    tasks = TaskQueue.create(db, "q", root=space)
    items = Queue.named(db, "items", root=space)
    for name in ("q", "items"):
        fdbqueue.core.registry.Registry(space).drop(db, name)
    for queue in (tasks, items):
        with pytest.raises(QueueDropped):
            queue.waiting(db, 1)
