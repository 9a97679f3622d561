"""Steps: the result of a step that is done is kept with its task, and the step is not run again."""

import threading
from typing import Any

import pytest

import fdbqueue
from fdbqueue import transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    DeferredBody,
    InvalidArgument,
    NotTaken,
    PayloadTooLarge,
    PayloadUnreadable,
    PayloadUnsupported,
    StepUnderWay,
    TaskNotFound,
    TooManySteps,
)
from fdbqueue.tasks.stored.records import id_bytes
from tests.tasks.support import Bench, MakeBench, SetLimits


def steps_of(b: Bench) -> list[bytes]:
    """The keys of steps."""
    under = b.queue._shape.keys.all_steps
    return [key for key, _ in b.stored() if under.start <= key < under.stop]


def never(*_: Any) -> None:
    raise AssertionError("the step is done")


def stepped(b: Bench, *names: str, **options: Any) -> Any:
    """A taken task with these steps."""
    b.put("x", **options)
    task = b.take()
    for name in names:
        b.queue.step(b.db, task, name, lambda name=name: f"result of {name}")
    return task


def test_a_step_with_an_empty_result_is_not_one_without(bench: MakeBench) -> None:
    b = bench(codec="bytes")
    b.put(b"x")
    task = b.take()
    assert b.queue.step(b.db, task, "charge", lambda: b"") == b""
    assert b.queue.step(b.db, task, "charge", never) == b""


def test_a_step_that_fails_stores_nothing_and_runs_again(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b)
    with pytest.raises(ZeroDivisionError):
        b.queue.step(b.db, task, "divide", lambda: 1 / 0)
    assert b.queue.step(b.db, task, "divide", lambda: 1) == 1


