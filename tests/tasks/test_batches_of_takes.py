"""Takes of several threads share a transaction: each is told of nothing only if nothing was there for it."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Limit, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.line.take import Taken
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.records.keys import id_bytes
from tests.tasks.support import Bench

MakeBench = Callable[..., Bench]


def taken(b: Bench, count: int) -> Taken:
    """The answer to a batch of `count` takes."""
    calls = calls_of(b.db, b.queue._shape)
    taker = calls._taker(calls.source, b.session)
    params = calls._new_params(b.session)
    return run(b.db, lambda tr: taker.take_in_turn(tr, count, params, b.db.runtime.now_us()))


@pytest.fixture(params=["fifottl", "utubettl", "fair", "bag"])
def b(request: pytest.FixtureRequest, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A queue with two expired tasks before two others, and sweeps of one task each."""
    made = bench(request.param)
    monkeypatch.setattr(limits, "DUE_BATCH", 1)
    for number, ttl in enumerate((1, 1, None, None)):
        made.put(number, ttl=ttl, **({"key": "k"} if made.queue._shape.kind.supports("key") else {}))
    made.clock.advance(2)
    return made


def test_an_expired_task_does_not_end_a_batch(b: Bench) -> None:
    found = taken(b, 2)
    assert len(found.values) < 2 or b.queue.kind == "bag"  # which may begin with the other two
    assert len(found.values) == 2 or found.cut_short or found.is_open


def test_an_unreadable_task_does_not_end_a_batch(bench: MakeBench) -> None:
    b = bench()
    key = b.queue._shape.keys.payload(id_bytes(b.put("x" * limits.RECORD_PAYLOAD_BYTES_MAX)), 0)
    b.db[key] = b"{"
    b.put("a")
    b.put("b")
    found = taken(b, 2)
    assert ([task.data for task in found.values], found.cut_short) == (["a"], True)


def test_a_batch_that_is_answered_whole_is_not_cut_short(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put("x", ttl=1)
    b.put("a")
    b.clock.advance(2)
    found = taken(b, 1)
    assert ([task.data for task in found.values], found.cut_short) == (["a"], False)
    assert not taken(b, 2).is_open


@pytest.mark.parametrize("key", [None, "k"])
def test_a_batch_of_takes_has_no_more_than_the_slots(bench: MakeBench, key: Any) -> None:
    """A limit that does not count keys apart counts tasks that name one, too."""
    db = bench().db
    Limit.set(db, "slow", slots=1)
    queue = TaskQueue.create(db, "limited", "fifottl", task_limits=["slow"])
    for number in range(3):
        queue.put(db, number, limits={"slow": key})
    assert len(queue.take_many(db, 3)) == 1
