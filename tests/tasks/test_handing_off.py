"""A task that was handed off waits as if it ran: one complete, fail, or end of its ttl ends it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import (
    Database,
    DeadLetters,
    Failure,
    Group,
    Limit,
    Severity,
    TaskQueue,
    Why,
    diagnose,
    verify,
)
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    InvalidArgument,
    NotHandedOff,
    NotTaken,
    QueueBusy,
    ResultTimeout,
    TaskNotFound,
    UniqueTaskBusy,
)
from fdbqueue.core.page import every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.task import TaskState
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.stored.records import Extra, Handed, without_slots
from tests.queue_support import FATES, faulty
from tests.support import begin, commit_code
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, StillClock

KINDS = ("fifo", "fifottl", "limfifottl", "utube", "utubettl", "fair", "bag")
NONE_LEFT = {"ready": 0, "taken": 0, "buried": 0, "delayed": 0, "total": 0}


def handed_off(b: Bench, data: Any = "x", ttl: float = 100, for_: str | None = None, **options: Any) -> Any:
    """A task as it was taken, which is handed off now."""
    b.put(data, **options)
    task = b.take()
    b.queue.hand_off(b.db, task, ttl, for_=for_)
    return task


def is_sound(db: Database) -> bool:
    return not verify(db).findings


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_of_every_kind_is_handed_off_and_completed(db: Database, space: Subspace, kind: str) -> None:
    queue = TaskQueue.create(db, "q", kind, root=space)
    id_ = queue.put(db, "x").id
    task = queue.take(db, 0)
    assert task is not None
    after = queue.hand_off(db, task, 3600, for_="payment 77")
    assert (after.state, after.handed_to, after.session, after.token) == ("t", "payment 77", None, None)
    assert queue.take(db, 0) is None
    assert not verify(db, root=space).findings
    assert queue.complete(db, id_).state == "-"
    assert queue.statistics(db)["tasks"].items() >= NONE_LEFT.items()
    assert not verify(db, root=space).findings
    db.clear_range_startswith(space.key())


ENDS: dict[str, Callable[[Bench, Any], Any]] = {
    "ack": lambda b, task: b.queue.ack(b.db, task),
    "ack by id": lambda b, task: b.queue.ack(b.db, task.id, session=b.session),
    "release": lambda b, task: b.queue.release(b.db, task),
    "bury": lambda b, task: b.queue.bury(b.db, task),
    "delete": lambda b, task: b.queue.delete(b.db, task),
    "touch": lambda b, task: b.queue.touch(b.db, task, 5),
    "progress": lambda b, task: b.queue.progress(b.db, task, 0.5),
    "step": lambda b, task: b.queue.step(b.db, task, "s", int),
    "a second time": lambda b, task: b.queue.hand_off(b.db, task, 5),
    "ack of a look": lambda b, task: b.queue.ack(b.db, b.queue.peek(b.db, task)),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_old_lease_is_void(bench: MakeBench, end: str) -> None:
    b = bench("fifottl", ttr=60)
    task = handed_off(b)
    before = b.stored()
    with pytest.raises(NotTaken):
        ENDS[end](b, task)
    assert not b.queue.renew(b.db, [task])
    assert b.stored() == before


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_only_a_task_that_is_handed_off_is_completed(bench: MakeBench, verb: str) -> None:
    """A refusal changes nothing."""
    b = bench("fifottl", ttr=1_000)
    call = partial(getattr(b.queue, verb), b.db, **{"reason": "no"} if verb == "fail" else {})
    b.put(0)
    taken, over = b.take().id, handed_off(b, ttl=100).id
    ready, buried, delayed = b.put(1), b.put(2), b.put(3, delay=500)
    b.queue.bury(b.db, buried)
    b.clock.advance(101)
    states = {taken: "taken", ready: "ready", buried: "buried", delayed: "delayed", over: "ready"}
    before = b.stored()
    for id_, state in states.items():
        with pytest.raises(NotHandedOff, match=f"{id_} is {state}, not handed off"):
            call(id_)
    assert b.stored() == before
    b.queue.delete(b.db, ready)
    with pytest.raises(TaskNotFound):
        call(ready)


def test_a_task_without_a_completion_in_time_has_failed_once(bench: MakeBench) -> None:
    """It is ready at once, as after a lost lease; and it is not suspected of killing its worker."""
    b = bench("fifottl", ttr=5)
    task = handed_off(b, ttl=60, for_="Ada")
    b.clock.advance(59)
    b.sweep()
    assert b.state(task.id) == "t"
    b.clock.advance(1)
    b.sweep()
    b.sweep()
    again = b.take()
    assert (again.id, again.attempts, again.failures, again.orphaned, again.handed_to) == (
        task.id,
        2,
        1,
        0,
        None,
    )
    [failure] = b.queue.failures(b.db, task)
    assert (failure.error, failure.attempt) == ("NotCompleted", 1)
    assert failure.message == "nobody completed it within 60 s: it waited for Ada"
    b.queue.ack(b.db, again)
    assert b.counts("ttr", "total") == (1, 0)
    assert is_sound(b.db)


def test_the_end_of_a_hand_off_is_no_death(bench: MakeBench) -> None:
    """The worker that handed it off has lived: the task is no suspect of the deaths before."""
    b = bench("fifottl", ttr=10)
    b.put("x")
    b.take()
    b.clock.advance(11)
    b.sweep()
    task = b.take()
    assert task.orphaned == 1
    b.queue.hand_off(b.db, task, 100)
    b.clock.advance(101)
    b.sweep()
    assert b.take().orphaned == 0


def test_a_ttl_of_the_task_ends_its_hand_off_too(bench: MakeBench) -> None:
    b = bench("fifottl", ttl=30)
    task = handed_off(b, ttl=100)
    b.clock.advance(31)
    b.sweep()
    assert b.counts("total", "ttl") in ((0, 1), (1, 0))
    b.clock.advance(100)
    b.sweep()
    with pytest.raises(TaskNotFound):
        b.queue.complete(b.db, task.id)
    assert b.counts("total", "ttl") == (0, 1)


def test_a_failed_task_waits_for_its_delay(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    assert b.queue.fail(b.db, task, Failure("Declined", "no funds"), delay=10).state == "~"
    assert b.take() is None
    b.clock.advance(10)
    again = b.take()
    assert (again.id, again.failures) == (task.id, 1)
    b.queue.hand_off(b.db, again, 100)
    b.queue.fail(b.db, again.id, "declined")
    assert [(one.error, one.message) for one in b.queue.failures(b.db, task)] == [
        ("Declined", "no funds"),
        ("FailedOutside", "declined"),
    ]
    assert is_sound(b.db)


def test_the_death_of_its_taker_leaves_it_alone(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    b.session.end()
    b.sweep()
    assert b.state(task.id) == "t"
    assert is_sound(b.db)
    b.queue.complete(b.db, task.id)
    assert b.counts("total", "ack") == (0, 1)


def test_it_keeps_its_task_key(bench: MakeBench) -> None:
    b = bench("utubettl")
    task = handed_off(b, "first", key="k", for_="Ada")
    second = b.put("second", key="k")
    assert b.take() is None
    [busy, *_] = b.queue.explain(b.db, second).reasons
    assert (busy.why, busy.text, busy.at) == (
        Why.KEY_BUSY,
        "Its key is busy: the hand-off to Ada.",
        b.clock.now() + 100,
    )
    assert busy.cure == "A taken task of its key ends."
    b.queue.complete(b.db, task.id)
    assert b.taken_data() == ["second"]


@pytest.mark.parametrize("per_key", [False, True])
def test_it_keeps_its_slots(bench: MakeBench, still_db: Database, per_key: bool) -> None:
    """They are held by no session, so a doctor finds no dead one."""
    named = {"limits": {"api": "ada"} if per_key else ["api"]}
    Limit.set(still_db, "api", slots=1, per_key=per_key)
    b = bench("fifo", task_limits=["api"])
    task = handed_off(b, "first", **named)
    waits = b.put("second", **named)
    b.session.end()
    b.clock.advance(90)
    assert b.queue.take(b.db, 0) is None
    assert b.queue.explain(b.db, waits).reasons[0].why == Why.LIMIT_REACHED
    assert is_sound(b.db)
    assert [one.severity for one in diagnose(b.db).checks if one.name == "limits"] == [Severity.FINE]
    b.queue.complete(b.db, task.id)
    taken = b.queue.take(b.db, 0)
    assert taken is not None
    assert taken.data == "second"
    assert is_sound(b.db)


def test_its_group_waits_for_it(bench: MakeBench) -> None:
    b = bench("fifo")
    group = Group.create(b.db)
    group.put(b.db, b.queue, "x")
    group.close(b.db)
    task = b.take()
    b.queue.hand_off(b.db, task, 100)
    b.sweep()
    assert (group.progress(b.db).left, group.progress(b.db).done) == (1, 0)
    b.queue.complete(b.db, task.id)
    b.sweep()
    assert (group.progress(b.db).left, group.progress(b.db).done) == (0, 1)


def test_a_task_after_it_waits_for_its_completion(bench: MakeBench) -> None:
    b = bench("fifottl")
    task = handed_off(b)
    b.put("behind", after=task)
    b.sweep()
    assert b.take() is None
    b.queue.complete(b.db, task.id)
    b.sweep()
    b.sweep()
    assert b.taken_data() == ["behind"]


def test_it_keeps_its_unique_key(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b, unique="k")
    assert b.queue.put(b.db, "y", unique="k").existed
    with pytest.raises(UniqueTaskBusy):
        b.queue.put(b.db, "y", unique="k", on_conflict="replace")
    b.queue.complete(b.db, task.id)
    assert not b.queue.put(b.db, "y", unique="k").existed


def test_its_result_is_that_of_its_completion(bench: MakeBench) -> None:
    b = bench("fifo", retain_s=100)
    task = handed_off(b, result_ttl=50)
    with pytest.raises(ResultTimeout, match="taken"):
        b.queue.result(b.db, task, 0)
    b.queue.complete(b.db, task.id, {"paid": 7})
    assert b.queue.result(b.db, task, 0) == {"paid": 7}
    ended = b.queue.ended_task(b.db, task)
    assert (ended.outcome, ended.session, ended.taken) == ("acked", None, task.taken)


def test_its_steps_are_those_of_the_next_attempt(bench: MakeBench) -> None:
    b = bench("fifo")
    b.put("x")
    task = b.take()
    b.queue.step(b.db, task, "charge", lambda: 7)
    b.queue.hand_off(b.db, task, 100)
    assert b.queue.steps(b.db, task) == ["charge"]
    b.queue.fail(b.db, task.id, "lost")
    again = b.take()
    assert b.queue.step(b.db, again, "charge", lambda: 8) == 7
    b.queue.hand_off(b.db, again, 100)
    b.queue.complete(b.db, again.id)
    assert b.contents() == []


def test_a_burial_of_it_is_a_dead_letter(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    b.queue.bury(b.db, task.id, failure=Failure("Declined"))
    assert [one.error for one in DeadLetters.open(b.db, "bench").classes(b.db)] == ["Declined"]
    assert b.queue.peek(b.db, task.id).handed_to is None
    assert is_sound(b.db)


@pytest.mark.parametrize("of", ["task", "group"])
def test_a_cancel_ends_it_at_once(bench: MakeBench, of: str) -> None:
    """No process runs it, so there is nothing to wait for."""
    b = bench("fifo", retain_s=100)
    group = Group.create(b.db)
    group.put(b.db, b.queue, "x")
    task = b.take()
    b.queue.hand_off(b.db, task, 100)
    if of == "task":
        assert b.queue.cancel(b.db, task.id).state == "-"
    else:
        group.cancel(b.db)
        b.sweep()
    assert b.queue.ended_task(b.db, task).outcome == "cancelled"
    assert b.counts("total", "cancel") == (0, 1)


def test_a_cancelled_task_ends_in_place_of_its_hand_off(bench: MakeBench) -> None:
    b = bench("fifo")
    b.put("x")
    task = b.take()
    b.queue.cancel(b.db, task.id)
    assert b.queue.hand_off(b.db, task, 100).state == "-"
    assert b.counts("total", "cancel") == (0, 1)


def test_its_queue_is_busy_until_its_end(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    assert b.queue.busy(b.db) == "tasks are taken"
    with pytest.raises(QueueBusy):
        b.queue.drop(b.db)
    b.queue.complete(b.db, task.id)
    b.queue.drop(b.db)


def test_release_all_takes_it_back_without_a_failure(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    b.queue.release_all(b.db)
    again = b.take()
    assert (again.id, again.failures, again.handed_to) == (task.id, 0, None)
    with pytest.raises(NotHandedOff):
        b.queue.complete(b.db, task.id)


def test_a_temporary_queue_takes_it_along(bench: MakeBench, still_db: Database) -> None:
    b = bench("fifo")
    queue = TaskQueue.create(still_db, "temporary", "fifo", temporary=True)
    queue.put(still_db, "x")
    task = queue.take(still_db, 0, session=b.session)
    assert task is not None
    queue.hand_off(still_db, task, 100)
    queue._own_session(still_db).end()
    assert queue.statistics(still_db)["tasks"]["total"] == 0


def test_explain_tells_the_text_of_a_hand_off(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b, ttl=90, for_="payment callback 77")
    assert b.queue.holder(b.db, task) is None
    [reason] = b.queue.explain(b.db, task).reasons
    assert (reason.why, reason.at) == (Why.HANDED_OFF, b.clock.now() + 90)
    assert reason.text == "It was handed off, and waits for payment callback 77."
    assert reason.cure == f"fdbqueue complete bench {task.id}"
    [listed] = b.queue.tasks(b.db, TaskState.TAKEN, 9)
    assert (listed.handed_to, listed.until, listed.session) == (
        "payment callback 77",
        b.clock.now() + 90,
        None,
    )
    assert b.counts("taken", "ready") == (1, 0)


def test_a_hand_off_without_a_text_waits_for_the_outside(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    assert b.queue.peek(b.db, task).handed_to == ""
    assert b.queue.explain(b.db, task).reasons[0].text == "It was handed off, and waits for the outside."


@pytest.mark.parametrize("fate", FATES)
def test_each_verb_has_its_effect_once_after_any_commit(
    still_db: Database, clock: StillClock, fate: str
) -> None:
    db, engine = faulty(still_db, FDBError, clock)
    queue = TaskQueue.create(db, "q", "fifo")
    first, second = queue.put(db, 1), queue.put(db, 2)
    taken = queue.take_many(db, 2)
    engine.fate = FATES[fate]
    for task in taken:
        queue.hand_off(db, task, 100)
    queue.complete(db, first)
    queue.fail(db, second, "no")
    engine.fate = FATES["conflict"]
    found = queue.statistics(still_db)
    assert (found["calls"]["ack"], found["calls"]["release"], found["tasks"]["ready"]) == (1, 1, 1)
    assert queue.peek(still_db, second).failures == 1
    db.close()


def test_a_completion_is_a_part_of_its_transaction(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b)
    tr = begin(b.db)
    b.queue.complete(tr, task.id)
    assert b.state(task.id) == "t"
    tr[b"effect"] = b"1"
    assert commit_code(tr) == 0
    assert b.counts("total") == (0,)


@pytest.mark.parametrize("other", ["complete", "fail", "cancel", "the end of its time"])
def test_of_two_ends_at_once_one_commits(bench: MakeBench, other: str) -> None:
    b = bench("fifo")
    task = handed_off(b, ttl=1)
    tr = begin(b.db)
    b.queue.complete(tr, task.id)
    if other == "the end of its time":
        b.clock.advance(1)
        b.sweep()
    else:
        getattr(b.queue, other)(b.db, task.id, *["no"] * (other == "fail"))
    assert commit_code(tr) == 1020
    with pytest.raises((NotHandedOff, TaskNotFound)):
        b.queue.complete(b.db, task.id)


def test_a_task_of_a_partition_is_handed_off_and_completed(parted: MakeParted) -> None:
    b = parted("utubettl", partitions=4)
    ids = [b.queue.put(b.db, n, key=n).id for n in range(8)]
    for task in iter(b.take, None):
        b.queue.hand_off(b.db, task, 100, for_=str(task.data))
    listed = every_row(partial(b.queue.tasks, b.db, TaskState.TAKEN, 20))
    assert sorted(task.handed_to or "" for task in listed) == [str(n) for n in range(8)]
    for id_ in ids:
        b.queue.complete(b.db, id_)
    assert b.queue.statistics(b.db)["tasks"]["total"] == 0


def test_a_repartition_waits_for_it(parted: MakeParted) -> None:
    b = parted("utubettl", partitions=2)
    for n in range(8):
        b.queue.put(b.db, n, key=n)
    tasks = list(iter(b.take, None))
    for task in tasks:
        b.queue.hand_off(b.db, task, 100)
    b.queue.repartition(b.db, 4)
    for n in range(8):
        b.queue.put(b.db, f"behind {n}", key=n)
    assert b.take() is None
    for task in tasks:
        b.queue.complete(b.db, task.id)
    assert len(list(iter(b.take, None))) == 8


NO_TTL = (0, -1, None, "x", True, float("inf"), float("nan"))
NO_TEXT = ("", 7, b"x", "x" * 257, "\ud800")
NO_REASON = ("", None, 7, b"x")
BAD: list[tuple[str, Callable[[TaskQueue, Any, Any], Any]]] = [
    *[("ttl", lambda q, db, task, ttl=ttl: q.hand_off(db, task, ttl)) for ttl in NO_TTL],
    *[("for_", lambda q, db, task, text=text: q.hand_off(db, task, 1, for_=text)) for text in NO_TEXT],
    *[("reason", lambda q, db, task, reason=reason: q.fail(db, task, reason)) for reason in NO_REASON],
    ("delay", lambda q, db, task: q.fail(db, task, "x", delay="soon")),
    ("task", lambda q, db, _: q.complete(db, "x")),
    ("task", lambda q, db, _: q.fail(db, "x", "y")),
]


@pytest.mark.parametrize(("name", "call"), BAD)
def test_nonsense_is_refused_before_anything_is_written(
    bench: MakeBench, name: str, call: Callable[[TaskQueue, Any, Any], Any]
) -> None:
    b = bench("fifo")
    id_ = b.put("x")
    task = b.take()
    before = b.stored()
    with pytest.raises(InvalidArgument, match=f"^{name}") as refused:
        call(b.queue, b.db, task)
    assert "\n" not in str(refused.value)
    assert b.stored() == before
    assert b.state(id_) == "t"


def test_a_result_that_the_codec_cannot_carry_changes_nothing(bench: MakeBench) -> None:
    b = bench("fifo")
    task = handed_off(b, result_ttl=50)
    before = b.stored()
    with pytest.raises(TypeError):
        b.queue.complete(b.db, task.id, object())
    assert b.stored() == before


def test_a_text_of_the_greatest_length_is_stored(bench: MakeBench) -> None:
    b = bench("fifo")
    text = "é" * (limits.HANDED_TO_BYTES_MAX // 2)
    task = handed_off(b, for_=text)
    assert b.queue.peek(b.db, task).handed_to == text


def test_parts_of_a_newer_release_outlive_a_hand_off() -> None:
    newer = Extra(more=(None, None, "newer"))
    handed = newer.with_handed(Handed(5, "x"))
    assert handed.more[2:] == ("newer",)
    assert without_slots(handed) == newer
    assert Extra(more=(None, ["?"])).handed is None
    assert Extra(more=()).with_handed(None) == Extra()


def test_the_death_of_a_session_releases_its_other_tasks(bench: MakeBench) -> None:
    b = bench("fifo")
    b.put(1)
    b.put(2)
    first, second = b.take(), b.take()
    b.queue.hand_off(b.db, first, 1_000)
    end_session(b.db, RootKeys(DEFAULT_ROOT), b.session.id, lambda *_: True, died=True)
    assert [b.queue.peek(b.db, task).state for task in (first, second)] == ["t", "r"]
    assert b.queue.peek(b.db, second).failures == 1
    b.queue.complete(b.db, first.id)
    assert is_sound(b.db)