def test_a_step_in_a_transaction_is_stored_with_its_effect(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    task = b.take()

    @transactional
    def work(tr: Any, fails: bool) -> Any:
        done = b.queue.step(tr, task, "count", lambda tr: tr.add(b"effect", b"\x01") or "done")
        assert b.queue.step(tr, task, "count", never) == done  # its own write
        if fails:
            raise RuntimeError
        return done

    with pytest.raises(RuntimeError):
        work(b.db, fails=True)
    assert (b.queue.steps(b.db, task), b.db[b"effect"]) == ([], None)
    for _ in range(2):
        assert work(b.db, fails=False) == "done"
    assert (b.queue.steps(b.db, task), b.db[b"effect"]) == (["count"], b"\x01")


def test_a_holder_that_has_lost_its_lease_stores_no_step(bench: MakeBench) -> None:
    b = bench("fifottl", ttr=5)
    b.put("x")
    task = b.take()
    with pytest.raises(NotTaken):
        b.queue.step(b.db, task, "slow", lambda: b.clock.advance(6))
    with pytest.raises(NotTaken):
        b.queue.step(b.db, task, "late", never)
    assert steps_of(b) == []


def test_a_step_within_itself_is_refused(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b)
    with pytest.raises(StepUnderWay, match="The step 'a'"):
        b.queue.step(b.db, task, "a", lambda: b.queue.step(b.db, task, "a", never))
    assert b.queue.step(b.db, task, "a", lambda: b.queue.step(b.db, task, "b", lambda: 1)) == 1
    assert b.queue.steps(b.db, task) == ["a", "b"]


def test_a_step_runs_anew_under_a_later_lease(bench: MakeBench) -> None:
    """The handler of the earlier attempt is in that step still, in the same process."""
    b = bench("fifottl", ttr=5)
    b.put("x")
    first = b.take()

    def slow() -> None:
        b.clock.advance(6)
        assert b.queue.step(b.db, b.take(), "a", lambda: "second") == "second"

    with pytest.raises(NotTaken):
        b.queue.step(b.db, first, "a", slow)


def test_two_threads_in_one_step_are_refused(bench: MakeBench) -> None:
    b = bench()
    task, begun, refused = stepped(b), threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert refused.wait(60)
        return "slow"

    thread = threading.Thread(target=b.queue.step, args=(b.db, task, "a", slow))
    thread.start()
    assert begun.wait(60)
    with pytest.raises(StepUnderWay):
        b.queue.step(b.db, task, "a", never)
    refused.set()
    thread.join(60)
    assert b.queue.step(b.db, task, "a", never) == "slow"


def test_a_step_that_another_process_stored_meanwhile_is_refused(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b)
    other = fdbqueue.Database(b.db.engine, b.clock)
    with pytest.raises(StepUnderWay):
        b.queue.step(b.db, task, "a", lambda: b.queue.step(other, task, "a", lambda: "first"))
    assert b.queue.step(b.db, task, "a", never) == "first"


@pytest.mark.parametrize("name", ["", "x" * (limits.STEP_NAME_BYTES_MAX + 1), b"a", 1, None, "\ud800"])
def test_the_name_of_a_step_is_a_short_text(bench: MakeBench, name: Any) -> None:
    b = bench()
    with pytest.raises(InvalidArgument, match="name"):
        b.queue.step(b.db, stepped(b), name, never)


def test_the_function_of_a_step_is_a_plain_one(bench: MakeBench) -> None:
    b = bench()

    async def charge() -> None: ...

    with pytest.raises(DeferredBody):
        b.queue.step(b.db, stepped(b), "a", charge)


def test_names_of_all_lengths_are_kept_apart(bench: MakeBench) -> None:
    b = bench()
    names = ["a", "ab", "b", "é" * (limits.STEP_NAME_BYTES_MAX // 2)]
    task = stepped(b, *names)
    for name in names:
        assert b.queue.step(b.db, task, name, never) == f"result of {name}"
    assert sorted(b.queue.steps(b.db, task)) == names


@pytest.mark.parametrize(
    ("result", "error"),
    [(object(), PayloadUnsupported), ("x" * limits.STEP_BYTES_MAX, PayloadTooLarge)],
    ids=["object", "large"],
)
def test_a_result_of_a_step_that_cannot_be_stored_is_refused(
    bench: MakeBench, result: Any, error: type[Exception]
) -> None:
    b = bench()
    task = stepped(b)
    with pytest.raises(error):
        b.queue.step(b.db, task, "a", lambda: result)
    assert steps_of(b) == []


def test_the_steps_of_a_task_are_bounded(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(STEPS_MAX=2)
    b = bench()
    task = stepped(b, "a", "b")
    with pytest.raises(TooManySteps, match="at most 2 steps"):
        b.queue.step(b.db, task, "c", lambda: None)
    set_limits(STEPS_MAX=9, STEPS_BYTES_MAX=99)
    with pytest.raises(TooManySteps, match="of 99 bytes"):
        b.queue.step(b.db, task, "c", lambda: "x" * 80)
    assert b.queue.steps(b.db, task) == ["a", "b"]


def test_a_step_that_is_refused_writes_nothing(bench: MakeBench, set_limits: SetLimits) -> None:
    """A transaction that goes on behind the refusal commits."""
    set_limits(STEPS_MAX=1)
    b = bench()
    task = stepped(b, "a")

    @transactional
    def refused(tr: Any) -> None:
        with pytest.raises(TooManySteps):
            b.queue.step(tr, task, "b", lambda _: None)

    refused(b.db)
    assert b.queue.steps(b.db, task) == ["a"]


def test_a_damaged_step_raises(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b, "a")
    b.db[b.queue._shape.keys.step(id_bytes(task.id), "a")] = b"no step"
    with pytest.raises(PayloadUnreadable, match="the step 'a'"):
        b.queue.step(b.db, task, "a", never)
    assert fdbqueue.verify(b.db, "bench", mend=True).findings != ()
    assert fdbqueue.verify(b.db, "bench").findings == ()


def test_a_stray_step_is_found_and_mended(bench: MakeBench) -> None:
    b = bench()
    b.db[b.queue._shape.keys.step(id_bytes("0" * 31 + "1"), "a")] = b"\x91\xc0"
    assert len(fdbqueue.verify(b.db, "bench", mend=True).findings) == 1
    assert (fdbqueue.verify(b.db, "bench").findings, steps_of(b)) == ((), [])


def test_the_steps_of_no_task_raise(bench: MakeBench) -> None:
    b = bench()
    with pytest.raises(TaskNotFound):
        b.queue.steps(b.db, "0" * 32)


def test_an_unreadable_task_takes_its_steps_with_it(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b, "a")
    b.db[b.queue._shape.keys.task(id_bytes(task.id))] = b"no record"
    b.queue.delete(b.db, task.id)
    assert steps_of(b) == []


def test_a_later_put_that_replaces_a_task_clears_its_steps(bench: MakeBench) -> None:
    b = bench()
    task = stepped(b, "a", unique="invoice")
    b.queue.release(b.db, task)
    b.put("y", unique="invoice", on_conflict="replace")
    found = b.take()
    assert (found.id, found.data, found.steps, steps_of(b)) == (task.id, "y", 0, [])
