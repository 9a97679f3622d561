"""Batches of puts and takes with long keys, headers and names fit into one transaction, or are refused."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Limit, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import TooMuchForOneTransaction
from fdbqueue.core.line.staging import Taken
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.records import id_bytes
from fdbqueue.tasks.verbs import in_batches
from tests.partitions.support import PARTITIONS, bury_in, key_in
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, SetLimits

HEADERS = {"h": "x" * (limits.HEADERS_BYTES_MAX - 10)}
KEY = "k" * (limits.TASK_KEY_BYTES_MAX - 10)
LONGEST: dict[str, Any] = {"key": KEY, "headers": HEADERS}
DATA = "d" * (limits.RECORD_PAYLOAD_BYTES_MAX - 10)
"""As long as data in a record may be."""


@pytest.mark.parametrize("grouped", [False, True])
def test_a_put_of_too_many_bytes_is_refused(db: fdbqueue.Database, space: Any, grouped: bool) -> None:
    queue = TaskQueue.create(db, "q", "fair", root=space)
    group = fdbqueue.Group.create(db, root=space) if grouped else None
    data = [DATA] * limits.BATCH_ITEMS_MAX
    with pytest.raises(TooMuchForOneTransaction) as refused:
        queue.put_many(db, data, group=group, **LONGEST)
    assert refused.value.size_bytes > refused.value.size_bytes_max
    tr = db.create_transaction()
    with pytest.raises(TooMuchForOneTransaction):
        queue.put_many(tr, data, group=group, **LONGEST)
    tr.commit().wait()
    assert queue.statistics(db)["tasks"]["total"] == 0


@pytest.mark.parametrize("kind", ["fair", "utubettl"])
def test_the_largest_put_fits(db: fdbqueue.Database, space: Any, kind: str) -> None:
    queue = TaskQueue.create(db, "q", kind, root=space)
    group, count = fdbqueue.Group.create(db, root=space), limits.BATCH_ITEMS_MAX
    while True:
        try:
            put = queue.put_many(db, [DATA] * count, group=group, **LONGEST)
            break
        except TooMuchForOneTransaction:
            count -= 20
    assert len(put) == count > limits.BATCH_ITEMS_MAX // 2


def test_a_thousand_plain_tasks_with_headers_fit(db: fdbqueue.Database, space: Any) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    assert len(queue.put_many(db, [DATA] * limits.BATCH_ITEMS_MAX, headers=HEADERS)) == 1_000


@pytest.mark.in_turn(4)
def test_a_take_is_cut_short_where_records_are_long(db: fdbqueue.Database, space: Any) -> None:
    queue = TaskQueue.create(db, "q", "fair", root=space)
    for number in range(900):
        unique = f"{number}" + "u" * (limits.TASK_KEY_BYTES_MAX - 20)
        queue.put(db, DATA, unique=unique, scope="queued", **LONGEST)
    taken = queue.take_many(db, limits.BATCH_ITEMS_MAX)
    assert 100 < len(taken) < 900
    assert queue.statistics(db)["tasks"]["taken"] == len(taken)


def test_a_take_under_limits_with_long_names_fits(db: fdbqueue.Database, space: Any) -> None:
    names = [f"{n}" + "n" * (limits.QUEUE_NAME_BYTES_MAX - 1) for n in range(limits.LIMITS_PER_QUEUE_MAX)]
    for name in names:
        Limit.set(db, name, slots=limits.SLOTS_MAX, root=space)
    queue = TaskQueue.create(db, "q" * limits.QUEUE_NAME_BYTES_MAX, limits=names, root=space)
    queue.put_many(db, range(500))
    taken = queue.take_many(db, 500)
    assert 10 < len(taken) < 500
    assert Limit.open(db, names[0], root=space).used == len(taken)
    rest = queue.take_many(db, 1)
    assert len(rest) == 1


def test_a_truncate_gives_many_slots_back_in_few_bytes(db: fdbqueue.Database, space: Any) -> None:
    Limit.set(db, "slots", slots=limits.SLOTS_MAX, root=space)
    queue = TaskQueue.create(db, "q", limits=["slots"], root=space)
    queue.put_many(db, range(500))
    while queue.take_many(db, 500):
        pass
    tr = db.create_transaction()
    queue.truncate(tr)
    assert tr.get_approximate_size().wait() < 10_000
    tr.commit().wait()
    assert Limit.open(db, "slots", root=space).used == 0


def test_a_release_in_a_transaction_counts_all_partitions(parted: MakeParted, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=PARTITIONS)
    b = parted("utube", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        b.put(key=key_in(partition))
    extra = b.put(key=key_in(0, nth=1))
    assert len(b.taken_data()) == PARTITIONS + 1
    with pytest.raises(TooMuchForOneTransaction):
        run(b.db, b.queue.release_all)
    b.queue.release(b.db, extra, session=b.session)
    run(b.db, b.queue.release_all)
    assert b.counts("ready", "taken") == (PARTITIONS + 1, 0)


def test_a_kick_in_a_transaction_counts_all_partitions(parted: MakeParted, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=PARTITIONS - 1)
    b = parted("utube", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        bury_in(b.queue, b.db, partition)
    with pytest.raises(TooMuchForOneTransaction):
        run(b.db, lambda tr: b.queue.kick(tr, PARTITIONS))
    assert run(b.db, lambda tr: b.queue.kick(tr, PARTITIONS - 1)) == PARTITIONS - 1
    assert run(b.db, lambda tr: b.queue.kick(tr, PARTITIONS)) == 1


TOO_LARGE, TOO_OLD = 2101, 1007


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    left = [limits.VERB_BATCH]

    def step(count: int) -> int:
        if count > limits.VERB_BATCH // 4:
            raise FDBError(TOO_LARGE)
        found = min(count, left[0])
        left[0] -= found
        return found

    assert list(in_batches(step)) == [limits.VERB_BATCH // 4] * 4


@pytest.mark.parametrize(("code", "calls"), [(TOO_LARGE, 8), (TOO_OLD, 1)])
def test_a_batch_that_fails_alone_or_otherwise_raises_its_error(code: int, calls: int) -> None:
    asked = []

    def step(count: int) -> int:
        asked.append(count)
        raise FDBError(code)

    with pytest.raises(FDBError):
        next(in_batches(step))
    assert len(asked) == calls


def taken(b: Bench, count: int) -> Taken:
    """The answer to a batch of `count` takes."""
    calls = calls_of(b.db, b.queue._shape)
    taker = calls._taker(calls.source, b.session)
    params = calls._new_params(b.session)
    return run(b.db, lambda tr: taker.take_in_turn(tr, count, params, b.db.runtime.now_us()))


@pytest.fixture(params=["fifottl", "utubettl", "fair", "bag"])
def b(request: pytest.FixtureRequest, bench: MakeBench, set_limits: SetLimits) -> Bench:
    """A queue with two expired tasks before two others, and sweeps of one task each."""
    made = bench(request.param)
    set_limits(DUE_BATCH=1)
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
