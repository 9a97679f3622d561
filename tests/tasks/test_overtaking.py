"""Takes that may overtake: after a lost race they leave earlier items behind, never more than they may."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue, Worker
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.core.line.decision import Look, Offer
from fdbqueue.core.line.overtaking import Overtaking, behind
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.stored.records import id_text
from tests.queue_support import registered
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeParted, PartitionsBench
from tests.tasks.support import Bench, MakeBench, Relay, SetLimits

NUMBERS = 9


class Dice(RealRuntime):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed).random


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5))
def test_of_few_items_as_many_are_taken_and_no_more_are_left(there: int, left: int, count: int) -> None:
    offers = [Offer(b"%d" % number, b"", 1) for number in range(there)]
    found = behind(iter(offers), left, count)
    assert len(found) == min(there, count)
    assert [*found] == offers[(start := offers.index(found[0]) if found else 0) : start + count]
    assert start <= left


@given(st.integers(0), st.integers(1, 200), st.lists(st.booleans(), max_size=60))
def test_a_taker_leaves_no_more_than_it_may_and_comes_back(seed: int, most: int, races: list[bool]) -> None:
    taker = Overtaking(Dice(seed))
    for lost in races:
        taker.lost(most) if lost else taker.won()
        assert 0 <= (taker.left_by([most], anew=False) or 0) <= most
        assert (taker.left_by([most, 1], anew=False) or 0) <= 1
    assert taker.left_by([most, 0], anew=False) is None
    assert taker.left_by([most], anew=True) is None
    assert taker.left_by([most], anew=False) == 0


def test_a_taker_gives_up_after_some_lost_races_in_a_row() -> None:
    taker = Overtaking(Dice(1))
    times = limits.OVERTAKING_ATTEMPTS_MAX
    assert [taker.lost(5) for _ in range(2 * times)] == [*[False] * (times - 1), True] * 2
    taker.lost(5)
    taker.won()
    assert not any(taker.lost(5) for _ in range(times - 1))


@pytest.mark.commits_by_hand
@pytest.mark.usefixtures("ordinary")
@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_a_lost_race_sends_the_taker_behind_the_first_tasks(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    b, hand_out, races = parted(kind), TaskSource.hand_out, [1, 1]
    b.put_each(range(NUMBERS))
    most = NUMBERS - 3

    def lose(self: TaskSource, tr: Any, offers: Sequence[Offer], params: bytes) -> Any:
        if races:
            races.pop()
            b.queue.delete(b.db, id_text(offers[0].id))
        return hand_out(self, tr, offers, params)

    monkeypatch.setattr(TaskSource, "hand_out", lose)
    taken = b.queue.take(b.db, 0, session=b.session, overtake=most)
    assert taken is not None
    assert not races
    # Two tasks have gone: one was the first, and the other one behind as many as it may be.
    assert taken.data <= most + 2
    strict = b.queue.take(b.db, 0, session=b.session)
    assert strict is not None
    assert strict.data < NUMBERS - 1
    assert strict.data == min({*range(NUMBERS)} - {taken.data} - gone(b))


def gone(b: PartitionsBench) -> set[int]:
    there = {task.data for state in "rt" for task in b.queue.tasks(b.db, state, NUMBERS)}
    return {*range(NUMBERS)} - there


def overtaking(b: Bench, left: int, most: int = 5) -> list[Any]:
    """The data of a take whose taker leaves `left` tasks behind. It is not its first one, which is strict."""
    taker = calls_of(b.db, b.queue._shape)._takes.of(b.session, 0).overtaking
    taker.left = left
    return [task.data for task in b.queue.take_many(b.db, 2, session=b.session, overtake=most)]


@pytest.fixture
def late(set_limits: SetLimits, bench: MakeBench) -> Bench:
    """A bench on which each taker has taken strictly, and does so again much later."""
    set_limits(LINE_TIDIED_EVERY_S=1e9)
    b = bench()
    assert overtaking(b, 0) == []
    b.queue.put_many(b.db, range(NUMBERS))
    return b


def test_a_take_leaves_as_many_tasks_as_its_taker_says(late: Bench) -> None:
    assert overtaking(late, 3) == [3, 4]
    assert overtaking(late, 9, most=1) == [1, 2]
    assert overtaking(late, 0) == [0, 5]


def test_no_task_is_left_for_a_less_urgent_one(set_limits: SetLimits, bench: MakeBench) -> None:
    set_limits(LINE_TIDIED_EVERY_S=1e9)
    b = bench("fifottl")
    overtaking(b, 0)
    b.queue.put_many(b.db, range(3), pri=5)
    b.queue.put_many(b.db, range(10, 14), pri=1)
    b.queue.put_many(b.db, range(3, NUMBERS), pri=5)
    assert overtaking(b, 4) == [11, 12]
    assert overtaking(b, 4) == [10, 13]
    assert overtaking(b, 4) == [4, 5]


def test_large_items_are_not_read_to_be_left() -> None:
    read = []

    def offers() -> Iterator[Offer]:
        for number in range(99):
            read.append(number)
            yield Offer(b"%d" % number, bytes(limits.OVERTAKEN_BYTES_MAX // 3), 1)

    assert [int(offer.id) for offer in behind(offers(), 50, 2)] == [50 % 3, 50 % 3 + 1]
    assert len(read) == 4


def test_a_taker_is_strict_now_and_then(late: Bench, set_limits: SetLimits) -> None:
    set_limits(LINE_TIDIED_EVERY_S=0)
    calls_of(late.db, late.queue._shape)._takes.of(late.session, 0)._memory._tidy_at = 0
    assert overtaking(late, 3) == [0, 1]


def test_requests_in_the_line_keep_their_shares(late: Bench) -> None:
    relay = Relay(late)
    assert overtaking(late, 0) == [2, 3]
    assert overtaking(late, 1) == [5, 6]
    relay.serve()
    assert relay.collect() == [1]


def test_a_damaged_item_behind_a_share_gives_no_one_the_share(db: Database, space: Subspace) -> None:
    q = Queue(space["items"], root=space)
    taker, now_us = q._calls_of(db).recipe.zero.taker, db.runtime.now_us()
    ticket = registered(db, taker._line, b"1" * limits.RANDOM_SUFFIX_BYTES, now_us)
    q.enqueue_many(db, ["share", "damaged"])
    items = q._calls_of(db).recipe.zero.keys.items
    db[[*db.get_range(items.start, items.stop)][1].key] = b"\x00{no json"
    taken = run(db, lambda tr: taker.take_in_turn(tr, 1, b"", now_us, 0))
    assert (taken.values, taken.is_open) == ([], True)
    assert run(db, lambda tr: taker._line.look(tr, ticket, Look(now_us))).answers == ["share"]


def test_behind_more_requests_than_it_reads_a_take_gets_nothing(late: Bench, set_limits: SetLimits) -> None:
    set_limits(SERVE_MAX=2)
    Relay(late)
    taker, now_us = calls_of(late.db, late.queue._shape).source.taker(late.session.ask), late.clock.now_us()
    taken = run(late.db, lambda tr: taker.take_in_turn(tr, 1, late.session.id + b"token", now_us, 0))
    assert (list(taken.values), taken.is_open) == ([], True)


@pytest.mark.commits_by_hand
def test_takes_from_all_partitions_side_by_side_do_not_conflict(db: Database, space: Subspace) -> None:
    q = Queue.named(db, "parted", partitions=2, root=space)
    q.enqueue_many(db, range(NUMBERS))
    taker = q._calls_of(db).recipe.wide.taker()
    first, second = begin(db), begin(db)
    for tr, left in ((first, 0), (second, 3)):
        assert taker.take_in_turn(tr, 1, b"", db.runtime.now_us(), left).values == [left]
    assert (commit_code(first), commit_code(second)) == (0, 0)


@pytest.mark.commits_by_hand
@pytest.mark.parametrize(
    ("left", "value", "code"), [(None, 0, NOT_COMMITTED), (0, 0, NOT_COMMITTED), (1, 1, 0)]
)
def test_an_item_behind_others_conflicts_with_none_of_these(
    db: Database, space: Subspace, left: int | None, value: int, code: int
) -> None:
    q = Queue(space["items"], root=space)
    q.enqueue_many(db, range(3))
    taker = q._calls_of(db).recipe.zero.taker
    first, second = begin(db), begin(db)
    assert taker.take_in_turn(first, 1, b"", 0, None).values == [0]
    assert taker.take_in_turn(second, 1, b"", 0, left).values == [value]
    assert (commit_code(first), commit_code(second)) == (0, code)


def test_overtake_is_refused_where_it_has_no_meaning(db: Database, space: Subspace) -> None:
    for kind in ("utube", "fair", "bag"):
        queue = TaskQueue.create(db, kind, kind, root=space)
        queue.take(db, 0, overtake=0)
        with pytest.raises(UnsupportedOption, match=kind):
            queue.take_many(db, 2, overtake=1)
        Worker(db, queue, print, overtake=5, root=space)  # it keeps the order of such a queue
    queue, items = TaskQueue.create(db, "tasks", root=space), Queue(space["items"], root=space)
    simple = Queue(space["items"], contended="simple", root=space)
    calls = (queue.take, items.dequeue, lambda tr, overtake: items.dequeue_many(tr, 1, overtake=overtake))
    for call in calls:
        for wrong in (-1, 1.0, None, True, limits.OVERTAKE_MAX + 1):
            with pytest.raises(InvalidArgument, match="overtake must be a whole number from 0 to 1000"):
                call(db, overtake=wrong)
        with pytest.raises(InvalidArgument, match="overtake must be 0 in a transaction"):
            call(db.create_transaction(), overtake=1)
    with pytest.raises(InvalidArgument, match='overtake must be 0 with contended="simple"'):
        simple.dequeue(db, overtake=1)


@pytest.mark.parametrize("overtake", [0, 5])
def test_a_worker_takes_by_its_option(overtake: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[int]()
    take_many, ask = TaskQueue.take_many, TaskCalls._taking

    def take(*given: Any, overtake: int, **options: Any) -> Any:
        asked.add(overtake)
        return take_many(*given, overtake=overtake, **options)

    def take_along(self: TaskCalls, session: Any, count: int, overtake: int) -> Any:
        asked.add(overtake)
        return ask(self, session, count, overtake)

    monkeypatch.setattr(TaskQueue, "take_many", take)
    monkeypatch.setattr(TaskCalls, "_taking", take_along)
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "worked")
        queue.put_many(db, range(NUMBERS))
        Worker(db, queue, lambda task: task.data, threads=1, overtake=overtake).run(until_empty=True)
        assert queue.statistics(db)["tasks"]["done"] == NUMBERS
    assert asked == {overtake}
