"""A handler hands its task off: the worker is done with it, and the outside ends it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Handoff, Hooks, TaskQueue, Worker, transactional
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.fleet.outcomes import HandedOff, judge
from fdbqueue.fleet.status import Tally
from tests.conftest import DURABLE
from tests.fleet.conftest import SOON, working
from tests.spawned import crew
from tests.support import wait_until
from tests.tasks.workers import NAME, hand_off_and_wait

Work = Callable[..., list[tuple[str, Any]]]


@pytest.fixture
def work(db: Database, space: Subspace, queue: TaskQueue) -> Work:
    """Work until the first outcome, as a queue with a task that is handed off is not empty."""

    def run(handler: Callable[..., object], **options: Any) -> list[tuple[str, Any]]:
        told: list[tuple[str, Any]] = []

        def note(event: Any) -> None:
            told.append((event.name, event.task.data))
            worker.stop()

        hooks = Hooks(
            **dict.fromkeys(("succeeded", "retried", "handed_off", "cancelled", "lease_lost"), note)
        )
        worker = Worker(db, queue, handler, hooks=hooks, root=space, **options)
        worker.run()
        return told

    return run


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_hands_its_task_off(db: Database, queue: TaskQueue, work: Work, is_async: bool) -> None:
    def handler(_: Any) -> None:
        raise Handoff(3600, for_="Ada")

    async def coroutine(_: Any) -> None:
        await asyncio.sleep(0)
        raise Handoff(3600, for_="Ada")

    id_ = queue.put(db, "x", result_ttl=60).id
    assert work(coroutine if is_async else handler) == [("handed_off", "x")]
    assert queue.peek(db, id_).handed_to == "Ada"
    queue.complete(db, id_, "paid")
    assert queue.result(db, id_, 0) == "paid"


def test_a_hand_off_counts_as_put_off(db: Database, queue: TaskQueue, space: Subspace) -> None:
    """A queue with such a task is not empty: the worker runs on, and does the next attempt."""

    def handler(task: Any) -> None:
        if task.attempts == 1:
            raise Handoff(60)

    queue.put(db, "x")
    hooks = Hooks(handed_off=lambda event: queue.fail(db, event.task.id, "no"))
    worker = Worker(db, queue, handler, hooks=hooks, root=space)
    worker.run(until_empty=True)
    assert worker.status().tally == Tally(snoozed=1, done=1)


def test_the_transaction_of_the_handler_does_not_commit(
    db: Database, queue: TaskQueue, space: Subspace, work: Work
) -> None:
    def handler(tr: Any, _: Any) -> None:
        tr.add(space["n"].key(), b"\x01")
        raise Handoff(60)

    id_ = queue.put(db, "x").id
    assert work(handler, transactional=True) == [("handed_off", "x")]
    assert db[space["n"].key()] is None
    assert queue.peek(db, id_).handed_to == ""


@pytest.mark.parametrize("how", ["database", "its own transaction", "transactional"])
@pytest.mark.commits_by_hand
def test_a_handler_hands_its_task_off_beside_its_writes(
    db: Database, queue: TaskQueue, space: Subspace, work: Work, how: str
) -> None:
    """By the verb of the queue, which is the outcome of the attempt."""

    def leave(tr: Any, task: Any) -> None:
        tr[space["pending"].key()] = task.id.encode()
        queue.hand_off(tr, task, 60, for_="Ada")

    def handler(*arguments: Any) -> None:
        if how == "database":
            queue.hand_off(db, arguments[0], 60, for_="Ada")
        else:
            inside = how == "transactional"
            (leave if inside else transactional(leave))(arguments[0] if inside else db, arguments[-1])

    id_ = queue.put(db, "x").id
    assert work(handler, threads=1, transactional=how == "transactional") == [("handed_off", "x")]
    assert queue.peek(db, id_).handed_to == "Ada"
    assert how == "database" or db[space["pending"].key()] == id_.encode()


def test_a_task_that_nobody_completes_is_buried(db: Database, queue: TaskQueue, space: Subspace) -> None:
    """Each end of a ttl is a failed attempt."""
    ended, told = threading.Event(), list[str]()

    def note(event: Any) -> None:
        told.append(event.name)
        if event.name == "buried":
            ended.set()

    def handler(_: Any) -> None:
        raise Handoff(0.05)

    id_ = queue.put(db, "x").id
    hooks = Hooks(handed_off=note, buried=note)
    with working(Worker(db, queue, handler, attempts=2, backoff=SOON, hooks=hooks, root=space)):
        assert ended.wait(60)
    assert told == ["handed_off", "handed_off", "buried"]
    errors = [failure.error for failure in queue.failures(db, id_)]
    assert errors == ["NotCompleted", "NotCompleted"]


def test_a_cancel_before_the_hand_off_ends_the_task(db: Database, queue: TaskQueue, work: Work) -> None:
    def handler(task: Any) -> None:
        queue.cancel(db, task.id)
        raise Handoff(60)

    queue.put(db, "x")
    assert work(handler) == [("cancelled", "x")]
    assert queue.statistics(db)["tasks"]["total"] == 0


def test_a_verdict_of_nonsense_is_refused_where_it_is_made() -> None:
    assert judge(Handoff(5, "Ada"), "me") == HandedOff(5, "Ada")
    for bad in (0, -1, None, "soon", True, float("inf")):
        with pytest.raises(InvalidArgument, match=r"^ttl"):
            Handoff(bad)  # type: ignore[arg-type]
    for text in ("", 7, "x" * 257):
        with pytest.raises(InvalidArgument, match=r"^for_"):
            Handoff(5, text)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_the_process_that_has_handed_a_task_off_may_die(url: str, db: Database, space: Subspace) -> None:
    """Its session ends, and the task goes on waiting."""
    queue = TaskQueue.create(db, NAME, "utubettl", ttr=5, root=space)
    handed, held = queue.put(db, "handed off", key="a").id, queue.put(db, "held", key="b").id
    with crew() as dying:
        dying.spawn(hand_off_and_wait, url, space.key().hex())
        wait_until(lambda: queue.statistics(db)["tasks"]["taken"] == 2)
        wait_until(lambda: queue.peek(db, handed).handed_to == "Ada")
        dying.end()
    wait_until(lambda: queue.peek(db, held).state == "r")
    assert queue.peek(db, handed).handed_to == "Ada"
    queue.complete(db, handed)
    assert queue.statistics(db)["ends"]["acked"] == 1
    assert not fdbqueue.verify(db, root=space).findings
