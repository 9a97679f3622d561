"""`TaskQueue.change`: waiting tasks that match filters change together, each once; taken ones never."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, Failure, Limit, Queue, Task, TaskQueue, aio, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    DeferredBody,
    InvalidArgument,
    QueueFull,
    QueueKindMismatch,
    QueueNotFound,
    TooMuchForOneTransaction,
    UnsupportedOption,
)
from fdbqueue.core.page import every_row
from fdbqueue.tasks import edges
from fdbqueue.tasks.selected import ChangedTasks
from tests.conftest import url_of
from tests.queue_support import faulty
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED
from tests.tasks.partitions import MakeParted, PartitionsBench, moving_key
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock


def numbers(answer: ChangedTasks) -> tuple[int, int, int]:
    assert answer.after is None
    return answer.looked_at, answer.matched, answer.changed


def whole(b: Bench) -> None:
    """All keys agree with each other."""
    assert not verify(b.db).findings


@pytest.fixture
def b(bench: MakeBench) -> Iterator[Bench]:
    made = bench("utubettl")
    yield made
    whole(made)


def other(b: Bench, kind: str = "utubettl", **options: Any) -> TaskQueue:
    return TaskQueue.create(b.db, "other", kind, **options)


# Filters.


def test_tasks_match_by_state_key_headers_age_class_and_data(b: Bench) -> None:
    old = b.put({"to": "ada", "n": [1, 2]}, key="a", headers={"t": "x"})
    b.clock.advance(60)
    late = b.put({"to": "bob", "ok": True}, key="b", delay=9)
    bad = b.put({"to": "ada"}, key="b")
    b.queue.bury(b.db, bad, failure=Failure("ValueError", "odd"))
    plain = b.put(5, key="c")

    def found(**where: Any) -> list[str]:
        answer = b.queue.change(b.db, where, do="delete", dry_run=True)
        assert answer.matched == len(answer.examples)
        return [task.id for task in answer.examples]

    assert found() == sorted([old, late, bad, plain])
    assert found(state="ready") == sorted([old, plain])
    assert (found(state="delayed"), found(state="buried")) == ([late], [bad])
    assert found(key="b") == sorted([late, bad])
    assert (found(headers={"t": "x"}), found(**{"headers.t": "y"})) == ([old], [])
    assert (found(older_than=60), found(older_than=61)) == ([old], [])
    assert (found(**{"class": "ValueError"}), found(**{"class": ""})) == ([bad], [])
    assert found(**{"data.to": "ada"}) == sorted([old, bad])
    assert found(**{"data.to": "ada", "key": "a"}) == [old]
    assert (found(**{"data.n.1": 2}), found(**{"data.n.2": 2}), found(data=5)) == ([old], [], [plain])
    assert (found(**{"data.ok": True}), found(**{"data.ok": 1})) == ([late], [])


@pytest.mark.parametrize("few", [1, 2, 500])
def test_a_list_of_ids_changes_those_tasks_alone(b: Bench, set_limits: SetLimits, few: int) -> None:
    ids = [b.put(n, key=n) for n in range(6)]
    held = b.take().id
    assert held == ids[0]
    set_limits(LOOKED_THROUGH=few, VERB_BATCH=few)
    given = {"id": ["0" * 32, *reversed(ids[:4]), ids[1]]}
    assert b.queue.change(b.db, given, do="bury", dry_run=True).matched == 3
    seen = b.queue.change(b.db, given, {"pri": 7}, look=2)
    assert seen.looked_at == 2
    rest = b.queue.change(b.db, given, {"pri": 7}, after=seen.after)
    assert (seen.looked_at + rest.looked_at, seen.changed + rest.changed, rest.after) == (5, 3, None)
    assert [b.queue.peek(b.db, id_).pri for id_ in ids] == [0, 7, 7, 7, 0, 0]
    found = b.queue.search(b.db, given, most=2)
    more = b.queue.search(b.db, given, after=found.after)
    assert [task.id for task in (*found.tasks, *more.tasks)] == ids[:4]


def test_a_task_is_in_the_state_that_a_sweep_would_give_it(b: Bench) -> None:
    b.put(key=1, delay=5)
    b.put(key=2, ttl=5)
    b.clock.advance(6)
    assert b.queue.change(b.db, {"state": "ready"}, do="bury", dry_run=True).matched == 1
    assert numbers(b.queue.change(b.db, {"state": "ready"}, {"pri": 3})) == (2, 1, 1)
    assert b.take().pri == 3


def test_a_taken_task_is_left_alone(b: Bench) -> None:
    held, _ = b.put("held", key=1, ttr=5), b.put("next", key=1)
    assert b.take().id == held
    for change in ({"set": {"pri": 1}}, {"do": "bury"}, {"do": "cancel"}, {"set": {"delay": 1}}):
        assert b.queue.change(b.db, {"data": "held"}, **change).matched == 0
    b.clock.advance(6)  # its lease is over, and not swept
    assert b.queue.change(b.db, {"data": "held"}, do="delete").matched == 0


def test_unreadable_data_match_no_filter_of_data(bench: MakeBench) -> None:
    b = bench("fifo", codec="bytes")
    text = TaskQueue.open(b.db, "bench")
    b.put(b"\xff")
    assert text.change(b.db, {"data": b"\xff"}, do="bury", dry_run=True).matched == 1
    assert text.change(b.db, {"data.x": 1}, do="bury", dry_run=True).matched == 0


# Options.


def test_a_new_priority_orders_the_tasks_anew(bench: MakeBench) -> None:
    b = bench("fifottl")
    ids = [b.put(n, pri=5) for n in range(4)]
    b.queue.bury(b.db, ids[0])
    assert numbers(b.queue.change(b.db, {"data": 3}, {"pri": 1})) == (4, 1, 1)
    assert numbers(b.queue.change(b.db, {"state": "buried"}, {"pri": 0})) == (4, 1, 1)
    assert b.queue.kick(b.db) == 1
    assert b.taken_data() == [0, 3, 1, 2]
    whole(b)


def test_a_new_priority_orders_the_tasks_of_a_key_anew(b: Bench) -> None:
    for n in range(5):
        b.put(n, key="k", pri=5)
    b.put("other", key="l", pri=9)
    b.queue.change(b.db, {"data": 3}, {"pri": 1})
    b.queue.change(b.db, {"data": 0}, {"pri": 7})
    order = []
    while (task := b.take()) is not None:
        order.append(task.data)
        b.queue.ack(b.db, task)
    assert order == [3, 1, 2, 4, 0, "other"]


def test_an_option_that_a_task_has_already_is_no_change(b: Bench) -> None:
    b.put(key=1, pri=2)
    before = b.stored()
    assert numbers(b.queue.change(b.db, {}, {"pri": 2})) == (1, 1, 0)
    assert b.contents() == [row for row in before if row in b.contents()]


def test_a_delay_begins_now_and_leaves_the_time_to_live(b: Bench) -> None:
    ready, late = b.put("ready", key=1, ttl=10), b.put("late", key=2, ttl=10, delay=100)
    assert b.queue.change(b.db, {}, {"delay": 50}).changed == 2
    b.clock.advance(49)
    assert (b.take(), b.state(ready), b.state(late)) == (None, "~", "~")
    b.clock.advance(2)
    assert sorted([b.take().data, b.take().data]) == ["late", "ready"]
    b.queue.release_all(b.db)
    b.clock.advance(10)
    assert b.take() is None
    b.sweep()


def test_no_delay_makes_delayed_tasks_ready(b: Bench) -> None:
    b.put("late", key=2, ttl=10, delay=100)
    b.put("ready", key=1)
    assert numbers(b.queue.change(b.db, {}, {"delay": 0, "pri": 4})) == (2, 2, 2)
    assert b.counts("ready", "delayed") == (2, 0)
    b.clock.advance(9)
    assert sorted(b.taken_data()) == ["late", "ready"]


def test_a_task_that_waits_for_another_one_stays(bench: MakeBench) -> None:
    b = bench("fifottl")
    first = b.put("first")
    b.put("second", after=first)
    there = other(b, "fifottl")
    assert numbers(b.queue.change(b.db, {"state": "delayed"}, {"delay": 0})) == (2, 1, 0)
    assert numbers(b.queue.change(b.db, {"state": "delayed"}, {"queue": "other"})) == (2, 1, 0)
    assert b.taken_data() == ["first"]
    assert there.statistics(b.db)["tasks"]["total"] == 0
    b.queue.ack(b.db, first, session=b.session)
    b.sweep()
    assert b.taken_data() == ["second"]


def test_new_limits_hold_at_the_next_take(still_db: Database, bench: MakeBench) -> None:
    Limit.set(still_db, "one", slots=1)
    Limit.set(still_db, "each", slots=1, per_key=True)
    b = bench("fifottl", task_limits=["one", "each"])
    for n in range(4):
        b.put(n, limits=["one"])
    assert len(b.taken_data()) == 1
    assert numbers(b.queue.change(b.db, {}, {"limits": {"each": "ada"}})) == (4, 3, 3)
    assert len(b.taken_data()) == 1
    assert b.queue.change(b.db, {}, {"limits": []}).changed == 2
    assert len(b.taken_data()) == 2
    whole(b)


# Verbs.


def test_a_verb_is_that_of_each_task(b: Bench) -> None:
    ids = [b.put(n, key=n) for n in range(6)]
    assert numbers(b.queue.change(b.db, {"key": 0}, do="delete")) == (6, 1, 1)
    assert numbers(b.queue.change(b.db, {"key": 1}, do="cancel")) == (5, 1, 1)
    assert numbers(b.queue.change(b.db, {}, do="bury")) == (4, 4, 4)
    assert numbers(b.queue.change(b.db, {"key": 3}, do="kick")) == (4, 1, 1)
    assert [b.state(id_) for id_ in ids[2:]] == ["!", "r", "!", "!"]
    assert b.counts("delete", "cancel", "bury", "kick") == (1, 1, 4, 1)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["fifo", "fifottl", "limfifottl", "utube", "utubettl", "fair", "bag"])
def test_each_kind_has_the_changes_of_its_options(parted: MakeParted, kind: str, partitions: int) -> None:
    b = parted(kind, **({} if partitions == 1 else {"partitions": partitions}))
    b.put_each(range(9))
    supports = b.queue._shape.kind.supports
    edits: list[dict[str, Any]] = [{"do": "bury"}, {"do": "kick"}]
    edits += [{"set": {"pri": 2}}] if supports("pri") else []
    edits += [{"set": {"delay": 60}}, {"set": {"delay": 0}}] if supports("delay") else []
    for edit in edits:
        assert numbers(b.queue.change(b.db, {}, **edit)) == (9, 9, 9)
        assert not verify(b.db, root=b.root).findings
    TaskQueue.create(b.db, "other", kind, root=b.root)
    assert numbers(b.queue.change(b.db, {"data": 4}, {"queue": "other"})) == (9, 1, 1)
    assert sorted(b.taken_data()) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert not verify(b.db, root=b.root).findings


# Other queues.


def test_tasks_move_with_all_that_they_have(b: Bench) -> None:
    there = other(b)
    b.put("late", key=1, delay=30, ttl=10, ttr=7, pri=3, headers={"t": "x"})
    b.put("ready", key=2)
    bad = b.put("bad", key=3)
    b.queue.bury(b.db, bad, failure=Failure("ValueError", "odd"))
    assert numbers(b.queue.change(b.db, {}, {"queue": "other"})) == (3, 3, 3)
    assert b.counts("total") == (0,)
    assert sorted(task.data for task in there.tasks(b.db, "r", 9)) == ["bad", "ready"]
    [late] = there.tasks(b.db, "~", 9)
    assert (late.pri, late.key, late.headers) == (3, 1, {"t": "x"})
    now = b.clock.now()
    assert (late.until, late.expires) == (pytest.approx(now + 30), pytest.approx(now + 40))
    b.clock.advance(31)
    taken = {task.data: task for task in iter(partial(there.take, b.db, 0, session=b.session), None)}
    assert taken["late"].until == pytest.approx(b.clock.now() + 7)
    [failure] = there.failures(b.db, taken["bad"])
    assert failure.error == "ValueError"


def test_failures_of_a_moved_task_count_there(b: Bench) -> None:
    """Otherwise a task that goes to and fro would use up no attempts. A buried one begins anew."""
    there = other(b, attempts=2)
    for name in ("failed", "buried"):
        b.put(name)
        b.queue.release(b.db, b.take(), failure=Failure("ValueError", "odd"), delay=9)
    buried = b.queue.tasks(b.db, "~", 9)[1]
    b.queue.bury(b.db, buried, failure=Failure("ValueError", "odd"))
    assert b.queue.change(b.db, {}, {"queue": "other"}).changed == 2
    b.clock.advance(9)
    ends = {}
    while (task := there.take(b.db, 0, session=b.session)) is not None:
        ends[task.data] = there.release(b.db, task, failure=Failure("KeyError"), delay=99).state.name
    assert ends == {"failed": "BURIED", "buried": "DELAYED"}


def test_a_task_key_stays_in_order_when_it_moves(parted: MakeParted, set_limits: SetLimits) -> None:
    """Also while a repartition has its tasks in two partitions."""
    b = parted("utube", partitions=2)
    key = moving_key(2, 5)
    there = TaskQueue.create(b.db, "other", "utube", root=b.root)
    for n in range(4):
        b.put(n, key=key)
    run(b.db, lambda tr: b.queue.repartition(tr, 5))
    for n in range(4, 8):
        b.put(n, key=key)
    set_limits(VERB_BATCH=3)
    assert b.queue.change(b.db, {"key": key}, {"queue": "other"}).changed == 8
    moved = []
    while (task := there.take(b.db, 0, session=b.session)) is not None:
        moved.append(task.data)
        there.ack(b.db, task)
    assert moved == list(range(8))
    assert not verify(b.db, root=b.root).findings


def test_tasks_without_a_key_go_to_no_queue_of_keys(bench: MakeBench) -> None:
    b = bench("fifottl")
    other(b)
    b.put(1)
    with pytest.raises(InvalidArgument, match="ttr and without task keys, as 'fifottl' is"):
        b.queue.change(b.db, {}, {"queue": "other"})
    assert b.counts("ready") == (1,)


def test_a_move_fills_the_other_queue_and_refuses_the_rest(bench: MakeBench) -> None:
    b = bench("limfifottl")
    there = other(b, "limfifottl", capacity=3)
    for n in range(5):
        b.put(n)
    with pytest.raises(QueueFull):
        b.queue.change(b.db, {}, {"queue": "other"})
    assert (there.statistics(b.db)["tasks"]["ready"], b.counts("ready")) == (3, (2,))
    with pytest.raises(QueueFull):
        run(b.db, lambda tr: b.queue.change(tr, {}, {"queue": "other"}))
    there.truncate(b.db)
    assert b.queue.change(b.db, {}, {"queue": "other"}).changed == 2


# Steps.


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_change_takes_bounded_steps_and_meets_each_task_once(
    parted: MakeParted, set_limits: SetLimits, partitions: int
) -> None:
    set_limits(LOOKED_THROUGH=7, VERB_BATCH=3)
    b = parted("utubettl", partitions=partitions)
    b.put_each(range(40))
    told: list[ChangedTasks] = []
    answer = b.queue.change(b.db, {}, {"pri": 1}, progress=told.append)
    assert numbers(answer) == (40, 40, 40)
    steps = [now.changed - before.changed for before, now in zip([ChangedTasks(), *told], told, strict=False)]
    assert (max(steps), told[-1]) == (3, answer)
    assert not verify(b.db, root=b.root).findings


@pytest.mark.parametrize("edit", [{"do": "kick"}, {"set": {"delay": 0}}, {"set": {"queue": "other"}}])
def test_a_step_moves_bounded_bytes(b: Bench, set_limits: SetLimits, edit: dict[str, Any]) -> None:
    """Each of these may write payloads anew, in another partition or queue."""
    set_limits(MOVED_BYTES_MAX=20_000)
    other(b)
    for n in range(8):
        id_ = b.put("x" * 9_000, key=n, delay=9)
        if "do" in edit:
            b.queue.bury(b.db, id_)
    told: list[ChangedTasks] = []
    assert b.queue.change(b.db, {}, progress=told.append, **edit).changed == 8
    assert len(told) >= 8


def test_a_walk_meets_a_task_once_though_it_moves(parted: MakeParted, set_limits: SetLimits) -> None:
    """A kick takes each task to the partition that its key has since the repartition."""
    set_limits(LOOKED_THROUGH=4)
    b = parted("utubettl", partitions=2)
    b.put_each(range(20))
    b.queue.change(b.db, {}, do="bury")
    b.repartition(5)
    before = b.places()
    told: list[ChangedTasks] = []
    b.queue.change(b.db, {}, {"pri": 1}, progress=partial(_kick_some, b, told))
    assert b.places() != before
    assert (told[-1].looked_at, told[-1].changed) == (20, 20)


def _kick_some(b: PartitionsBench, told: list[ChangedTasks], so_far: ChangedTasks) -> None:
    if not told:
        b.queue.kick(b.db, 20)
    told.append(so_far)


def test_a_call_goes_on_where_another_has_ended(b: Bench) -> None:
    for n in range(10):
        b.put(n, key=n)
    part = b.queue.change(b.db, {}, {"pri": 1}, look=4)
    assert (part.looked_at, part.changed) == (4, 4)
    rest = b.queue.change(b.db, {}, {"pri": 2}, after=part.after)
    assert numbers(rest) == (6, 6, 6)
    assert sorted(task.pri for task in b.queue.tasks(b.db, "r", 99)) == [1] * 4 + [2] * 6


def test_a_search_of_data_is_bounded(b: Bench, set_limits: SetLimits) -> None:
    set_limits(SEARCHED_TASKS=6, LOOKED_THROUGH=4)
    for n in range(9):
        b.put({"n": n}, key=n)
    part = b.queue.change(b.db, {"data.n": 8}, {"pri": 1})
    assert (part.looked_at, part.matched) == (6, 0)
    assert numbers(b.queue.change(b.db, {"data.n": 8}, {"pri": 1}, after=part.after)) == (3, 1, 1)
    assert numbers(b.queue.change(b.db, {}, {"pri": 2})) == (9, 9, 9)


def test_a_search_reads_bounded_data_in_one_transaction(b: Bench, set_limits: SetLimits) -> None:
    set_limits(BATCH_BYTES_MAX=1000)
    for n in range(6):
        b.put({"n": n, "more": "x" * 400}, key=n)
    told: list[int] = []
    b.queue.change(b.db, {"data.n": 5}, do="bury", progress=lambda so_far: told.append(so_far.looked_at))
    assert told == [2, 4, 6]


def test_a_dry_run_changes_nothing_and_has_ten_examples(b: Bench, set_limits: SetLimits) -> None:
    set_limits(LOOKED_THROUGH=8)
    ids = [b.put(n, key=n) for n in range(30)]
    before = b.stored()
    answer = b.queue.change(b.db, {}, do="delete", dry_run=True)
    assert numbers(answer) == (30, 30, 0)
    assert [task.id for task in answer.examples] == sorted(ids)[:10]
    assert b.stored() == before


def test_an_error_of_progress_ends_the_call_between_two_steps(b: Bench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=4)
    for n in range(10):
        b.put(n, key=n)
    told: list[ChangedTasks] = []

    def stop(so_far: ChangedTasks) -> None:
        told.append(so_far)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        b.queue.change(b.db, {}, do="bury", progress=stop)
    assert b.counts("buried", "ready") == (4, 6)
    assert numbers(b.queue.change(b.db, {}, do="bury", after=told[0].after)) == (6, 6, 6)


# Transactions.


def test_in_a_transaction_it_happens_with_the_rest_or_not_at_all(b: Bench) -> None:
    b.put(1, key=1)

    def body(tr: fdbqueue.AnyTransaction, fails: bool) -> ChangedTasks:
        b.queue.put(tr, 2, key=2)
        answer = b.queue.change(tr, {}, do="bury")
        if fails:
            raise KeyError
        return answer

    with pytest.raises(KeyError):
        run(b.db, partial(body, fails=True))
    assert b.counts("buried", "ready") == (0, 1)
    assert numbers(run(b.db, partial(body, fails=False))) == (2, 2, 2)


@pytest.mark.parametrize("bounds", [{"VERB_BATCH": 3}, {"LOOKED_THROUGH": 3}])
def test_a_transaction_refuses_too_many_before_it_writes(
    b: Bench, set_limits: SetLimits, bounds: dict[str, int]
) -> None:
    for n in range(4):
        b.put(n, key=n)
    set_limits(**bounds)

    def body(tr: fdbqueue.AnyTransaction) -> None:
        with pytest.raises(TooMuchForOneTransaction, match="at most 3 items"):
            b.queue.change(tr, {}, do="bury")

    run(b.db, body)
    assert b.counts("buried", "ready") == (0, 4)


def test_a_take_meanwhile_keeps_its_task(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        b.put(n, key=n)
    bury, taken = edges.bury, []

    def late(*given: Any) -> Any:
        if not taken:  # after the reads of the first attempt
            taken.append(b.take())
        return bury(*given)

    monkeypatch.setitem(vars(fdbqueue.tasks.selected)["EDGES"], "bury", late)
    assert numbers(b.queue.change(b.db, {}, do="bury")) == (4, 3, 3)
    assert b.queue.ack(b.db, taken[0]).data == 0


def test_each_attempt_changes_half_as_many(b: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise takes of the first tasks would abort every attempt."""
    for n in range(20):
        b.put(n, key=n)
    bury, sizes = edges.bury, []

    def late(change: Any, records: Any) -> Any:
        sizes.append(len(records))
        if len(sizes) < 4:
            b.queue.release(b.db, b.take())
        return bury(change, records)

    monkeypatch.setattr(limits, "VERB_BATCH", 16)
    monkeypatch.setitem(vars(fdbqueue.tasks.selected)["EDGES"], "bury", late)
    assert b.queue.change(b.db, {}, do="bury").changed == 20
    assert sizes == [16, 8, 4, 2, 16, 2]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("fate", [(COMMIT_UNKNOWN, True), (COMMIT_UNKNOWN, False), (NOT_COMMITTED, False)])
