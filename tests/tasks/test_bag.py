"""Bags: any task may be next, two takers rarely want the same one, and no task waits for ever."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.bag import conflicts_each, longest_wait
from fdbqueue import Flaw, TaskPlace, TaskQueue, Why, verify
from fdbqueue.core.errors import PayloadMismatch
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.discipline import PLACE_BYTES, Bag
from fdbqueue.tasks.stored.records import id_bytes, id_text, record_of
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeParted, PartitionsBench
from tests.tasks.support import SetLimits


def ready_keys(b: PartitionsBench) -> dict[bytes, bytes]:
    """The keys of the ready tasks, by id."""
    under = b.queue._shape.keys.ready
    rows = b.db.get_range(under.start, under.stop)
    return {record_of(row.value).id: bytes(row.key) for row in rows}


def taker_at(b: PartitionsBench, place: bytes) -> Callable[..., Any]:
    """Takes in transactions of the caller, which begin at that place."""
    source = calls_of(b.db, b.queue._shape).source
    placed = type(source)(b.queue._shape.starting_at(place), b.clock, source._callbacks)
    params = b.session.id + b"token"
    return lambda tr: placed.taker(b.session.ask).take(tr, 1, params, b.clock.now_us()).values


@pytest.mark.parametrize("place", [b"", b"\x40", b"\x80", b"\xc0", b"\xff" * 8])
def test_takes_go_around_to_the_last_task(parted: MakeParted, place: bytes) -> None:
    b = parted("bag")
    ids = {b.put(n) for n in range(20)}
    tr, take = begin(b.db), taker_at(b, place)
    taken = [take(tr)[0].id for _ in ids]
    assert set(taken) == ids
    around = sorted(ready_keys(b).items(), key=lambda entry: entry[1])
    first = next((id_ for id_, key in around if key >= b.queue._shape.keys.ready_at(place)), around[0][0])
    assert id_bytes(taken[0]) == first
    assert take(tr) == ()


def test_a_hand_that_another_thread_moves_hides_no_task(parted: MakeParted) -> None:
    b = parted("bag")
    b.put_each(range(3))
    bag, tr = Bag(b.queue._shape.keys, {}), begin(b.db)
    bag.start_at(b"\xff" * PLACE_BYTES)

    class Reads:
        @property
        def snapshot(self) -> Any:
            return self

        def get_range(self, *under: Any, **options: Any) -> Any:
            found = tr.snapshot.get_range(*under, **options)
            bag.start_at(bytes(PLACE_BYTES))  # by another thread, before the next read
            return found

    assert len([*bag.first(Reads(), 3)]) == 3


def test_tasks_do_not_lie_in_the_order_of_arrival(parted: MakeParted) -> None:
    b = parted("bag")
    ids = [b.put(n) for n in range(30)]
    listed = [task.id for task in b.queue.tasks(b.db, "r", 30)]
    assert sorted(listed) == ids != listed
    assert [task.id for task in b.queue.tasks(b.db, "r", 30)] == listed


def test_takers_at_different_places_do_not_conflict(parted: MakeParted) -> None:
    b = parted("bag")
    b.queue.put_many(b.db, range(64))
    transactions = [begin(b.db) for _ in range(4)]
    for number, tr in enumerate(transactions):
        taker_at(b, bytes([64 * number]))(tr)
    assert [commit_code(tr) for tr in transactions] == [0] * 4


@pytest.mark.parametrize("place", [b"", b"\x80", b"\xff" * 8])
def test_nothing_conflicts_with_a_put_anywhere(parted: MakeParted, place: bytes) -> None:
    b = parted("bag")
    tr = begin(b.db)
    assert taker_at(b, place)(tr) == ()
    tr.set(b.root.key() + b"answer", b"nothing")
    b.put("x")
    assert commit_code(tr) == NOT_COMMITTED


def test_a_released_task_lies_at_another_place(parted: MakeParted) -> None:
    b = parted("bag")
    id_ = id_bytes(b.put("x"))
    before = ready_keys(b)[id_]
    b.queue.release(b.db, b.take())
    released = ready_keys(b)[id_]
    assert released != before
    b.queue.bury(b.db, b.take())
    b.queue.kick(b.db)
    assert ready_keys(b)[id_] not in (before, released)


def test_a_walk_reaches_each_task_in_time(bench: MakeParted) -> None:
    """With one put for each take, a way around takes 2.72 times the backlog on average at the most."""
    backlog, waits = 30, []
    b = bench("bag")
    born = {b.put(): 0 for _ in range(backlog)}
    for number in range(1, 500):
        task = b.take()
        b.queue.ack(b.db, task)
        waits.append(number - born.pop(task.id))
        born[b.put()] = number
    assert max(waits) < 4 * backlog


@pytest.mark.commits_by_hand
@pytest.mark.usefixtures("ordinary")
def test_a_lost_race_sends_the_taker_elsewhere(parted: MakeParted, monkeypatch: pytest.MonkeyPatch) -> None:
    b = parted("bag")
    b.queue.put_many(b.db, range(64))
    b.take()
    claim, start_at, rivals, starts = Bag.claim, Bag.start_at, [1], []

    def meet(self: Bag, tr: Any, records: Any) -> None:
        claim(self, tr, records)
        if rivals:
            rivals.pop()
            b.queue.delete(b.db, id_text(records[0].id))

    def start(self: Bag, random: bytes) -> None:
        starts.append(random)
        start_at(self, random)

    monkeypatch.setattr(Bag, "claim", meet)
    monkeypatch.setattr(Bag, "start_at", start)
    assert b.take() is not None
    assert len(starts) == 1


def test_a_place_in_a_bag_counts_all_other_tasks(parted: MakeParted, set_limits: SetLimits) -> None:
    b = parted("bag")
    ids = [b.put(n) for n in range(4)]
    found = [b.queue.explain(b.db, id_) for id_ in ids]
    assert [one.place for one in found] == [TaskPlace(3, in_any_order=True)] * 4
    assert found[0].reasons[0].why is Why.BEHIND
    assert found[0].reasons[0].text == "There are 3 other tasks, which come in any order."
    set_limits(EXPLAINED_MAX=3)
    assert b.queue.explain(b.db, ids[0]).place == TaskPlace(3, in_any_order=True)
    b.queue.take_many(b.db, 3, session=b.session)
    [last] = b.queue.tasks(b.db, "r", 9)
    assert b.queue.explain(b.db, last.id).place == TaskPlace(0, in_any_order=True)


@pytest.mark.parametrize("copies", ["index", "both"])
def test_damage_in_a_bag_costs_no_other_task(parted: MakeParted, copies: str) -> None:
    b = parted("bag")
    bad, good = b.put("bad"), {b.put(n) for n in range(5)}
    id_ = id_bytes(bad)
    b.db[ready_keys(b)[id_]] = b"damaged"
    if copies == "both":
        b.db[b.queue._shape.keys.task(id_)] = b"damaged"
    mended = {bad} if copies == "index" else set()
    assert {task.id for task in iter(b.take, None)} == good | mended


def test_a_bag_tells_the_error_of_a_task_that_it_passes(parted: MakeParted) -> None:
    """Its takes go by a source of their own, and share the tasks that they pass over."""
    b = parted("bag")
    b.put("no number")
    b.put(1)
    typed = TaskQueue.open(b.db, "bench", type=int, root=b.root)
    found = typed.take(b.db, 0)
    assert found.data == 1
    for timeout in (0, 0.1):
        with pytest.raises(PayloadMismatch):
            typed.take(b.db, timeout)


def test_an_entry_at_a_wrong_place_is_a_finding(parted: MakeParted) -> None:
    b = parted("bag")
    id_ = id_bytes(b.put("x"))
    key = ready_keys(b)[id_]
    wrong = b.queue._shape.keys.ready_at(bytes(PLACE_BYTES) + id_)
    b.db[wrong] = b.db[key]
    found = verify(b.db, root=b.root, mend=True)
    assert [finding.flaw for finding in found.findings] == [Flaw.STRAY]
    assert ready_keys(b) == {id_: key}


BACKLOG = 300


@pytest.mark.parametrize("seed", range(4))
def test_a_walk_meets_the_bound_of_the_page(seed: int) -> None:
    """The mean is at most e times the backlog, and the variance of each delay at most 0.77."""
    most = math.e * BACKLOG + 10 * math.sqrt(0.77 * BACKLOG)
    assert longest_wait(seed, 20 * BACKLOG, BACKLOG) <= most


@pytest.mark.parametrize("takers", [4, 16])
def test_many_walks_leave_no_task_behind(takers: int) -> None:
    assert longest_wait(0, 40 * BACKLOG, BACKLOG, takers) <= 15 * BACKLOG


def test_random_starts_would_leave_tasks_behind() -> None:
    waits = [longest_wait(seed, 40 * BACKLOG, BACKLOG, walks=False) for seed in range(3)]
    assert min(waits) > 10 * BACKLOG


def test_takers_of_a_bag_rarely_conflict() -> None:
    assert conflicts_each("fifo", 4, 100, 80) == 3
    assert conflicts_each("bag", 4, 1_000, 400) < 0.05
