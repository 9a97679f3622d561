"""`TaskQueue.search`: the tasks that match filters, in any state, by an index where there is one."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, Failure, FoundTasks, Group, TaskQueue, aio, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from tests.conftest import url_of
from tests.tasks.partitions import MakeParted, moving_key
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock
from tests.tasks.trips import Trips


@pytest.fixture
def b(bench: MakeBench) -> Iterator[Bench]:
    made = bench("utubettl")
    yield made
    assert not verify(made.db).findings


def found(b: Bench, **where: Any) -> list[str]:
    answer = b.queue.search(b.db, where)
    assert answer.after is None
    return sorted(task.id for task in answer.tasks)


def test_tasks_match_by_each_filter_in_any_state(b: Bench) -> None:
    group = Group.create(b.db)
    taken = b.put(1, key="a", headers={"t": "x"}, unique="u")
    assert b.take().id == taken
    b.clock.advance(60)
    late = group.put(b.db, b.queue, {"to": ["ada"]}, key="a", delay=9).id
    bad = b.put({"to": ["bob"]}, key="b", unique=7)
    b.queue.bury(b.db, bad, failure=Failure("ValueError", "odd"))
    ready = group.put(b.db, b.queue, 5, key="a").id

    assert found(b) == sorted([taken, late, bad, ready])
    states = {state: found(b, state=state) for state in ("ready", "taken", "delayed", "buried")}
    assert states == {"ready": [ready], "taken": [taken], "delayed": [late], "buried": [bad]}
    assert (found(b, id=bad), found(b, id=b.put(key="z"))) == ([bad], found(b, key="z"))
    assert found(b, key="a") == sorted([taken, late, ready])
    assert found(b, key="a", state="taken") == [taken]
    assert (found(b, unique="u"), found(b, unique=7), found(b, unique="7")) == ([taken], [bad], [])
    assert found(b, group=group) == found(b, group=group.id) == sorted([late, ready])
    assert (found(b, **{"class": "ValueError"}), found(b, **{"class": ""})) == ([bad], [])
    assert found(b, **{"headers.t": "x"}) == found(b, older_than=60) == [taken]
    assert found(b, **{"data.to.0": "ada"}) == [late]
    assert found(b, group=group, data=5) == [ready]
    assert found(b, id=bad, key="a") == []
    assert found(b, id=[taken, bad, taken, "0" * 32]) == sorted([taken, bad])
    assert found(b, id=(late, bad, ready), state="delayed") == [late]
    assert found(b, **{"data.to." + "0" * 5000: "ada"}) == []


def test_a_change_has_the_same_filters(b: Bench) -> None:
    group = Group.create(b.db)
    first, second = (group.put(b.db, b.queue, n, key=n).id for n in range(2))
    third = b.put(2, key=2, unique="u")
    for where, id_ in (({"id": first}, first), ({"group": group}, second), ({"unique": "u"}, third)):
        answer = b.queue.change(b.db, where, do="delete")
        assert (answer.looked_at, answer.matched, answer.changed) == (1, 1, 1)
        assert id_ not in found(b)
    assert b.queue.change(b.db, {"unique": "u"}, do="delete").looked_at == 0


def test_a_found_task_is_as_it_is_now(b: Bench) -> None:
    id_ = b.put(key="a", delay=5)
    b.clock.advance(6)
    [task] = b.queue.search(b.db, {"key": "a", "state": "ready"}).tasks
    assert (task.id, task.state) == (id_, "r")
    assert b.queue.search(b.db, {"key": "a", "state": "delayed"}).tasks == ()


def test_a_lease_that_is_over_is_found_until_a_sweep(bench: MakeBench) -> None:
    b = bench("fifottl", ttr=5)
    id_ = b.put()
    b.take()
    b.clock.advance(6)
    assert [(one.id, one.state) for one in b.queue.search(b.db, {"state": "taken"}).tasks] == [(id_, "t")]


def test_a_scope_that_is_over_has_no_task(b: Bench) -> None:
    queued, window = b.put(key=1, unique="q", scope="queued"), b.put(key=2, unique="w", scope=10)
    assert (found(b, unique="q"), found(b, unique="w")) == ([queued], [window])
    b.take()
    b.clock.advance(11)
    assert (found(b, unique="q"), found(b, unique="w")) == ([], [])


def whole(queue: TaskQueue, db: Database, where: dict[str, Any], **bounds: int) -> list[str]:
    """The ids that calls find, each behind the place of the one before."""
    ids, after = list[str](), None
    while True:
        answer = queue.search(db, where, after=after, **bounds)
        assert answer.looked_at <= bounds.get("look", 10_000)
        assert len(answer.tasks) <= bounds["most"]
        ids += [task.id for task in answer.tasks]
        if answer.after is None:
            return ids
        after = answer.after


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_search_goes_on_where_the_last_has_ended(
    parted: MakeParted, set_limits: SetLimits, partitions: int
) -> None:
    b = parted("utubettl", partitions=partitions)
    group = Group.create(b.db, root=b.root)
    set_limits(LOOKED_THROUGH=3)
    ids = [group.put(b.db, b.queue, n, key=n % 3, delay=n % 2).id for n in range(24)]
    for id_ in ids[::4]:
        b.queue.bury(b.db, id_, failure=Failure("Odd", ""))
    for where, wanted in (
        ({}, ids),
        ({"group": group}, ids),
        ({"key": 1}, ids[1::3]),
        ({"class": "Odd"}, ids[::4]),
        ({"key": 1, "data": 4}, [ids[4]]),
    ):
        for most, look in ((1, 99), (2, 2), (5, 4), (99, 99)):
            got = whole(b.queue, b.db, where, most=most, look=look)
            assert sorted(got) == sorted(wanted), (where, most, look)


def test_tasks_that_moved_are_found(parted: MakeParted) -> None:
    b = parted("utubettl", partitions=1)
    key = moving_key(1, 3)
    group = Group.create(b.db, root=b.root)
    first = group.put(b.db, b.queue, 1, key=key).id
    second = b.put(2, key=key, unique="u")
    b.repartition(3)
    b.queue.change(b.db, {}, do="bury")
    assert b.queue.kick(b.db, 2) == 2
    b.settle()
    assert 0 not in {b.places()[id_] for id_ in (first, second)}
    for id_, wheres in ((first, ({"group": group}, {"data": 1})), (second, ({"unique": "u"}, {"data": 2}))):
        assert [found(b, **where) for where in ({"id": id_}, *wheres)] == [[id_]] * 3
    assert found(b, key=key) == [first, second]


# Costs.


def test_an_index_costs_as_many_reads_among_a_thousand_tasks(bench: MakeBench) -> None:
    b = bench("utubettl")
    group = Group.create(b.db)
    id_ = group.put(b.db, b.queue, {"n": 0}, key="a").id
    b.put(key="a", unique="u")
    bad = b.put(key="b")
    b.queue.bury(b.db, bad, failure=Failure("Odd", ""))
    wheres = ({"id": id_}, {"key": "a"}, {"unique": "u"}, {"group": group}, {"class": "Odd"})

    def reads(where: dict[str, Any]) -> int:
        trips = Trips(b.db.engine)
        counted = Database(trips, b.clock)
        queue = TaskQueue.open(counted, "bench")
        queue.search(counted, {"id": id_})  # the first call reads the session's rows, too
        before = trips.reads
        answer = queue.search(counted, where)
        assert 1 <= len(answer.tasks) <= 2
        return trips.reads - before

    few = [reads(where) for where in wheres]
    b.queue.put_many(b.db, range(990), key="c")
    assert [reads(where) for where in wheres] == few
    assert max(few) <= 8


def test_a_search_of_data_is_bounded_by_look(b: Bench, set_limits: SetLimits) -> None:
    set_limits(SEARCHED_TASKS=4, LOOKED_THROUGH=3)
    b.queue.put_many(b.db, range(9), key="a")
    answer = b.queue.search(b.db, {"data": 8})
    assert (answer.tasks, answer.looked_at) == ((), 4)
    answer = b.queue.search(b.db, {"data": 8}, after=answer.after, look=5)
    assert ([task.data for task in answer.tasks], answer.looked_at) == ([8], 5)


def test_the_data_of_an_answer_are_bounded_in_bytes(b: Bench, set_limits: SetLimits) -> None:
    set_limits(BATCH_BYTES_MAX=1000, LOOKED_THROUGH=4)
    large = "x" * 400
    for data in (large, large, large, 1, 2, 3):
        b.put(data, key="a")
    wheres: list[dict[str, Any]] = [{}, {"key": "a"}, {"data": large}, {"data": 3}]
    assert [len(b.queue.search(b.db, where).tasks) for where in wheres] == [2, 2, 2, 1]
    assert [len(whole(b.queue, b.db, where, most=50)) for where in wheres] == [6, 6, 3, 1]


def test_a_search_in_a_transaction_ends_before_that_is_too_old(b: Bench, set_limits: SetLimits) -> None:
    set_limits(COUNTED_S=0, LOOKED_THROUGH=3)
    b.queue.put_many(b.db, range(9), key="a")
    answer = run(b.db, lambda tr: b.queue.search(tr, {"data": 8}))
    assert (answer.tasks, answer.looked_at) == ((), 3)
    assert run(b.db, lambda tr: b.queue.search(tr, {"data": 8}, after=answer.after)).looked_at == 3
    assert found(b, data=8) != []


# A model.

PUTS = st.tuples(
    st.integers(0, 2), st.integers(0, 2), st.sampled_from(["ready", "delayed", "buried", "taken"])
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.integers(0, 2),
        "data.n": st.integers(0, 2),
        "headers.n": st.sampled_from("012"),
        "unique": st.integers(0, 9),
        "state": st.sampled_from(["ready", "delayed", "buried", "taken"]),
        "class": st.sampled_from(["E0", "E1"]),
        "group": st.just(True),
    },
)


def matches(task: dict[str, Any], where: dict[str, Any]) -> bool:
    """True for a task of the model that all filters let through."""
    return all(task[name.partition(".")[2] or name] == as_text(value, name) for name, value in where.items())


def as_text(value: Any, name: str) -> Any:
    return int(value) if name == "headers.n" else value


@given(st.lists(PUTS, max_size=9), st.lists(FILTERS, max_size=5), st.sampled_from([1, 3]), st.integers(1, 4))
def test_a_search_is_that_of_a_plain_model(
    puts: list[tuple[int, int, str]], filters: list[dict[str, Any]], partitions: int, few: int
) -> None:
    with (
        fdbqueue.open("memory:", runtime=StillClock()) as db,
        mock.patch.multiple(limits, LOOKED_THROUGH=few),
    ):
        queue = TaskQueue.create(db, "q", "utubettl", partitions=partitions, key_concurrency=9)
        group = Group.create(db)
        model: dict[str, dict[str, Any]] = {}
        for at, (key, n, state) in enumerate(puts):
            options: dict[str, Any] = {
                "key": key,
                "headers": {"n": str(n)},
                "delay": 9 * (state == "delayed"),
            }
            in_group = n == 1
            put = partial(group.put, db, queue) if in_group else partial(queue.put, db)
            unique = None if in_group else at
            id_ = put({"n": n}, unique=unique, **options).id
            model[id_] = {
                "key": key,
                "n": n,
                "state": "ready" if state == "taken" else state,
                "unique": unique,
                "group": in_group,
                "class": None,
            }
            if state == "buried":
                queue.bury(db, id_, failure=Failure(f"E{n}", ""))
                model[id_]["class"] = f"E{n}"
        for _ in [state for *_, state in puts if state == "taken"]:
            if (task := queue.take(db, 0)) is not None:
                model[task.id]["state"] = "taken"
        for where in filters:
            if "class" in where and where.get("state", "buried") != "buried":
                continue
            wanted = sorted(id_ for id_, one in model.items() if matches(one, where))
            asked = where | ({"group": group} if "group" in where else {})
            for most, look in ((99, 99), (2, 3)):
                assert sorted(whole(queue, db, asked, most=most, look=look)) == wanted


# Faces, and bad input.


def test_both_faces_have_the_same_search(engine: str, tmp_path: Path, space: Subspace) -> None:
    async def body() -> None:
        async with aio.open(url_of(engine, tmp_path / "data")) as db:
            queue = await aio.TaskQueue.create(db, "q", "fifottl", root=space)
            task = (await queue.put_many(db, range(5)))[3]
            assert (await queue.search(db, {"id": task.id})).tasks == (task,)
            answer = await queue.search(db, {"data": 3})
            assert isinstance(answer, FoundTasks)
            assert ([one.id for one in answer.tasks], answer.looked_at) == ([task.id], 5)
            with pytest.raises(InvalidArgument):
                await queue.search(db, {"id": "none"})

    asyncio.run(body())


@pytest.mark.parametrize(
    "given_",
    [
        {"where": {"stat": "ready"}},
        {"where": {"state": "done"}},
        {"where": {"id": "none"}},
        {"where": {"id": 5}},
        {"where": {"id": []}},
        {"where": {"id": ["none"]}},
        {"where": {"id": ["0" * 32] * 1001}},
        {"where": {"unique": [1]}},
        {"where": {"unique": "x" * 5000}},
        {"where": {"group": "x"}},
        {"where": {"key": {}}},
        {"where": {"class": "A", "state": "taken"}},
        {"where": {}, "most": 0},
        {"where": {}, "look": 0},
        {"where": {}, "after": "zz"},
        {"where": {}, "after": "00"},
        {"where": {}, "after": 5},
        {"where": {"key": "a"}, "after": "00" * 20},
        {"where": {}, "after": "00" * 22},
        {"where": {"id": "0" * 32}, "after": "00" * 30},
    ],
)
def test_bad_input_of_a_search_is_refused(b: Bench, given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        b.queue.search(b.db, **given_)


def test_a_kind_without_keys_refuses_one(bench: MakeBench) -> None:
    b = bench("fifottl")
    with pytest.raises(UnsupportedOption):
        b.queue.search(b.db, {"key": "a"})
    with pytest.raises(TypeError):
        b.queue.search(b.db, None)  # type: ignore[arg-type]
