"""Results: the value of an ack, kept for the task's `result_ttl`, and waits for it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import fdbqueue
from fdbqueue import Database, TaskQueue, aio, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    NoResult,
    PayloadTooLarge,
    PayloadUnreadable,
    PayloadUnsupported,
    QueueDropped,
    WaitStopped,
)
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.options import kind_names
from fdbqueue.tasks.results import Results, Stored, stored_of
from fdbqueue.tasks.stored.records import Extra, Record, id_bytes, new_id, record_of, record_to_bytes
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code
from tests.tasks.support import Bench, MakeBench, SetLimits

LARGE = "x" * (limits.PAYLOAD_PIECE_BYTES_MAX + 1)


def results_of(b: Bench) -> list[bytes]:
    """The keys of results."""
    keys = b.queue._shape.shared
    return [key for key, _ in b.stored() if keys.results.start <= key < keys.result_times.stop]


def acked(b: Bench, result: Any, **options: Any) -> str:
    """The id of a task that was acked with that result."""
    id_ = b.put("x", **{"result_ttl": 60, **options})
    b.queue.ack(b.db, b.take(), result=result)
    return id_


def reason_of(b: Bench, id_: str) -> str:
    with pytest.raises(NoResult) as caught:
        b.queue.result(b.db, id_, 9)
    assert (caught.value.id, caught.value.name) == (id_, "bench")  # type: ignore[attr-defined]
    return str(caught.value).partition("no result: ")[2]


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("result", [None, 0, "done", {"a": [1, None]}, LARGE, ""], ids=lambda r: repr(r)[:9])
def test_a_result_is_the_value_of_the_ack(bench: MakeBench, kind: str, result: Any) -> None:
    b = bench(kind)
    id_ = acked(b, result)
    assert b.queue.result(b.db, id_, 0) == result
    assert transactional(lambda tr: b.queue.result(tr, id_), parameter="tr")(b.db) == result


def test_a_task_without_result_ttl_stores_no_result(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    assert "result_ttl" in reason_of(b, id_)
    b.queue.ack(b.db, b.take(), result=object())
    assert results_of(b) == []
    assert "is not there" in reason_of(b, id_)


def test_a_queue_of_bytes_has_results_of_bytes_and_none(bench: MakeBench) -> None:
    b = bench(codec="bytes")
    for result in (b"\x00", None):
        id_ = b.put(b"x", result_ttl=60)
        b.queue.ack(b.db, b.take(), result=result)
        assert b.queue.result(b.db, id_, 0) == result


def test_the_type_of_a_handle_is_none_of_results(bench: MakeBench) -> None:
    b = bench("fifo", type=int)
    id_ = b.put(7, result_ttl=60)
    b.queue.ack(b.db, b.take(), result={"text": "seven"})
    assert b.queue.result(b.db, id_, 0) == {"text": "seven"}


@pytest.mark.parametrize(
    ("result", "error", "told"),
    [
        (object(), PayloadUnsupported, "cannot carry object at result"),
        ({"a": (1,)}, PayloadUnsupported, "cannot carry tuple at result.*as list$"),
        ("x" * limits.PAYLOAD_BYTES_MAX, PayloadTooLarge, "8000002 bytes"),
    ],
    ids=["object", "tuple", "large"],
)
def test_a_result_that_cannot_be_stored_keeps_the_lease(
    bench: MakeBench, result: Any, error: type[Exception], told: str
) -> None:
    b = bench()
    id_ = b.put("x", result_ttl=60)
    task = b.take()
    with pytest.raises(error, match=told):
        b.queue.ack(b.db, task, result=result)
    assert (b.state(id_), results_of(b)) == ("t", [])


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda b, id_: b.queue.delete(b.db, id_), "it was deleted."),
        (lambda b, id_: b.queue.cancel(b.db, id_), "it was cancelled."),
        (lambda b, _: b.clock.advance(11), "its ttl was over."),
        (lambda b, _: b.clock.advance(11) or b.sweep(), "its ttl was over."),
        (lambda b, _: b.queue.truncate(b.db), "it is not there"),
    ],
    ids=["delete", "cancel", "expiry", "swept", "truncate"],
)
def test_another_end_is_told_in_place_of_a_result(
    bench: MakeBench, end: Callable[[Bench, str], object], told: str
) -> None:
    b = bench("fifottl")
    id_ = b.put("x", result_ttl=60, ttl=10)
    end(b, id_)
    assert reason_of(b, id_).startswith(told)


def test_a_result_is_over_after_its_time_and_swept(bench: MakeBench) -> None:
    b = bench()
    ids = [acked(b, result, result_ttl=10) for result in (1, LARGE)]
    kept = acked(b, 2, result_ttl=100)
    for_ever = acked(b, 3, result_ttl=1e12)
    b.clock.advance(10.1)
    assert {reason_of(b, id_) for id_ in ids} == {"its result_ttl is over."}
    b.sweep()
    assert len(results_of(b)) == 3
    assert {reason_of(b, id_)[:15] for id_ in ids} == {"it is not there"}
    assert [b.queue.result(b.db, id_, 0) for id_ in (kept, for_ever)] == [2, 3]


def test_results_are_swept_in_bounded_steps(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=2)
    b = bench()
    for result in range(5):
        acked(b, result, result_ttl=10)
    b.clock.advance(11)
    b.sweep()
    assert results_of(b) == []


def test_truncate_leaves_results_and_drop_removes_them(bench: MakeBench) -> None:
    b = bench()
    id_ = acked(b, 1)
    b.queue.truncate(b.db)
    assert b.queue.result(b.db, id_, 0) == 1
    b.queue.drop(b.db)
    assert results_of(b) == []
    with pytest.raises(QueueDropped):
        b.queue.result(b.db, id_, 0)


def test_a_damaged_result_raises(bench: MakeBench) -> None:
    b = bench()
    keys = b.queue._shape.shared
    small, large = acked(b, 1), acked(b, LARGE)
    b.db[keys.result(id_bytes(small))] = b"no result"
    b.db.clear(keys.result_piece(id_bytes(large), 1))
    for id_ in (small, large):
        with pytest.raises(PayloadUnreadable):
            b.queue.result(b.db, id_, 0)


@pytest.mark.parametrize("result", [None, 1, LARGE], ids=["none", "small", "large"])
def test_a_forgotten_result_leaves_no_key(bench: MakeBench, result: Any) -> None:
    b = bench()
    id_, other = acked(b, result), acked(b, 2)
    assert b.queue.forget_result(b.db, id_)
    assert len(results_of(b)) == 2
    assert not b.queue.forget_result(b.db, id_)
    assert "forget_result" in reason_of(b, id_)
    assert b.queue.result(b.db, other, 0) == 2


def test_two_sweeps_of_results_do_not_conflict(bench: MakeBench) -> None:
    """They clear the same keys, and nothing counts these."""
    b = bench()
    for result in (1, LARGE):
        acked(b, result)
    b.clock.advance(100)
    source, sweeps = calls_of(b.db, b.queue._shape).source, [begin(b.db), begin(b.db)]
    assert [Results().sweep(source.change(tr).site) for tr in sweeps] == [True, True]
    assert [commit_code(tr) for tr in sweeps] == [0, 0]
    assert results_of(b) == []


def test_a_result_that_is_not_there_to_forget_is_relied_on(bench: MakeBench) -> None:
    b = bench()
    b.put("x", result_ttl=60)
    task, tr = b.take(), begin(b.db)
    assert not b.queue.forget_result(tr, task.id)
    b.queue.put(tr, "there was none")
    b.queue.ack(b.db, task, result=1)
    assert commit_code(tr) == NOT_COMMITTED


def test_a_damaged_result_can_be_forgotten(bench: MakeBench) -> None:
    b = bench()
    id_ = acked(b, 1)
    b.db[b.queue._shape.shared.result(id_bytes(id_))] = b"no result"
    assert b.queue.forget_result(b.db, id_)
    b.clock.advance(100)
    b.sweep()
    assert results_of(b) == []


@pytest.mark.usefixtures("without_looks")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_wait_wakes_at_the_ack(db: Database, space: Any, partitions: int) -> None:
    queue = TaskQueue.create(db, "jobs", "fifottl", ttr=60, partitions=partitions, root=space)
    id_ = queue.put(db, "x", result_ttl=60).id
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(queue.result(db, id_, 100 * PATIENCE_S)))
    thread.start()
    task = queue.take(db, 0)
    assert task is not None
    queue.renew(db, [task])
    queue.ack(db, task, result="done")
    thread.join(20)
    assert found == ["done"]


def test_a_stop_ends_a_wait_for_a_result(db: Database, space: Any) -> None:
    queue = TaskQueue.create(db, "jobs", root=space)
    id_, stop, told = queue.put(db, "x", result_ttl=60).id, db.runtime.event(), []

    def wait() -> None:
        try:
            queue.result(db, id_, stop=stop)
        except WaitStopped:
            told.append("stopped")

    thread = threading.Thread(target=wait)
    thread.start()
    stop.set()
    thread.join(20)
    assert told == ["stopped"]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**62), st.one_of(st.none(), st.binary(max_size=99)))
def test_a_stored_end_comes_back_equal(span_us: int, until_us: int, payload: bytes | None) -> None:
    stored = Stored("acked", until_us, None if payload is None else len(payload), payload or b"")
    assert stored_of(fdbqueue.tasks.results._to_bytes(stored)) == stored
    record = Record(new_id(0, bytes(12)), "r", 0, 0, 0, 0, 0, extra=Extra({}, span_us))
    assert record_of(record_to_bytes(record)) == record


def test_a_result_is_used_and_forgotten_in_one_transaction(bench: MakeBench) -> None:
    b = bench()
    id_ = acked(b, 1)
    together = [begin(b.db), begin(b.db)]
    for tr in together:
        assert b.queue.result(tr, id_) == 1
        assert b.queue.forget_result(tr, id_)
    assert [commit_code(tr) for tr in together] == [0, NOT_COMMITTED]


def test_a_put_without_a_result_ttl_has_that_of_its_queue(bench: MakeBench) -> None:
    b = bench("fifo", result_ttl=60)
    ids = [acked(b, 1, result_ttl=own) for own in (None, 600)]
    assert [b.queue.result(b.db, id_, 0) for id_ in ids] == [1, 1]
    b.clock.advance(61)
    assert reason_of(b, ids[0]) == "its result_ttl is over."
    assert b.queue.result(b.db, ids[1], 0) == 1


@pytest.mark.parametrize("kind", kind_names())
def test_an_altered_result_ttl_is_that_of_later_puts(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    before = b.put("x")
    assert b.queue.alter(b.db, result_ttl=60).changes == {"result_ttl": (None, 60)}
    after, many = b.put("y"), b.queue.put_many(b.db, ["z"])
    assert b.queue.alter(b.db, result_ttl=None).changes == {"result_ttl": (60, None)}
    assert "result_ttl" not in b.queue.options
    told = {id_: b.queue.peek(b.db, id_).result_ttl for id_ in (before, after, many[0].id, b.put("w"))}
    assert [*told.values()] == [None, 60, 60, None]


def test_a_later_put_of_a_unique_key_keeps_the_result_ttl(bench: MakeBench) -> None:
    b = bench("fifo", result_ttl=60)
    id_ = b.put("x", unique="k", result_ttl=600)
    for own, kept in ((None, 600), (30, 30)):
        b.put("y", unique="k", on_conflict="replace", result_ttl=own)
        assert b.queue.peek(b.db, id_).result_ttl == kept


@given(st.integers(0, 9), st.integers(0, 9))
def test_the_result_ttl_of_the_put_goes_before_that_of_the_queue(own: int, queue: int) -> None:
    extra = Extra(result_ttl_us=own, headers={"a": "b"})
    assert edges._with_result(extra, queue) == replace(extra, result_ttl_us=own or queue)
    assert edges._with_result(None, queue) == (Extra(result_ttl_us=queue) if queue else None)


def test_the_awaited_face_has_a_result_ttl_of_the_queue(url: str, space: Any) -> None:
    async def run() -> tuple[Any, Any]:
        async with aio.open(url) as db:
            queue = await aio.TaskQueue.create(db, "sums", result_ttl=60, root=space)
            task = await queue.put(db, [1, 2])
            await queue.ack(db, await queue.take(db, 0), result=3)
            altered = await queue.alter(db, result_ttl=90)
            return await queue.result(db, task), altered.changes

    assert asyncio.run(run()) == (3, {"result_ttl": (60, 90)})