def test_a_step_counts_once_with_any_result_of_its_commit(
    db: Database, space: Subspace, fdb_module: ModuleType, fate: tuple[int, bool], partitions: int
) -> None:
    """A second effect would count each burial twice."""
    db, engine = faulty(db, fdb_module.FDBError)
    queue = TaskQueue.create(db, "q", "fifottl", partitions=partitions, root=space)
    there = TaskQueue.create(db, "other", "fifottl", root=space)
    queue.put_many(db, range(9))
    for change in ({"do": "bury"}, {"do": "kick"}, {"set": {"delay": 60}}, {"set": {"queue": "other"}}):
        fates = iter([fate, fate])
        engine.fate = lambda _, fates=fates: next(fates, (0, True))
        assert queue.change(db, {}, **change).changed == 9
    calls = queue.statistics(db)["calls"]
    assert (calls["bury"], calls["kick"], calls["delete"]) == (9, 9, 9)
    assert there.statistics(db)["tasks"]["delayed"] == 9


# Against a model.

KEYS, STATES = st.integers(0, 2), st.sampled_from(["ready", "delayed", "buried"])
FILTERS = st.fixed_dictionaries({}, optional={"state": STATES, "key": KEYS, "data.n": st.integers(0, 1)})
EDITS = st.one_of(
    st.fixed_dictionaries({"set": st.fixed_dictionaries({"pri": st.integers(0, 3)})}),
    st.fixed_dictionaries({"set": st.fixed_dictionaries({"delay": st.sampled_from([0, 50])})}),
    st.fixed_dictionaries({"do": st.sampled_from(["kick", "bury", "delete", "cancel"])}),
)
PUTS = st.lists(st.tuples(KEYS, st.integers(0, 1), st.sampled_from([0, 50])), max_size=8)


