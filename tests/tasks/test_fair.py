"""Fair task queues: rounds against the plain model, quotas, and conflicts."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
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
from tests.tasks.support import MakeBench
from tests.tasks.test_micro import meets, putting

NOW_US = 10**12
KEYED = ("fair", "utube")


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


def test_who_meets_whom(bench: MakeBench) -> None:
    b = bench("fair")
    take: Callable[[Any], Any] = lambda tr: b.queue.take(tr, session=b.session)  # noqa: E731
    assert meets(b, putting(b, "a"), putting(b, "a"))  # both the first of their key
    assert not meets(b, putting(b, "a"), putting(b, "a"))
    assert not meets(b, putting(b, "a"), take)
    assert not meets(b, putting(b, "b"), take)
    assert not meets(b, take, putting(b, "c"))
    while len(b.queue.tasks(b.db, "r", 9)) > 1:
        b.queue.ack(b.db, b.take())
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
        *((kind, InvalidArgument, {"key": {"a": 1}}) for kind in KEYED),
        *((kind, InvalidArgument, {"key": "x" * limits.TASK_KEY_BYTES_MAX}) for kind in KEYED),
        *(
            ("utube", UnsupportedOption, {"key": "a", option: 2})
            for option in ("cost", "delay", "ttl", "pri")
        ),
        *((kind, UnsupportedOption, {"pri": 1}) for kind in ("fair", "bag")),
        ("fifo", UnsupportedOption, {"key": 0}),
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
