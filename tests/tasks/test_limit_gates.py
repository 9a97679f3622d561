"""Limits in one look at ready tasks: a take starts no more tasks than all of them let through."""

from typing import Any

import pytest

from fdbqueue import Database, Limit, TaskQueue, Why, verify
from fdbqueue.core import limits
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock

TENANT, CALLS, WHOLE = "tenant", "calls", "whole"


@pytest.fixture
def keyed(still_db: Database, clock: StillClock) -> MakeBench:
    """A bench of a queue with tasks that name limits, two of them with keys."""

    def make(slots: int = 2, burst: int = 2, **options: Any) -> Bench:
        Limit.set(still_db, TENANT, slots=slots, per_key=True)
        Limit.set(still_db, CALLS, rate=1, per=10, burst=burst, per_key=True)
        Limit.set(still_db, WHOLE, slots=4)
        return Bench(still_db, clock, "fifottl", task_limits=[TENANT, CALLS, WHOLE], **options)

    return make


def test_a_take_starts_a_bounded_number_of_tasks(keyed: MakeBench, set_limits: SetLimits) -> None:
    """Each start under a limit writes a holder, and a transaction has a bound."""
    set_limits(BATCH_HOLDERS_BYTES_MAX=1)
    b = keyed()
    for number in range(3):
        b.put(number, limits=[WHOLE])
    assert len(b.queue.take_many(b.db, 3, session=b.session)) == 1
    assert b.taken_data() == [1, 2]


def test_a_task_with_a_key_counts_as_several_starts(keyed: MakeBench, set_limits: SetLimits) -> None:
    """Each start may park lanes of its key, and writes it several times. A transaction has a bound."""
    set_limits(BATCH_HOLDERS_BYTES_MAX=200 * limits.QUEUE_NAME_BYTES_MAX)
    b, found = keyed(slots=99), []
    for named in ([WHOLE], {TENANT: "a"}, {TENANT: "a" * 5 * limits.KEY_BYTES_OF_A_START}):
        Limit.set(b.db, WHOLE, slots=99)
        b.queue.put_many(b.db, range(99), limits=named)
        found.append(len(b.queue.take_many(b.db, 99, session=b.session)))
        b.queue.truncate(b.db)
        b.sweep()
    assert found[0] < 99
    assert found[1] == -(-found[0] // limits.STARTS_OF_A_KEYED_ONE)
    assert found[2] == -(-found[0] // (2 * limits.STARTS_OF_A_KEYED_ONE))


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("length", [730, 980])
def test_ends_of_many_keys_fit_into_a_transaction(still_db: Database, clock: StillClock, length: int) -> None:
    """Each key has lanes in other partitions. Its end opens one of them, or leaves all to sweeps."""
    Limit.set(still_db, TENANT, slots=1, per_key=True)
    b = Bench(still_db, clock, "fifo", task_limits=[TENANT], partitions=6)
    keys = [f"{number}".ljust(length, "k") for number in range(limits.VERB_BATCH)]
    for key in keys:
        b.put("first", limits={TENANT: key})
    while b.queue.take_many(b.db, 99, session=b.session):
        pass
    for _ in range(5):  # in turn: a key comes into each partition
        for number, key in enumerate([*keys, "odd"]):
            b.put(number, limits={TENANT: key})

    b.queue.release_all(b.db)

    statistics = b.queue.statistics(b.db)["tasks"]
    assert (statistics["taken"], statistics["ready"]) == (0, 6 * limits.VERB_BATCH + 5)
    assert verify(b.db).findings == ()


def test_a_batch_under_a_limit_that_ignores_its_key_counts(keyed: MakeBench) -> None:
    """A look that lets more tasks through conflicts with itself, in each attempt."""
    b = keyed()
    for number in range(6):
        b.put(number, limits={WHOLE: "a"})
    tr = begin(b.db)
    assert len(b.queue.take_many(tr, 6, session=b.session)) == 4
    assert commit_code(tr) == 0


def test_two_starts_with_tokens_of_one_key_conflict(keyed: MakeBench) -> None:
    """Each leaves a token, and stores the time of the bucket."""
    b = keyed(burst=3)
    other = TaskQueue.create(b.db, "other", "fifottl", task_limits=[CALLS])
    for queue in (b.queue, other):
        queue.put(b.db, "x", limits={CALLS: "a"})
    together = [begin(b.db) for _ in "ab"]
    for queue, tr in zip((b.queue, other), together, strict=True):
        assert queue.take(tr, session=b.session) is not None
    assert [commit_code(tr) for tr in together] == [0, NOT_COMMITTED]
    assert Limit.open_key(b.db, CALLS, "a").free == 2


def test_an_explanation_tells_a_limit_named_without_the_key(keyed: MakeBench) -> None:
    """The task names another limit with a key, and under that one it may start."""
    b = keyed()
    Limit.set(b.db, CALLS, rate=1, per=10, burst=2, per_key=True)
    for number in range(3):
        b.put(number, limits={TENANT: f"k{number}", CALLS: None})
    assert len(b.taken_data()) == 2
    [waits] = b.queue.tasks(b.db, "r", 9)
    found = b.queue.explain(b.db, waits)
    assert found.reasons[0].why == Why.LIMIT_REACHED
    assert [(one.name, one.key) for one in found.reached] == [(CALLS, None)]


def test_the_delete_of_a_limit_conflicts_with_a_new_queue(keyed: MakeBench) -> None:
    """A queue names limits that exist when it is created."""
    b = keyed()
    tr = begin(b.db)
    TaskQueue.create(tr, "other", limits=[WHOLE])
    Limit.delete(b.db, WHOLE)
    assert commit_code(tr) == NOT_COMMITTED


def test_a_walk_keeps_the_slots_of_tasks_in_all_partitions(keyed: MakeBench) -> None:
    b = keyed(1, partitions=3)
    for number in range(6):
        b.put(number, limits={TENANT: number})
    assert len(b.taken_data()) == 6
    Limit.set(b.db, TENANT, slots=1, per_key=True)
    for _ in range(3):
        b.sweep()
    assert Limit.open(b.db, TENANT).used == 6