@dataclass
class Modelled:
    state: str
    key: int
    n: int
    pri: int = 0

    def changed_by(self, where: dict[str, Any], edit: dict[str, Any]) -> bool | None:
        """Change it. None: it does not match; false: it is so already."""
        allowed = {"kick": ["buried"], "bury": ["ready", "delayed"]}.get(edit.get("do", ""))
        if "delay" in edit.get("set", {}):
            allowed = ["ready", "delayed"]
        mine = {"state": self.state, "key": self.key, "data.n": self.n}
        if any(mine[name] != value for name, value in where.items()) or self.state not in (
            allowed or [self.state]
        ):
            return None
        before = (self.state, self.pri)
        if "set" in edit:
            self.pri = edit["set"].get("pri", self.pri)
            if "delay" in edit["set"]:
                self.state = "delayed" if edit["set"]["delay"] else "ready"
            return edit["set"].get("delay") == 50 or (self.state, self.pri) != before
        self.state = {"kick": "ready", "bury": "buried"}.get(edit["do"], "gone")
        return True


@given(st.lists(st.tuples(PUTS, FILTERS, EDITS), max_size=6), st.sampled_from([1, 3]), st.integers(1, 4))
def test_changes_are_those_of_a_plain_model(
    rounds: list[tuple[list[tuple[int, int, int]], dict[str, Any], dict[str, Any]]], partitions: int, few: int
) -> None:
    clock = StillClock()
    with (
        fdbqueue.open("memory:", runtime=clock) as db,
        mock.patch.multiple(limits, LOOKED_THROUGH=few, VERB_BATCH=2),
    ):
        queue = TaskQueue.create(db, "q", "utubettl", partitions=partitions)
        model: dict[str, Modelled] = {}
        for puts, where, edit in rounds:
            for key, n, delay in puts:
                id_ = queue.put(db, {"n": n}, key=key, delay=delay).id
                model[id_] = Modelled("delayed" if delay else "ready", key, n)
            clock.advance(1)  # a new delay is another one
            before = len(model)
            try:
                answer = queue.change(db, where, **edit)
            except InvalidArgument:  # a state in which no task can have that
                assert all(one.changed_by(where, edit) is None for one in model.values())
                continue
            outcomes = [one.changed_by(where, edit) for one in model.values()]
            matched = [outcome for outcome in outcomes if outcome is not None]
            assert numbers(answer) == (before, len(matched), sum(matched))
            model = {id_: one for id_, one in model.items() if one.state != "gone"}
            found = {id_: (task.state.name.lower(), task.pri) for id_, task in all_tasks(queue, db).items()}
            assert found == {id_: (one.state, one.pri) for id_, one in model.items()}
        assert not verify(db).findings


