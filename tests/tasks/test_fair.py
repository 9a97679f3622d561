"""Fair task queues: rounds against the plain model, quotas, and conflicts."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, PayloadTooLarge, QueueFull, UnsupportedOption
from fdbqueue.core.line.decision import Look, Otherwise, Ticket
from fdbqueue.core.line.staging import Outcome, Turn
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.source import params_of
from tests.queue_support import registered
from tests.support import begin, commit_code
from tests.tasks.fair_model import Rounds, by_weight
from tests.tasks.support import LONG_S, Bench, StillClock
from tests.tasks.test_micro import meets, putting

MakeBench = Callable[..., Bench]
NOW_US = 10**12


# `+a1` puts a task of key a, `a1` takes it, `-` finds nothing.
def finished(b: Bench) -> Any:
    """Take a task and ack it."""
    task = b.take()
    if task is not None:
        b.queue.ack(b.db, task)
    return task and task.data


def test_a_put_relies_on_the_key_as_its_own_sweep_leaves_it(bench: MakeBench) -> None:
    """In a full queue it sweeps an expired task of its key, and was asked about the key before that."""
    b = bench("fair", capacity=1, ttl=10)
    b.put("expires", key="a")
    b.clock.advance(11)
    b.put("stays", key="a")
    assert b.taken_data() == ["stays"]


def test_an_expired_task_makes_room_in_the_same_transaction(bench: MakeBench) -> None:
    b = bench("fair", capacity=2, ttl=10)
    b.put("expires", key="a")
    b.put("stays", key="a", ttl=60)
    b.clock.advance(11)
    with pytest.raises(QueueFull) as full:
        b.queue.put_many(begin(b.db), ["never", "never"], key="a")
    assert full.value.current_size == 1
    fdbqueue.transactional(lambda tr: b.queue.put(tr, "fits", key="a"))(b.db)
    assert b.taken_data() == ["stays", "fits"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([1, "1", None, True, 1.0]), st.integers(-3, -1)), min_size=5, max_size=60
    )
)
def test_any_puts_and_takes_go_as_in_the_reference(steps: list[Any]) -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        queue, session = TaskQueue.create(db, "fair", "fair"), Session(db, ttr=LONG_S)
        model = Rounds(lambda item: item[1])
        for number, step in enumerate([*steps, -99]):
            if type(step) is int and step < 0:
                found = [task.data for task in queue.take_many(db, -step, session=session)]
                expected = [item and item[0] for item in (model.pull() for _ in range(-step))]
                assert found == [item for item in expected if item is not None]
            else:
                queue.put(db, number, key=step)
                model.push((number, step))


def test_a_batch_of_takes_goes_round_by_round_over_many_keys(bench: MakeBench) -> None:
    b = bench("fair")
    for number in range(60):
        b.put(number, key=number % 20)
    taken = b.queue.take_many(b.db, 60, session=b.session)
    assert [task.data for task in taken] == list(range(60))


costs = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(costs, st.dictionaries(st.sampled_from("abc"), st.integers(1, 4)), st.integers(1, 9))
def test_turns_by_weight_and_cost(items: list[tuple[str, int]], weights: dict[str, int], n: int) -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        queue = TaskQueue.create(db, "fair", "fair", weights=weights)
        session = Session(db, ttr=LONG_S)
        for number, (key, cost) in enumerate(items):
            queue.put(db, number, key=key, cost=cost)
        found: list[int] = []
        while more := queue.take_many(db, n, session=session):
            found += [task.data for task in more]
        assert found == list(by_weight(items, weights))


def test_a_returned_task_is_the_first_of_its_key(bench: MakeBench) -> None:
    b = bench("fair")
    for word in ("a1", "a2", "b1", "b2"):
        b.put(word, key=word[0])
    b.queue.release(b.db, b.take())
    assert b.taken_data() == ["b1", "a1", "b2", "a2"]


def test_a_delayed_task_joins_its_key_when_due(bench: MakeBench, clock: StillClock) -> None:
    b = bench("fair")
    b.put("a1", key="a", delay=5)
    b.put("b1", key="b")
    b.put("b2", key="b")
    assert b.take().data == "b1"
    clock.advance(6)
    assert b.taken_data() == ["a1", "b2"]


def test_deleted_and_expired_tasks_leave_no_hole(bench: MakeBench, clock: StillClock) -> None:
    b = bench("fair")
    ids = [b.put(f"a{n}", key="a", ttl=5 if n == 5 else None) for n in range(7)]
    for word in ("b0", "b1", "b2"):
        b.put(word, key="b")
    for id_ in ids[:5]:
        b.queue.delete(b.db, id_)
    clock.advance(6)
    b.sweep()
    assert b.taken_data() == ["a6", "b0", "b1", "b2"]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "all at once"])
def test_a_key_of_an_old_round_makes_up_for_nothing(bench: MakeBench, together: bool) -> None:
    b = bench("fair")
    b.queue.put_many(b.db, [f"a{n}" for n in range(20)], key="a")
    slow = b.db.create_transaction()
    b.queue.put_many(slow, [f"b{n}" for n in range(5)], key="b")
    b.queue.take_many(b.db, 10, session=b.session)
    slow.commit().wait()
    found = b.queue.take_many(b.db, 7, session=b.session) if together else [b.take() for _ in range(7)]
    assert [task.data for task in found] == ["b0", "a10", "b1", "a11", "b2", "a12", "b3"]
    assert [task.data for task in (b.take(), b.take(), b.take())] == ["a13", "b4", "a14"]


def test_nothing_but_the_round_is_kept_of_an_empty_queue(bench: MakeBench) -> None:
    b = bench("fair", weights={"a": 2})
    for word in ("a1", "a2", "b1"):
        b.put(word, key=word[0])
    while finished(b) is not None:
        pass
    assert len(b.contents()) == 1


def test_who_meets_whom(bench: MakeBench) -> None:
    b = bench("fair")
    take: Callable[[Any], Any] = lambda tr: b.queue.take(tr, session=b.session)  # noqa: E731
    assert meets(b, putting(b, "a"), putting(b, "a"))  # both the first of their key
    assert not meets(b, putting(b, "a"), putting(b, "a"))
    assert not meets(b, putting(b, "a"), take)
    assert not meets(b, putting(b, "b"), take)
    assert not meets(b, take, putting(b, "c"))
    while len(b.queue.tasks(b.db, "r", 9)) > 1:
        finished(b)
    last = b.queue.tasks(b.db, "r", 1)[0].key
    assert meets(b, putting(b, last), take)  # the empty edge


@pytest.mark.parametrize(
    ("kind", "options"), [("fair", {"weights": {"a": 2}}), ("utube", {"key_concurrency": 2})]
)
def test_the_line_takes_the_tasks_of_a_key_in_order(
    bench: MakeBench, kind: str, options: dict[str, Any]
) -> None:
    b = bench(kind, **options)
    for word in ("a1", "a2", "b1"):
        b.put(word, key=word[0])
    line = calls_of(b.db, b.queue._shape).source.line
    params = params_of(Lease(b.session.id, b"token"))
    first, second, third = (registered(b.db, line, b"rid %d" % n, NOW_US, params=params) for n in range(3))

    def look(ticket: Ticket) -> Turn:
        return run(b.db, lambda tr: line.look(tr, ticket, Look(NOW_US, otherwise=Otherwise.LEAVE)))

    assert look(second).outcome is Outcome.WAIT
    assert [task.data for who in (third, first, second) for task in look(who).answers] == ["b1", "a1", "a2"]


def test_the_weights_of_a_queue_are_told_by_the_users_keys(bench: MakeBench) -> None:
    weights = {1: 2, "1": 3, None: 4, (b"a", 1.5): 5}
    assert bench("fair", weights=weights).queue.options["weights"] == weights
    assert TaskQueue.open(bench("fair", if_not_exists=True).db, "bench").options["weights"] == weights


@pytest.mark.parametrize(
    ("kind", "refused", "options"),
    [
        ("fair", InvalidArgument, {"key": {"a": 1}}),
        ("fair", InvalidArgument, {"key": "x" * limits.TASK_KEY_BYTES_MAX}),
        ("fair", UnsupportedOption, {"key": "a", "pri": 1}),
        ("utube", UnsupportedOption, {"key": "a", "cost": 2}),
        ("fair", PayloadTooLarge, {"key": "a", "data": "x" * (limits.PAYLOAD_BYTES_MAX + 1)}),
    ],
)
def test_bad_tasks_are_refused_and_nothing_is_written(
    bench: MakeBench, kind: str, refused: type[Exception], options: dict[str, Any]
) -> None:
    b = bench(kind)
    before = b.stored()
    with pytest.raises(refused):
        b.put(**options)
    assert b.stored() == before


@pytest.mark.parametrize(
    "options",
    [{"capacity": -1}, {"capacity": 1.5}, {"weights": {"a": 0}}, {"weights": {object(): 1}}, {"weights": 3}],
)
def test_bad_queues_are_refused_and_nothing_is_written(bench: MakeBench, options: dict[str, Any]) -> None:
    b = bench("fair")
    before = b.stored()
    with pytest.raises(InvalidArgument):
        TaskQueue.create(b.db, "never", "fair", **options)
    assert b.stored() == before


@pytest.mark.parametrize("inside", [False, True], ids=["database", "transaction"])
def test_the_error_of_a_full_queue_has_the_item_and_the_size(bench: MakeBench, inside: bool) -> None:
    b = bench("fair", capacity=2)
    b.put("a1", key="a")
    before = b.contents(), b.queue.statistics(b.db)

    def put(tr: Any) -> None:
        b.queue.put_many(tr, ["a2", "a3"], key="a")

    with pytest.raises(QueueFull, match="holds 1 task, its capacity is 2") as full:
        fdbqueue.transactional(put)(b.db) if inside else put(b.db)
    assert (full.value.item, full.value.current_size) == ("a2", 1)  # type: ignore[attr-defined]
    assert (b.contents(), b.queue.statistics(b.db)) == before


def test_a_late_first_put_does_not_move_the_round(bench: MakeBench) -> None:
    """It met takes of two later rounds. The key that comes next begins in the round of the others."""
    b = bench("fair")
    for number in range(5):
        b.put(number, key="a")
    put = begin(b.db)
    b.queue.put(put, "late", key="z")
    assert [b.take().data for _ in range(3)] == [0, 1, 2]
    assert commit_code(put) == 0
    assert b.take().data == "late"
    b.put("next", key="b")
    assert b.taken_data() == [3, "next", 4]
