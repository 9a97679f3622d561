"""explain() names every reason why a task is not running, and the cure of each."""

import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Explanation, Session, TaskPlace, TaskQueue, Why, limits
from fdbqueue.errors import TaskNotFound
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.task import Failure
from tests.tasks.support import Bench, StillClock

MakeBench = Callable[..., Bench]
KEYS = RootKeys(DEFAULT_ROOT)
HERE = f"{platform.node()}:{os.getpid()}"


def whys(b: Bench, id_: str) -> list[Why]:
    return [reason.why for reason in explained(b, id_).reasons]


def explained(b: Bench, id_: str) -> Explanation:
    return b.queue.explain(b.db, id_)


def test_the_next_task_of_a_queue_without_workers_has_one_reason(bench: MakeBench) -> None:
    b = bench()
    found = explained(b, b.put("x"))
    [reason] = found.reasons
    assert (reason.why, reason.cure) == (Why.NO_WORKER, "fdbqueue work bench MODULE:FUNCTION")
    assert (found.place, found.waiting, found.workers, found.tasks) == (TaskPlace(), 0, 0, 1)
    assert found.task == b.queue.peek(b.db, found.task)


def test_a_pause_comes_before_every_other_reason(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    ids = [b.put("x", delay=5), b.put("y")]
    b.queue.pause(b.db)
    for id_, other in zip(ids, (Why.DELAYED, Why.NO_WORKER), strict=True):
        first, second = explained(b, id_).reasons
        assert (first.why, first.cure, second.why) == (Why.PAUSED, "fdbqueue resume bench", other)


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_the_place_is_the_number_of_tasks_before(bench: MakeBench, kind: str) -> None:
    b = bench(kind=kind)
    ids = [b.put(n) for n in range(5)]
    b.take()
    assert [explained(b, id_).place for id_ in ids[1:]] == [TaskPlace(n) for n in range(4)]
    found = explained(b, ids[4])
    assert found.reasons[0].why == Why.BEHIND
    assert found.reasons[0].text == "There are 3 tasks before it."


def test_a_task_with_a_lower_priority_comes_later(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    last, first = b.put("last", pri=9), b.put("first", pri=1)
    assert explained(b, first).place == TaskPlace(0)
    assert explained(b, last).place == TaskPlace(1)


def test_places_are_counted_up_to_a_bound(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPLAINED_MAX", 3)
    b = bench()
    ids = [b.put(n) for n in range(6)]
    assert explained(b, ids[2]).reasons[0].text == "There are 2 tasks before it."
    assert explained(b, ids[5]).reasons[0].text == "There are 3 or more tasks before it."


def test_a_delay_ends_at_its_time(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    id_ = b.put("x", delay=30)
    b.clock.advance(10)
    [reason] = explained(b, id_).reasons
    assert (reason.why, reason.cure) == (Why.DELAYED, "It is due in 20 s.")
    assert reason.at == b.clock.now() + 20


def test_a_retry_names_the_failure_before_it(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=60)
    id_ = b.put("x")
    b.queue.release(b.db, b.take(), delay=5, failure=Failure("ValueError", "odd"))
    found = explained(b, id_)
    assert found.reasons[0].text == "It is delayed after ValueError: odd."
    assert found.last_failure is not None
    assert found.last_failure.message == "odd"


def test_a_delay_that_nothing_has_swept_is_told(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    id_ = b.put("x", delay=5)
    b.clock.advance(5)
    found = explained(b, id_)
    assert (found.task.state, found.swept) == ("r", False)
    assert [reason.why for reason in found.reasons] == [Why.UNSWEPT, Why.NO_WORKER]
    b.sweep()
    assert whys(b, id_) == [Why.NO_WORKER]


def test_a_taken_task_names_its_process_and_the_end_of_its_lease(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=60)
    id_ = b.put("x")
    b.take()
    b.clock.advance(15)
    found = explained(b, id_)
    [reason] = found.reasons
    assert (reason.why, reason.text) == (Why.TAKEN, f"{HERE} holds it for 15 s.")
    assert reason.cure == "Its handler or its holder ends, or 45 s pass without a renewal."
    assert reason.at == b.clock.now() + 45
    assert found.holder == b.queue.holder(b.db, id_)


def test_a_session_may_die_before_its_lease_ends(bench: MakeBench) -> None:
    b = bench(kind="fifottl", ttr=600)
    id_ = b.put("x")
    b.queue.take(b.db, 0, session=Session(b.db, ttr=30))
    assert explained(b, id_).reasons[0].at == b.clock.now() + 30


def test_a_buried_task_has_the_kick_that_reaches_it(bench: MakeBench) -> None:
    b = bench(kind="fifottl")
    ids = [b.put(n) for n in range(3)]
    for id_ in ids:
        b.queue.bury(b.db, id_, failure=Failure("ValueError", "odd"))
    [reason] = explained(b, ids[1]).reasons
    assert (reason.why, reason.cure) == (Why.BURIED, "fdbqueue kick bench -n 2")
    assert reason.text == "It is buried after ValueError: odd."
    b.queue.kick(b.db, 2)
    assert b.state(ids[1]) == "r"


def test_a_task_of_a_session_that_has_ended_comes_back_by_a_take(bench: MakeBench) -> None:
    b = bench()
    id_ = b.put("x")
    b.take()
    for key in (KEYS.session(b.session.id), KEYS.heartbeat(b.session.id)):
        del b.db[key]
    b.clock.advance(4)
    [reason] = explained(b, id_).reasons
    assert reason.why == Why.HOLDER_ENDED
    assert reason.at == b.clock.now() + limits.REQUEST_DEADLINE_S - 4


@pytest.mark.parametrize("kind", ["utube", "utubettl"])
def test_a_busy_key_names_its_holder(bench: MakeBench, kind: str) -> None:
    b = bench(kind=kind, **({"ttr": 60} if kind == "utubettl" else {}))
    taken, id_, third = (b.put(n, key="a") for n in range(3))
    b.put("other", key="b")
    b.take()
    found = explained(b, id_)
    assert found.reasons[0].why == Why.KEY_BUSY
    assert found.reasons[0].text == f"Its key is busy: {HERE}."
    holder = b.queue.holder(b.db, taken)
    assert holder is not None
    assert found.reasons[0].at == (b.clock.now() + 60 if kind == "utubettl" else holder.dies)
    assert [one.task for one in found.key_holders] == [taken]
    behind = [reason.why for reason in explained(b, third).reasons]
    assert behind[:2] == [Why.KEY_BUSY, Why.KEY_BEHIND]


def test_keys_with_an_earlier_turn_come_first(bench: MakeBench) -> None:
    b = bench(kind="utube")
    for key in "abc":
        b.put(key, key=key)
    id_, second = b.put("x", key="d"), b.put("y", key="d")
    assert explained(b, id_).place == TaskPlace(ahead=3)
    assert explained(b, id_).reasons[0].text == "There are 3 keys before it."
    assert explained(b, second).place == TaskPlace(ahead=3, ahead_in_key=1)


def test_a_fair_queue_tells_the_round_of_a_task(bench: MakeBench) -> None:
    b = bench(kind="fair")
    for n in range(4):
        b.put(n, key="a")
    last = b.put("z", key="a")
    other = b.put("x", key="b")
    b.take()
    place = explained(b, last).place
    assert place is not None
    assert place.round is not None
    assert place.current_round is not None
    assert (place.ahead_in_key, place.round - place.current_round) == (3, 4)
    assert explained(b, other).place == TaskPlace(0, 0, True, place.current_round, place.current_round)


def test_a_missing_task_is_not_found(bench: MakeBench) -> None:
    b = bench()
    task = b.queue.delete(b.db, b.put("x"))
    with pytest.raises(TaskNotFound):
        b.queue.explain(b.db, task)


def test_looking_conflicts_with_nothing(bench: MakeBench) -> None:
    b = bench(kind="utubettl", ttr=60)
    id_, _ = b.put("x", key="a"), b.take()
    tr = b.db.create_transaction()
    b.queue.explain(tr, id_)
    tr[b"other"] = b""
    b.queue.ack(b.db, id_, session=b.session)
    b.put("y", key="a")
    tr.commit().wait()


@pytest.fixture
def memory(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as db:
        yield db


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl", "fair"])
def test_a_call_that_waits_is_told(memory: Database, kind: str, clock: StillClock) -> None:
    queue = TaskQueue.create(memory, "bench", kind)
    id_ = queue.put(memory, "x", **({"key": "a"} if kind not in ("fifo", "fifottl") else {})).id
    line = queue._shape.keys.line
    memory[line + b"\x14" + bytes(22)] = bytes(12)  # a request
    found: Any = queue.explain(memory, id_)
    assert found.waiting == 1
    assert [reason.why for reason in found.reasons] == [Why.NEXT]
    assert found.reasons[0].at == clock.now()