def all_tasks(queue: TaskQueue, db: Database) -> dict[str, Task]:
    """All waiting tasks, of all partitions."""
    listings = [partial(queue.tasks, db, state, 99) for state in "r~!"]
    return {task.id: task for listing in listings for task in every_row(listing)}


# The other face.


def test_asyncio_has_the_same_verb(engine: str, tmp_path: Path, space: Subspace) -> None:
    async def body() -> None:
        async with aio.open(url_of(engine, tmp_path / "data")) as db:
            queue = await aio.TaskQueue.create(db, "q", "fifottl", root=space)
            await queue.put_many(db, range(5))
            told: list[ChangedTasks] = []
            answer = await queue.change(db, {"data": 3}, {"pri": 1}, progress=told.append)
            assert (numbers(answer), told) == ((5, 1, 1), [answer])
            for bad in ({"set": {"pri": -1}}, {"do": "ack"}, {"set": {"queue": "q"}}):
                with pytest.raises(InvalidArgument):
                    await queue.change(db, {}, **bad)
            with pytest.raises(DeferredBody):
                await queue.change(db, {}, do="bury", progress=_told)

    asyncio.run(body())


async def _told(_: ChangedTasks) -> None: ...


# Bad input.

BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"where": None, "do": "kick"}, TypeError),
    ({"where": {"stat": "ready"}, "do": "kick"}, InvalidArgument),
    ({"where": {"key.x": 1}, "do": "kick"}, InvalidArgument),
    ({"where": {1: 1}, "do": "kick"}, InvalidArgument),
    ({"where": {"state": "taken"}, "do": "bury"}, InvalidArgument),
    ({"where": {"state": []}, "do": "bury"}, InvalidArgument),
    ({"where": {"state": "ready"}, "do": "kick"}, InvalidArgument),
    ({"where": {"state": "buried"}, "set": {"delay": 1}}, InvalidArgument),
    ({"where": {"class": "A"}, "do": "bury"}, InvalidArgument),
    ({"where": {"class": "A", "state": "ready"}, "do": "delete"}, InvalidArgument),
    ({"where": {"class": 5}, "do": "delete"}, InvalidArgument),
    ({"where": {"key": [1]}, "do": "delete"}, InvalidArgument),
    ({"where": {"headers": {"x": 1}}, "do": "delete"}, InvalidArgument),
    ({"where": {"older_than": -1}, "do": "delete"}, InvalidArgument),
    ({"where": {"older_than": float("nan")}, "do": "delete"}, InvalidArgument),
    ({"where": {"id": []}, "do": "delete"}, InvalidArgument),
    ({"where": {"id": ["0" * 32] * 1001}, "do": "delete"}, InvalidArgument),
    ({"where": {}}, InvalidArgument),
    ({"where": {}, "do": "kick", "set": {"pri": 1}}, InvalidArgument),
    ({"where": {}, "do": "ack"}, InvalidArgument),
    ({"where": {}, "set": {}}, InvalidArgument),
    ({"where": {}, "set": {"ttl": 1}}, InvalidArgument),
    ({"where": {}, "set": {"pri": -1}}, InvalidArgument),
    ({"where": {}, "set": {"pri": True}}, InvalidArgument),
    ({"where": {}, "set": {"delay": -1}}, InvalidArgument),
    ({"where": {}, "set": {"limits": ["x"]}}, InvalidArgument),
    ({"where": {}, "set": {"queue": "bench"}}, InvalidArgument),
    ({"where": {}, "set": {"queue": ""}}, InvalidArgument),
    ({"where": {}, "set": {"queue": "other", "pri": 1}}, InvalidArgument),
    ({"where": {}, "set": {"queue": "none"}}, QueueNotFound),
    ({"where": {}, "set": {"queue": "plain"}}, QueueKindMismatch),
    ({"where": {}, "set": {"queue": "unkeyed"}}, InvalidArgument),
    ({"where": {}, "set": {"queue": "untimed"}}, InvalidArgument),
    ({"where": {}, "set": {"queue": "coded"}}, InvalidArgument),
    ({"where": {}, "do": "kick", "after": "x"}, InvalidArgument),
    ({"where": {}, "do": "kick", "after": ""}, InvalidArgument),
    ({"where": {}, "do": "kick", "look": 0}, InvalidArgument),
    ({"where": {}, "do": "kick", "progress": 5}, InvalidArgument),
]


@pytest.mark.parametrize(("given_", "error"), BAD, ids=lambda one: str(one)[:60])
def test_bad_input_is_refused_before_anything_is_written(
    b: Bench, given_: dict[str, Any], error: type[Exception]
) -> None:
    Queue.named(b.db, "plain")
    for name, kind, more in (
        ("unkeyed", "fifottl", {}),
        ("untimed", "utube", {}),
        ("coded", "utubettl", {"codec": "bytes"}),
    ):
        TaskQueue.create(b.db, name, kind, **more)
    b.put(1, key=1)
    before = b.stored()
    with pytest.raises(error):
        b.queue.change(b.db, **given_)
    assert b.stored() == before


@pytest.mark.parametrize(
    "given_", [{"set": {"pri": 1}}, {"set": {"delay": 1}}, {"where": {"key": 1}, "do": "bury"}]
)
def test_a_kind_without_the_option_is_named(bench: MakeBench, given_: dict[str, Any]) -> None:
    b = bench("fifo")
    with pytest.raises(UnsupportedOption, match="kind 'fifo' does not support"):
        b.queue.change(b.db, **{"where": {}, **given_})
