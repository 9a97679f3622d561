"""Dropping a task queue while dead requests and lapsed leases stand before live ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import Database, Group, Limit, list_queues, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueBusy, TooMuchForOneTransaction
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.records import id_bytes, partition_of
from tests.partitions.support import key_in
from tests.support import NOT_COMMITTED, commit_code
from tests.tasks.partitions import MakeParted
from tests.tasks.support import LONG_S, Bench, MakeBench, SetLimits, StillClock

ONE_LOOK, SEVERAL_LOOKS = 50, limits.VERB_BATCH + 50


def leases(b: Bench, count: int, ttr: float) -> None:
    """Take `count` tasks, each for `ttr` seconds."""
    b.queue.put_many(b.db, range(count), ttr=ttr)
    assert len(b.queue.take_many(b.db, count, session=b.session)) == count


def requests(b: Bench, count: int) -> None:
    """Register `count` requests and leave them to die."""
    line = calls_of(b.db, b.queue._shape).source.line
    now_us = round(b.clock.now() * 1_000_000)
    for _ in range(count):
        rid = b.clock.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run(b.db, partial(line.register, rid=rid, count=1, params=b"", now_us=now_us))


@pytest.mark.parametrize("lapsed", [ONE_LOOK, SEVERAL_LOOKS])
def test_a_live_lease_behind_lapsed_ones_prevents_a_drop(bench: MakeBench, lapsed: int) -> None:
    b = bench("fifottl")
    leases(b, lapsed, ttr=5)
    leases(b, 1, ttr=100)
    b.clock.advance(5)
    assert b.queue.busy(b.db) == "tasks are taken"
    with pytest.raises(QueueBusy, match="taken"):
        b.queue.drop(b.db)
    b.clock.advance(100)
    assert b.queue.busy(b.db) == ""
    b.queue.drop(b.db)
    assert list_queues(b.db) == []
    assert b.contents() == []


@pytest.mark.parametrize("dead", [ONE_LOOK, SEVERAL_LOOKS])
def test_a_live_request_behind_dead_ones_prevents_a_drop(bench: MakeBench, dead: int) -> None:
    b = bench()
    requests(b, dead)
    b.clock.advance(limits.REQUEST_DEADLINE_S + 1)
    requests(b, 1)
    with pytest.raises(QueueBusy, match="waiting"):
        b.queue.drop(b.db)
    b.clock.advance(limits.REQUEST_DEADLINE_S + 1)
    b.queue.drop(b.db)
    assert list_queues(b.db) == []


def test_a_drop_in_a_transaction_refuses_more_than_one_look(bench: MakeBench) -> None:
    b = bench("fifottl")
    leases(b, SEVERAL_LOOKS, ttr=5)
    b.clock.advance(5)
    before = b.stored()
    with pytest.raises(TooMuchForOneTransaction):
        run(b.db, b.queue.drop)
    with pytest.raises(TooMuchForOneTransaction):
        run(b.db, b.queue.busy)
    assert b.stored() == before


def test_a_drop_conflicts_with_the_first_member_of_a_group(bench: MakeBench) -> None:
    """Its count would go with the contents, and the group would wait for the member for ever."""
    b = bench()
    group = Group.create(b.db)
    tr = b.db.create_transaction()
    b.queue.drop(tr)
    group.put(b.db, b.queue, 1)
    assert commit_code(tr) == NOT_COMMITTED


@pytest.mark.parametrize("join", [leases, requests])
def test_a_drop_conflicts_with_a_caller_that_comes_meanwhile(
    bench: MakeBench, join: Callable[..., None]
) -> None:
    b = bench("fifottl")
    leases(b, ONE_LOOK, ttr=5)
    requests(b, ONE_LOOK)
    b.clock.advance(limits.REQUEST_DEADLINE_S + 1)
    tr = b.db.create_transaction()
    b.queue.drop(tr)
    join(b, 1, *([5] if join is leases else []))
    assert commit_code(tr) == NOT_COMMITTED


@pytest.mark.parametrize("partition", range(4))
def test_a_live_lease_behind_a_full_batch_keeps_any_partition(
    parted: MakeParted, set_limits: SetLimits, partition: int
) -> None:
    set_limits(VERB_BATCH=2)
    b = parted("utubettl", partitions=4)
    for nth, ttr_s in enumerate((5, 5, LONG_S)):
        b.put(nth, key=key_in(partition, nth=nth), ttr=ttr_s)
    assert {*b.places().values()} == {partition}
    assert len(b.taken_data()) == 3
    b.clock.advance(6)
    with pytest.raises(QueueBusy, match="taken"):
        b.queue.drop(b.db)


def test_a_request_for_all_partitions_prevents_a_drop(parted: MakeParted) -> None:
    b = parted(partitions=3)
    line = calls_of(b.db, b.queue._shape).parts.wide.line
    now_us = round(b.clock.now() * 1_000_000)
    run(b.db, partial(line.register, rid=b"waiting-call", count=1, params=b"", now_us=now_us))
    assert b.queue.busy(b.db) == "a call is waiting for tasks"
    with pytest.raises(QueueBusy, match="waiting"):
        b.queue.drop(b.db)


@pytest.mark.parametrize("options", [{}, {"partitions": 2}, {"limits": ["some"]}])
def test_a_drop_of_a_damaged_record_leaves_no_key(
    still_db: Database, clock: StillClock, options: dict[str, Any]
) -> None:
    """A look at the taken tasks reads it, and would set it aside behind the drop."""
    Limit.set(still_db, "some", slots=1)
    b = Bench(still_db, clock, "fifo", **options)
    b.put("x")
    taken = b.take()
    id_ = id_bytes(taken.id)
    b.db[b.queue._shape.partition(partition_of(id_)).keys.task(id_)] = b"damaged"

    b.queue.drop(b.db)

    assert verify(b.db).findings == ()
    assert b.contents() == []
    assert Limit.open(b.db, "some").used == 0
