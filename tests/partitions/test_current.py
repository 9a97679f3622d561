"""The plan that a process goes by: it is a stored one, and that of the database of the call."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue, transactional, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueDropped, RepartitionNotCommitted
from fdbqueue.core.line.decision import Look, Reason
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.partitions import PartitionGone
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.calls import calls_of
from tests.queue_support import registered
from tests.support import NOT_COMMITTED, ManualClock, begin, commit_code

Made = tuple[Any, Callable[..., Any]]
RETRIES = 9
"""More than a call needs that follows a plan."""


@pytest.fixture(params=["tasks", "items"])
def made(request: pytest.FixtureRequest, db: Database, space: Subspace) -> Made:
    """A queue, and its put."""
    if request.param == "items":
        items = Queue.named(db, "q", root=space)
        return items, items.enqueue
    tasks = TaskQueue.create(db, "q", "fifo", root=space)
    return tasks, tasks.put


def counts(queue: Any) -> Callable[..., int]:
    """The number of partitions, in a few attempts."""
    return transactional(retry_limit=RETRIES)(lambda tr: len(queue.partitions(tr)))


def stored(db: Database, space: Subspace) -> dict[bytes, bytes]:
    return {bytes(row.key): bytes(row.value) for row in db.get_range_startswith(space.key())}


def restore(db: Database, space: Subspace, backup: dict[bytes, bytes]) -> None:
    @transactional
    def body(tr: Any) -> None:
        tr.clear_range_startswith(space.key())
        for key, value in backup.items():
            tr[key] = value

    body(db)


def test_a_call_after_a_repartition_is_refused(db: Database, made: Made) -> None:
    """In one transaction: without the error, every retry would conflict."""
    queue, put = made

    @transactional(retry_limit=RETRIES)
    def body(tr: Any) -> None:
        queue.repartition(tr, 4)
        put(tr, 1)

    with pytest.raises(RepartitionNotCommitted, match="'q'") as refused:
        body(db)
    assert refused.value.name == "q"  # type: ignore[attr-defined]
    assert counts(queue)(db) == 1
    queue.repartition(db, 2)
    put(db, 1)
    assert counts(queue)(db) == 2


def test_a_repartition_in_a_transaction_is_followed(db: Database, made: Made) -> None:
    queue, put = made
    transactional(retry_limit=RETRIES)(queue.repartition)(db, 4)
    put(db, 1)
    assert counts(queue)(db) == 4


def test_the_end_of_a_partition_conflicts_with_an_enqueue(db: Database, space: Subspace) -> None:
    """The enqueue goes by the plan before, which has that partition."""
    queue = Queue.named(db, "q", partitions=4, root=space)
    ending = begin(db)
    for value in range(4):
        queue.enqueue(db, value)
    queue.repartition(ending, 1)
    assert commit_code(ending) == NOT_COMMITTED
    assert queue.size(db) == 4


def test_a_value_on_its_way_to_a_call_keeps_its_partition(db: Database, space: Subspace) -> None:
    """The call is that of a dead process, and the partition has nothing else."""
    clock = ManualClock(db.runtime.now())
    now = Database(db.engine, clock)
    queue, now_us = Queue.named(now, "q", partitions=2, root=space), clock.now_us()
    queue.enqueue_many(now, range(8))
    for value in range(8, 16):
        queue.enqueue(now, value)
    line = queue._recipe.part(1).line
    tickets = [registered(now, line, rid, now_us) for rid in (b"dead", b"server")]
    turn = run(now, lambda tr: line.look(tr, tickets[1], Look(now_us, Reason.NEGLECT)))
    given = [*turn.answers, *all_of(queue, now)]
    assert len(given) == 15
    queue.repartition(now, 1)
    clock.advance(2 * limits.REQUEST_DEADLINE_S)
    assert sorted([*given, *all_of(queue, now)]) == [*range(16)]


def all_of(queue: Queue, db: Database) -> list[Any]:
    given = list[Any]()
    while found := queue.dequeue_many(db, 20):
        given += found
    return given


def test_a_repartition_changes_no_later_queue_of_the_name(db: Database, space: Subspace) -> None:
    old = Queue.named(db, "q", root=space)
    Registry(space).drop(db, "q")
    later = Queue.named(db, "q", root=space)
    with pytest.raises(QueueDropped):
        old.repartition(db, 3)
    assert len(later.partitions(db)) == 1


def test_a_partition_that_ends_leaves_no_key(db: Database, space: Subspace) -> None:
    """Its flag is there until a take finds nothing."""
    queue = Queue.named(db, "q", partitions=4, root=space)
    for value in range(4):
        queue.enqueue(db, value)
    for _ in range(4):
        queue.dequeue(db)
    queue.repartition(db, 1)
    assert len(queue.partitions(db)) == 1
    assert verify(db, queue, root=space).findings == ()
    assert queue.peek(db, "nothing") == "nothing"


def test_no_request_joins_the_first_partition_behind_the_plan(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space, partitions=3)
    line = calls_of(db, queue._shape).parts.part(2).line
    queue.repartition(db, 2)
    while len(queue.partitions(db)) > 2:
        keeper_of(db, RootKeys(space)).tick()
    with pytest.raises(PartitionGone):
        run(db, lambda tr: line.register(tr, b"late", 1, b"", db.runtime.now_us()))


def test_a_wait_that_follows_a_repartition_keeps_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = ManualClock(), list[float]()

    def wait(_: Takes, timeout_s: float, *__: object) -> Sequence[object]:
        waits.append(timeout_s)
        clock.advance(7)
        queue.repartition(db, 2)
        queue.size(db)  # the process learns the plan
        return ()

    monkeypatch.setattr(Takes, "wait", wait)
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = Queue.named(db, "q")
        assert queue.dequeue(db, timeout=10) is None
    assert [round(timeout_s) for timeout_s in waits] == [10, 3]


def test_a_restored_plan_needs_no_later_commit(db: Database, space: Subspace, made: Made) -> None:
    """The retry of a call may read the version of its first attempt."""
    queue, _ = made
    backup = stored(db, space)
    queue.repartition(db, 4)
    is_items = isinstance(queue, Queue)
    opened = Queue.named(db, "q", root=space) if is_items else TaskQueue.open(db, "q", root=space)
    restore(db, space, backup)
    assert counts(opened)(db) == 1


@pytest.mark.parametrize("kind", ["tasks", "items"])
def test_a_transaction_goes_by_the_plan_of_its_database(kind: str) -> None:
    """Given a database and given a transaction."""
    with fdbqueue.open("memory:") as one, fdbqueue.open("memory:") as other:
        queue, put = made_in(one, kind)
        made_in(other, kind)
        put_within = transactional(retry_limit=RETRIES)(put)
        for db, count in ((one, 4), (other, 8), (one, 2)):
            queue.repartition(db, count)
            for _ in range(3):
                put_within(one, 1)
                put_within(other, 1)
        assert [counts(queue)(db) for db in (one, other)] == [4, 8]
        sizes = [sum(part.ready for part in queue.partitions(db)) for db in (one, other)]
        assert sizes == [9, 9]


def made_in(db: Database, kind: str) -> Made:
    if kind == "items":
        items = Queue.named(db, "q")
        return items, items.enqueue
    tasks = TaskQueue.create(db, "q", "fifo")
    return tasks, tasks.put


@pytest.mark.parametrize("verb", ["take", "repartition", "statistics"])
def test_verbs_within_another_database_work(verb: str) -> None:
    with fdbqueue.open("memory:") as one, fdbqueue.open("memory:") as other:
        tasks, _ = made_in(one, "tasks")
        twin, put = made_in(other, "tasks")
        put(other, 1)

        @transactional(retry_limit=RETRIES)
        def body(tr: Any) -> Any:
            return {
                "take": lambda: tasks.ack(tr, tasks.take(tr)).data,
                "repartition": lambda: tasks.repartition(tr, 4).partitions,
                "statistics": lambda: tasks.statistics(tr)["tasks"]["ready"],
            }[verb]()

        assert body(other) == {"take": 1, "repartition": 4, "statistics": 1}[verb]
        assert tasks.statistics(one)["calls"]["put"] == 0
        assert len(twin.partitions(other)) == (4 if verb == "repartition" else 1)
