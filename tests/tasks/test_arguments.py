"""One rule for numbers: every public call, each of its numbers, and the values on both sides of the rule."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.errors import InvalidArgument, InvalidSchema
from fdbqueue.fleet.outcomes import Retry
from tests.tasks.support import Bench, MakeBench

SPACE = Subspace(("arguments",))
HUGE = 10**400
NO_NUMBERS = (True, False, math.nan, "1", b"1", [1], 1j)
NOT_WHOLE = (True, False, 0.0, math.nan, -1)

Call = Callable[[Bench, Any], Any]

SPANS: dict[str, Call] = {
    "put ttl": lambda b, s: b.queue.put(b.db, 1, ttl=s),
    "put ttr": lambda b, s: b.queue.put(b.db, 1, ttr=s),
    "put_many ttl": lambda b, s: b.queue.put_many(b.db, [1], ttl=s),
    "create ttl": lambda b, s: created(b, "fifottl", ttl=s).put(b.db, 1),
    "create ttr": lambda b, s: created(b, "fifottl", ttr=s).put(b.db, 1),
    "Session ttr": lambda b, s: fdbqueue.Session(b.db, ttr=s).end(),
    "PersistentQueue ttr": lambda b, s: fdbqueue.PersistentQueue(b.db, "kept", ttr=s).close(),
    "Worker session_ttr_s": lambda b, s: fdbqueue.Worker(b.db, b.queue, print, session_ttr_s=s),
    "Worker timeout_s": lambda b, s: fdbqueue.Worker(b.db, b.queue, print, timeout_s=s),
}
TIMEOUTS: dict[str, Call] = {
    "TaskQueue.put": lambda b, s: b.queue.put(b.db, 1, timeout=s),
    "TaskQueue.put_many": lambda b, s: b.queue.put_many(b.db, [1], timeout=s),
    "Queue.dequeue": lambda b, s: with_an_item(b).dequeue(b.db, timeout=s),
    "FairQueue.get": lambda b, s: fair_with_an_item(b).get(b.db, timeout=s),
    "FairQueue.take_item": lambda b, s: fair_with_an_item(b).take_item(b.db, timeout=s),
    "PersistentQueue.put": lambda b, s: fdbqueue.PersistentQueue(b.db, "kept").put(1, timeout=s),
    "PersistentQueue.get": lambda b, s: kept_with_an_item(b).get(timeout=s),
    "Holder.wait": lambda b, s: with_an_item(b).holder(b.db).wait(s),
    "Worker.join": lambda b, s: ended_worker(b).join(s),
    "transactional": lambda b, s: fdbqueue.transactional(looked, timeout_s=s)(b.db),
}
DELAYS: dict[str, Call] = {
    "put": lambda b, s: b.queue.put(b.db, 1, delay=s),
    "release": lambda b, s: b.queue.release(b.db, taken(b), delay=s),
    "defer": lambda b, s: b.queue.defer(b.db, taken(b), s),
    "Retry": lambda _, s: Retry(s),
    "Snooze": lambda _, s: fdbqueue.Snooze(s),
}
COUNTS: dict[str, Call] = {
    "take_many": lambda b, n: b.queue.take_many(b.db, n),
    "tasks": lambda b, n: b.queue.tasks(b.db, "r", n),
    "release_some": lambda b, n: b.queue.release_some(b.db, n),
    "truncate_some": lambda b, n: b.queue.truncate_some(b.db, n),
    "key_statistics": lambda b, n: keyed(b).key_statistics(b.db, n),
    "exhaust": lambda b, n: b.queue.exhaust(b.db, taken(b), n),
    "dequeue_many": lambda b, n: with_an_item(b).dequeue_many(b.db, n),
    "items": lambda b, n: with_an_item(b).items(b.db, n),
    "hold": lambda b, n: with_an_item(b).holder(b.db).hold(n),
    "put cost": lambda b, n: keyed(b).put(b.db, 1, cost=n),
    "FairQueue.put cost": lambda b, n: fair_with_an_item(b).put(b.db, 1, cost=n),
    "FairQueue.key_statistics": lambda b, n: fair_with_an_item(b).key_statistics(b.db, n),
    "key_concurrency": lambda b, n: fdbqueue.TaskQueue.create(b.db, "new", "utube", key_concurrency=n),
    "weights": lambda b, n: fdbqueue.TaskQueue.create(b.db, "new", "fair", weights={"a": n}),
    "Worker threads": lambda b, n: fdbqueue.Worker(b.db, b.queue, print, threads=n),
    "Worker weight": lambda b, n: fdbqueue.Worker(b.db, {"bench": n}, print),
    "Fleet processes": lambda _, n: fdbqueue.Fleet("memory:", "bench", "a:b", processes=n),
    "Fleet threads": lambda _, n: fdbqueue.Fleet("memory:", "bench", "a:b", threads=n),
    "Fleet recycle_tasks": lambda _, n: fdbqueue.Fleet("memory:", "bench", "a:b", recycle_tasks=n),
}
ATTEMPTS: dict[str, Call] = {
    "put": lambda b, n: b.queue.put(b.db, 1, attempts=n),
    "put_many": lambda b, n: b.queue.put_many(b.db, [1], attempts=n),
    "create": lambda b, n: created(b, "fifo", attempts=n),
    "Schedule": lambda b, n: scheduled(b, attempts=n),
    "Worker": lambda b, n: fdbqueue.Worker(b.db, b.queue, print, attempts=n),
}
BACKOFFS: dict[str, Call] = {
    "put": lambda b, n: b.queue.put(b.db, 1, backoff=n),
    "put_many": lambda b, n: b.queue.put_many(b.db, [1], backoff=n),
    "create": lambda b, n: created(b, "fifo", backoff=n),
    "Schedule": lambda b, n: scheduled(b, backoff=n),
    "Worker": lambda b, n: fdbqueue.Worker(b.db, b.queue, print, backoff=n),
}
LENGTHS: dict[str, Call] = {
    "Worker grace_s": lambda b, s: fdbqueue.Worker(b.db, b.queue, print, grace_s=s),
    "Fleet grace_s": lambda _, s: fdbqueue.Fleet("memory:", "bench", "a:b", grace_s=s),
    "Backoff first_s": lambda _, s: fdbqueue.Backoff(first_s=s),
    "Backoff cap_s": lambda _, s: fdbqueue.Backoff(cap_s=s),
    "purge maxlock": lambda b, s: fdbqueue.SimpleElementQueue(SPACE).purge(b.db, maxlock=s),
    "purge maxtemp": lambda b, s: fdbqueue.SimpleElementQueue(SPACE).purge(b.db, maxtemp=s),
}


WRONG: list[tuple[str, Call, Sequence[Any]]] = [
    ("timeout", lambda b, s: b.take(s), NO_NUMBERS),
    ("timeout", lambda b, s: fdbqueue.transactional(b.queue.take, parameter="tr")(b.db, s), NO_NUMBERS),
    ("increment", lambda b, s: b.queue.touch(b.db, taken(b), s), (0, -1, math.inf, *NO_NUMBERS)),
    ("pri", lambda b, n: b.put(1, pri=n), (-1, 2**32, 1.0)),
    ("delay", lambda b, s: b.put(1, delay=s), (None,)),
    ("result_ttl", lambda b, s: b.put(1, result_ttl=s), (0, -1, *NO_NUMBERS)),
    ("fraction", lambda b, n: b.queue.progress(b.db, taken(b), n), (-0.1, 1.1, math.inf, None, *NO_NUMBERS)),
    ("capacity", lambda b, n: created(b, "limfifottl", capacity=n), NOT_WHOLE),
    ("pri", lambda b, n: created(b, "limfifottl", pri=n), NOT_WHOLE),
    ("key_concurrency", lambda b, n: created(b, "utubettl", key_concurrency=n), NOT_WHOLE),
    ("result_ttl", lambda b, s: created(b, "fifo", result_ttl=s), (0, -1, math.inf, *NO_NUMBERS)),
    ("retain_s", lambda b, s: created(b, "fifo", retain_s=s), (0, -1, math.inf, 4e9, *NO_NUMBERS)),
    ("maxsize", lambda b, n: fdbqueue.PersistentQueue(b.db, "kept", n), (1.0, math.inf, *NO_NUMBERS)),
    ("maxelts", lambda _, n: fdbqueue.ElementQueue(SPACE, {"a": "string"}, maxelts=n), (0, -1)),
    ("growth", lambda _, n: fdbqueue.Backoff(growth=n), (0, 0.5, math.inf, HUGE, *NO_NUMBERS)),
    (
        "recycle_mb",
        lambda _, n: fdbqueue.Fleet("memory:", "bench", "a:b", recycle_mb=n),
        (0, -1, math.inf, *NO_NUMBERS),
    ),
    ("session_ttr_s", lambda _, s: fdbqueue.open("memory:", session_ttr_s=s), (0, -1, *NO_NUMBERS)),
]
"""What the error names, a call, and numbers that it refuses."""


def scheduled(b: Bench, **options: Any) -> fdbqueue.Schedule:
    return fdbqueue.Schedule.create(b.db, "s", queue=b.queue.name, every=9, if_exists="change", **options)


def looked(tr: Any) -> None:
    tr.get(b"key").wait()


def with_an_item(b: Bench) -> fdbqueue.Queue:
    queue = fdbqueue.Queue.named(b.db, "plain")
    queue.enqueue(b.db, 1)
    return queue


def fair_with_an_item(b: Bench) -> fdbqueue.FairQueue:
    queue = fdbqueue.FairQueue(SPACE["fair"], key=str)
    queue.put(b.db, 1)
    return queue


def ended_worker(b: Bench) -> fdbqueue.Worker:
    worker = fdbqueue.Worker(b.db, b.queue, print)
    worker._ended.set()
    return worker


def kept_with_an_item(b: Bench) -> fdbqueue.PersistentQueue:
    queue = fdbqueue.PersistentQueue(b.db, "kept")
    queue.put(1)
    return queue


def created(b: Bench, kind: str, **options: Any) -> fdbqueue.TaskQueue:
    return fdbqueue.TaskQueue.create(b.db, str(options)[:99], kind, **options)


def keyed(b: Bench) -> fdbqueue.TaskQueue:
    return fdbqueue.TaskQueue.create(b.db, "keyed", "fair", if_not_exists=True)


def taken(b: Bench) -> fdbqueue.Task:
    b.put(1)
    task: fdbqueue.Task = b.take()
    return task


@pytest.fixture
def b(bench: MakeBench) -> Bench:
    return bench("limfifottl", capacity=9_999)


@pytest.mark.parametrize(("told", "call", "values"), WRONG)
def test_a_wrong_number_is_refused_by_its_name(
    b: Bench, told: str, call: Call, values: Sequence[Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidArgument, match=told):
            call(b, value)


def each(calls: dict[str, Call]) -> Any:
    return pytest.mark.parametrize("call", calls.values(), ids=calls)


def accepted(b: Bench, call: Call, *values: Any) -> list[Any]:
    """Those of `values` that the call does not refuse."""
    return [value for value in values if not is_refused(b, call, value)]


def is_refused(b: Bench, call: Call, value: Any) -> bool:
    try:
        call(b, value)
    except InvalidArgument:
        return True
    return False


@each(SPANS)
def test_a_span_is_above_0(b: Bench, call: Call) -> None:
    assert accepted(b, call, 0, -1, -math.inf, *NO_NUMBERS) == []


@each(SPANS)
def test_inf_is_for_ever_in_a_span(b: Bench, call: Call) -> None:
    for given in (math.inf, 1e12, HUGE, 1, 0.5):
        call(b, given)


@pytest.mark.parametrize("seconds", [1e-9, 5e-324])
def test_a_span_never_rounds_to_0(b: Bench, seconds: float) -> None:
    b.clock.now = lambda: 1_000_000.0  # type: ignore[method-assign]
    assert b.queue.put(b.db, 1, ttl=seconds).expires == 1_000_000.000001


@each(TIMEOUTS)
def test_a_timeout_is_not_negative(b: Bench, call: Call) -> None:
    assert accepted(b, call, -1, -math.inf, *NO_NUMBERS) == []


@each(TIMEOUTS)
def test_inf_is_for_ever_in_a_timeout(b: Bench, call: Call) -> None:
    for given in (0, 0.5, math.inf, HUGE):
        call(b, given)


@pytest.mark.parametrize("timeout", [0, -1, -0.5, -math.inf, -HUGE])
def test_a_take_with_a_timeout_of_0_or_less_tries_once(b: Bench, timeout: float) -> None:
    before = b.clock.now()
    assert b.take(timeout) is None
    assert b.queue.take_many(b.db, 3, timeout, session=b.session) == []
    assert b.clock.now() == before


@pytest.mark.parametrize("timeout", [None, math.inf, HUGE])
def test_a_take_waits_for_ever_where_its_timeout_is_inf(b: Bench, timeout: float | None) -> None:
    b.put(1)
    task = b.take(timeout)  # type: ignore[arg-type]
    b.queue.release(b.db, task, delay=999)
    assert b.take(timeout).data == 1  # type: ignore[arg-type]


@each(DELAYS)
def test_a_delay_is_finite(b: Bench, call: Call) -> None:
    assert accepted(b, call, math.inf, -math.inf, HUGE, 1e10, *NO_NUMBERS) == []


@each(DELAYS)
def test_a_negative_delay_counts_as_0(b: Bench, call: Call) -> None:
    for given in (0, -1, -1e308, -HUGE):
        result = call(b, given)
        assert (
            result.delay == 0
            if isinstance(result, Retry | fdbqueue.Snooze)
            else result.state is fdbqueue.TaskState.READY
        )


def test_a_delay_that_is_over_needs_no_support_of_the_kind(bench: MakeBench) -> None:
    b = bench("fifo")
    assert b.queue.put(b.db, 1, delay=-5).state is fdbqueue.TaskState.READY
    assert b.queue.release(b.db, b.take(), delay=-5).state is fdbqueue.TaskState.READY


@each(COUNTS)
def test_a_count_is_whole_and_1_or_more(b: Bench, call: Call) -> None:
    assert accepted(b, call, 0, -1, 1.0, math.inf, *NO_NUMBERS) == []


@each(ATTEMPTS)
def test_attempts_are_a_count_or_inf(b: Bench, call: Call) -> None:
    assert accepted(b, call, 0, -1, 1.0, -math.inf, 1_000_001, HUGE, math.inf, *NO_NUMBERS) == [math.inf]


@each(BACKOFFS)
def test_a_backoff_is_one(b: Bench, call: Call) -> None:
    assert accepted(b, call, 0, 1.0, "1,600", (1, 2, 3), {"first_s": 1}, fdbqueue.Backoff) == []


def test_the_count_of_a_kick_is_whole_and_0_or_more(b: Bench) -> None:
    assert accepted(b, lambda b, n: b.queue.kick(b.db, n), 0, 1, -1, 1.0, math.inf, *NO_NUMBERS) == [0, 1]


@each(LENGTHS)
def test_any_other_length_of_time_is_finite(b: Bench, call: Call) -> None:
    assert accepted(b, call, -1, math.inf, HUGE, 1e308, *NO_NUMBERS) == []


@pytest.mark.parametrize("schema", [0, False, "", [], (), b""])
def test_a_schema_is_a_mapping_or_none(b: Bench, schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        fdbqueue.ElementQueue(SPACE, schema)
    with pytest.raises(InvalidSchema):
        fdbqueue.ElementQueue.named(b.db, "elements", schema)


@pytest.mark.parametrize(
    "wrong", [{"maxelts": True}, {"rndhex": True}, {"umask": False}, {"rndhex": 1.0}, {"maxelts": 1.0}]
)
def test_an_element_queue_refuses_numbers_that_are_not_whole(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        fdbqueue.ElementQueue(SPACE, {"a": "string"}, **wrong)


def test_a_granularity_of_true_is_refused() -> None:
    with pytest.raises(TypeError):
        fdbqueue.SimpleElementQueue(SPACE, granularity=True)


def test_a_refused_number_leaves_nothing_behind(b: Bench) -> None:
    keyed(b), with_an_item(b), kept_with_an_item(b), fair_with_an_item(b)
    before = b.stored()
    for calls, wrong in ((SPANS, 0), (LENGTHS, -1)):
        for call in calls.values():
            assert is_refused(b, call, wrong)
    assert b.stored() == before
