"""Bounded work (I9): no transaction grows with the queue, with the line, or with the dead in it."""

import time
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue
from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import run
from fdbqueue.core.errors import TooMuchToSweep
from fdbqueue.core.line.decision import STAMP_BYTES, LineKeys, Notice, Ticket, notice_value, request_value
from fdbqueue.core.line.decision import Due as DueResults
from fdbqueue.core.line.staging import Outcome, Turn, request_lasts_us
from fdbqueue.queues.recipe.items import QueueKeys, Recipe, suffix, whole
from tests.persistent.support import Running
from tests.queue_support import FaultyEngine, faulty, registered
from tests.support import wait_until
from tests.test_queue_line import Unwoken

LONG = 1000
READS_MAX = 4 * limits.SERVE_MAX + limits.RESULTS_RETURNED_MAX
WRITES_MAX = 8 * limits.SERVE_MAX


@pytest.fixture
def counted(db: Database, fdb_module: ModuleType) -> tuple[Database, FaultyEngine]:
    return faulty(db, fdb_module.FDBError)


def fill(db: Database, queue: Queue) -> None:
    for _ in range(LONG // 500):
        queue.enqueue_many(db, list(range(500)))


def long_ago_us() -> int:
    return round(time.time() * 1_000_000) - 2 * request_lasts_us()


def test_a_long_queue(counted: tuple[Database, FaultyEngine], db: Database, space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    fill(db, queue)
    client, engine = counted
    queue.enqueue(client, 1)
    queue.dequeue(client)
    queue.peek(client)
    queue.size(client)
    queue.clear(client)
    assert engine.read_most <= 2
    assert engine.written_most <= 4


def test_a_take_that_is_cut_short_by_its_bytes_tells_so(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise calls that share it would be told that there is nothing for them."""
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 100)
    queue = Queue(space)
    queue.enqueue_many(db, ["x" * 40, "y" * 40])
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 60)
    taken = run(db, lambda tr: queue._recipe.take(tr, 2, db.runtime.now_us()))
    assert (len(taken.values), taken.cut_short) == (1, True)


def test_a_batch_beside_the_line_tells_no_call_nothing(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction has no room for the items of both calls."""
    queue, joined = Queue(space[0], root=space[1]), list[Running]()
    takes = queue._calls_of(db)._narrow._takes  # type: ignore[attr-defined]
    claim = takes.claim

    def claim_when_another_has_joined(*bounds: int) -> Any:
        if not joined:
            joined.append(Running(lambda: queue.dequeue(db)))
            wait_until(lambda: len(takes._pending) == 2)
        return claim(*bounds)

    registered(db, queue._recipe.zero.line, b"another's", db.runtime.now_us())
    queue.enqueue_many(db, [letter * 30 for letter in "abc"])
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 40)
    monkeypatch.setattr(takes, "claim", claim_when_another_has_joined)
    assert [queue.dequeue(db), joined[0].result()] == ["b" * 30, "c" * 30]


def test_a_line_full_of_the_dead(
    counted: tuple[Database, FaultyEngine], db: Database, space: Subspace
) -> None:
    queue, line = Queue(space[0], root=space[1]), LineKeys(QueueKeys(space[0]).line)
    tr = db.create_transaction()
    for number in range(LONG):
        dead = Ticket(number.to_bytes(STAMP_BYTES, "big"), b"its rid", 1)
        tr.set(line.request(dead), request_value(1, long_ago_us(), b""))
    tr.commit().wait()
    queue.enqueue_many(db, ["a", "b"])
    client, engine = counted
    assert queue.dequeue(client) == "a"
    assert engine.read_most <= READS_MAX
    assert engine.written_most <= WRITES_MAX
    assert list(db.get_range(line.requests.start, line.requests.stop)) == []


def test_results_without_a_collection_are_returned(
    counted: tuple[Database, FaultyEngine], db: Database, space: Subspace
) -> None:
    queue, line = Queue(space[0], root=space[1]), LineKeys(QueueKeys(space[0]).line)
    tr, deadline_us = db.create_transaction(), long_ago_us()
    for number in range(LONG):
        rid = b"dead%08d" % number
        tr.set(line.due_key(DueResults(deadline_us, rid)), b"")
        tr.set(line.notice(rid), notice_value(Notice(deadline_us, crowd=1)))
        tr.set(line.result(rid, suffix(number, b"x")), whole(b"%d" % number))
    tr.commit().wait()
    client, engine = counted
    taken: list[int] = []
    while found := queue.dequeue_many(client, 100):
        taken += found
    assert sorted(taken) == list(range(LONG))
    assert engine.read_most <= READS_MAX
    assert engine.written_most <= WRITES_MAX


def test_a_long_line_is_served_a_portion_at_a_time(
    counted: tuple[Database, FaultyEngine], db: Database, space: Subspace
) -> None:
    queue = Queue(space[0], root=space[1])
    line = Recipe(QueueKeys(space[0]), codec_named("json")).line
    now_us = round(time.time() * 1_000_000)
    for number in range(3 * limits.SERVE_MAX):
        tr = db.create_transaction()
        line.register(tr, b"rid%09d" % number, 1, b"", now_us)
        tr.commit().wait()
    fill(db, queue)
    client, engine = counted
    assert queue.dequeue(client) == 3 * limits.SERVE_MAX
    assert engine.read_most <= READS_MAX
    assert engine.written_most <= WRITES_MAX
    assert queue.size(db) == LONG - 3 * limits.SERVE_MAX - 1


def test_a_call_takes_one_transaction(counted: tuple[Database, FaultyEngine], space: Subspace) -> None:
    queue = Queue(space[0], root=space[1])
    client, engine = counted
    queue.enqueue(client, 1)
    queue.dequeue(client)
    queue.dequeue(client)
    assert engine.commits == 3


def test_a_request_is_for_no_more_items_than_one_serving(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond would lie ready without a reader."""
    monkeypatch.setattr(limits, "SERVE_MAX", 3)
    queue = Queue(space[0], root=space[1])
    queue.enqueue_many(db, range(9))
    takes = queue._calls_of(db)._narrow  # type: ignore[attr-defined]  # as there is no line of partitions
    takes._memory.note(Turn(Outcome.SERVED, ["a"], crowd=limits.CROWD_MIN))
    assert queue.dequeue_many(db, 9) == [0, 1, 2]


def test_nothing_is_never_told_beside_many_overdue_results(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones have no items any more, so their return makes nothing available."""
    monkeypatch.setattr(limits, "RESULTS_RETURNED_MAX", 1)
    monkeypatch.setattr(limits, "TIDY_ROUNDS_MAX", 2)
    queue, recipe = Queue(space[0], root=space[1]), Recipe(QueueKeys(space[0]), codec_named("json"))
    queue.enqueue(db, "x")
    for number in range(1, 4):
        db[recipe.line.keys.due_key(DueResults(number, b"has gone"))] = b""

    def deliver(tr: Any) -> None:
        deliveries = recipe.deliver(tr, list(recipe.available(tr, 1, 0)), b"")
        recipe.line.results.leave(tr, Ticket(b"", b"its name", 1), deliveries, Notice(4, 1))

    run(db, deliver)
    with pytest.raises(TooMuchToSweep):
        run(db, queue.dequeue)
    assert queue.dequeue(db) == "x"


def test_a_request_behind_others_wakes_to_renew_itself() -> None:
    clock = Unwoken()
    with fdbqueue.open("memory:", runtime=clock) as db:
        space = Subspace(("q",))
        line = Recipe(QueueKeys(space), codec_named("json")).line
        registered(db, line, b"the first", round((clock.now() + 1000) * 1_000_000))
        assert Queue(space).dequeue(db, timeout=10 * limits.REQUEST_DEADLINE_S) is None
    assert max(clock.waited_s) <= limits.REQUEST_RENEW_S
