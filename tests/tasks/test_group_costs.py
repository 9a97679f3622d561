"""The costs of groups: round trips and keys, with and without; a drop of a million members."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Group, TaskQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.groups.settling import Settling
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, trips_of
from tests.test_call_counts import calls_of


@pytest.mark.parametrize("partitions", [1, 4])
def test_round_trips_of_calls_on_members(trips: tuple[Database, Trips], partitions: int) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl", partitions=partitions)
    session = fdbqueue.Session(db, ttr=1e9)
    queue.take(db, 0, session=session)  # it chooses its homes
    of = Group.create(db)
    waits = lambda body: trips_of(engine, db, body)[0]  # noqa: E731
    assert waits(lambda tr: queue.put(tr, "x")) == 1
    assert waits(lambda tr: of.put(tr, queue, "x")) == 2
    assert waits(lambda tr: of.put_many(tr, queue, range(50))) == 2
    parent = queue.put(db, "parent")
    assert waits(lambda tr: queue.put(tr, "x", after=parent)) <= 4
    assert waits(of.progress) == 1
    queue.ack(db, queue.take(db, 0, session=session))  # type: ignore[arg-type]
    waited, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
    assert waited <= 2 + 2 * (partitions > 1)
    assert waits(lambda tr: queue.ack(tr, task)) == 1
    assert waits(of.close) == 1


def test_keys_of_calls_on_members(db: Database, space: Any) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    of = Group.create(db, root=space)
    of.put(db, queue, 0)  # the counts are there from now on
    writes = lambda body: written(db, body)  # noqa: E731
    put = writes(lambda tr: queue.put(tr, 1))
    assert writes(lambda tr: of.put(tr, queue, 1)) == put + 4
    two = writes(lambda tr: queue.put_many(tr, [1, 2]))
    assert writes(lambda tr: of.put_many(tr, queue, [1, 2])) == two + 5
    member, plain = of.put(db, queue, 1), queue.put(db, 1)
    delete = writes(lambda tr: queue.delete(tr, plain))
    assert (
        writes(lambda tr: queue.delete(tr, member)) == delete + 5
    )  # one of them clears counts that are zero
    assert writes(of.close) == 2
    assert writes(of.cancel) == 2


def written(db: Database, body: Callable[[Any], object]) -> int:
    """The number of writes of a call in a transaction."""
    tr = Counting(db.create_transaction())
    body(tr)
    tr.commit().wait()
    return tr.writes


class Counting:
    """A transaction that counts its writes."""

    def __init__(self, tr: Any) -> None:
        self._tr = tr
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        self.writes += name in ("set", "clear", "clear_range", "add", "compare_and_clear")
        return getattr(self._tr, name)


def test_puts_and_acks_without_a_group_make_no_more_calls(db: Database, space: Any) -> None:
    """Members in the same queue change nothing for the others."""
    queue = TaskQueue.create(db, "q", root=space)
    queue.put_many(db, range(9))
    plain = [cycle_calls(db, queue) for _ in range(9)]
    queue.put_many(db, range(9))
    Group.create(db, root=space).put_many(db, queue, range(9))
    beside = [cycle_calls(db, queue) for _ in range(9)]
    assert min(beside) <= min(plain)


def cycle_calls(db: Database, queue: TaskQueue) -> int:
    """The calls above the engine of a put, a take and an ack."""

    def cycle() -> None:
        queue.put(db, 1)
        task = queue.take(db, 0)
        assert task is not None
        queue.ack(db, task)

    return calls_of(cycle)[0]


@pytest.mark.slow
def test_a_drop_with_a_million_members_is_one_small_transaction() -> None:
    judge_removal(1_000_000, "drop")


@pytest.mark.parametrize("verb", ["drop", "truncate"])
def test_a_removal_of_all_members_is_one_small_transaction(verb: str) -> None:
    judge_removal(3_000, verb)


def judge_removal(members: int, verb: str) -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        queue, then = TaskQueue.create(db, "q"), TaskQueue.create(db, "then")
        of = Group.create(db, then=(then, "x"))
        for _ in range(0, members, limits.BATCH_ITEMS_MAX):
            of.put_many(db, queue, range(min(members, limits.BATCH_ITEMS_MAX)))
        of.close(db)
        total = of.progress(db).total
        writes = written(db, getattr(queue, verb))
        assert writes <= 20
        assert of.progress(db).left == total
        shared = SharedKeys(queue.contents)
        assert len(list(db.get_range(shared.members.start, shared.members.stop))) == 1
        assert list(db.get_range(shared.all_member.start, shared.all_member.stop)) == []
        settling, steps = Settling(db, RootKeys(DEFAULT_ROOT)), 1
        while transactional(settling.tidy)(db):
            steps += 1
        assert steps <= 4
        assert (of.wait(db, 0).failed, of.progress(db).left) == (total, 0)
        assert [task.data for task in then.tasks(db, "r", 9)] == ["x"]
        assert fdbqueue.verify(db).findings == ()
