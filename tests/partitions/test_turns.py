"""Puts without a task key go to the partitions in turn, and most takes of a session begin at its homes."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Queue, Session, TaskQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.line.taking import Taker
from fdbqueue.core.line.wide import Homes, Turns
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from tests.support import ManualClock
from tests.tasks.support import StillClock


def test_processes_with_one_put_each_use_many_partitions(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        TaskQueue.create(db, "q", "fifo", partitions=64)
    for number in range(8):
        with fdbqueue.open(url) as db:
            TaskQueue.open(db, "q").put(db, number)
    with fdbqueue.open(url) as db:
        used = [one for one in TaskQueue.open(db, "q").partitions(db) if one.ready]
    assert len(used) > 1


def test_handles_with_one_enqueue_each_use_many_partitions() -> None:
    with fdbqueue.open("memory:") as db:
        for number in range(8):
            queue = Queue.named(db, "q", partitions=64)
            transactional(queue.enqueue)(db, number)
        assert len([one for one in queue.partitions(db) if one.ready]) > 1


def test_processes_with_one_take_each_visit_closed_partitions() -> None:
    """The open partition never becomes empty."""
    clock = ManualClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = Queue.named(db, "q", partitions=4)
        for number in range(4):
            queue.enqueue(db, number)
        queue.repartition(db, 1)
        queue.enqueue_many(db, ["new"] * 100)
        found = []
        for _ in range(2 * 4 * limits.TAKES_PER_VISIT):
            clock.advance(1e-6)
            found.append(queue.dequeue(Database(db.engine, clock)))
        assert set(range(4)) <= set(found)


def test_a_closed_partition_is_not_visited_again_at_once() -> None:
    """Once it was found empty; later it is, as an item may come back from a dead process."""
    turns, visits = Turns(first=0), 2 * limits.TAKES_PER_VISIT
    assert {turns.next([0], 1, 2, now=0.0) for _ in range(visits)} == {0, 1}
    turns.found_nothing(1, now=0.0)
    turns.found_nothing(0, now=0.0)
    assert {turns.next([0], 1, 2, now=0.1) for _ in range(visits)} == {0}
    later = limits.EMPTY_VISITED_EVERY_S
    assert {turns.next([0], 1, 2, now=later) for _ in range(visits)} == {0, 1}


@pytest.mark.parametrize("given", ["database", "transaction"])
def test_takes_learn_that_a_closed_partition_is_empty(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Counter[Taker] = Counter()
    for name in ("take", "take_in_turn"):
        monkeypatch.setattr(Taker, name, counting(getattr(Taker, name), taken))
    with fdbqueue.open("memory:", runtime=ManualClock()) as db:
        queue = Queue.named(db, "q", partitions=4)
        dequeue = queue.dequeue if given == "database" else transactional(queue.dequeue)
        for number in range(4):
            queue.enqueue(db, number)
        queue.repartition(db, 1)
        enough = 9 * 4 * limits.TAKES_PER_VISIT
        queue.enqueue_many(db, ["new"] * 3 * enough)
        for _ in range(enough):
            dequeue(db)
        parts = queue._recipe_of(db)
        visited = [parts.part(number).taker for number in range(1, 4)]
        taken.clear()
        for _ in range(enough):
            dequeue(db)
        assert sum(taken.values()) == enough
        assert [taken[taker] for taker in visited] == [0, 0, 0]


def counting(take: Callable[..., Any], calls: Counter[Taker]) -> Callable[..., Any]:
    def counted(taker: Taker, *args: Any, **options: Any) -> Any:
        calls[taker] += 1
        return take(taker, *args, **options)

    return counted


def test_puts_of_a_process_use_all_partitions_in_turn() -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "q", "fifo", partitions=4)
        for number in range(8):
            queue.put(db, number)
        assert [one.ready for one in queue.partitions(db)] == [2, 2, 2, 2]


ALL = set(range(64))


def owned(homes: Homes, session: Session) -> set[int]:
    """The partitions at which more takes of the session begin than its visits."""
    visits = 2
    takes = len(ALL) * limits.TAKES_PER_VISIT * visits
    begins = Counter(homes.next(len(ALL), len(ALL), session.id) for _ in range(takes))
    return {number for number, count in begins.items() if count > visits}


def test_live_sessions_share_all_partitions() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        homes, first = Homes(db, RootKeys(DEFAULT_ROOT)), Session(db, ttr=1_000)
        assert owned(homes, first) == ALL

        second = Session(db, ttr=60)
        clock.advance(limits.HOMES_CHOSEN_EVERY_S)
        mine, other = owned(homes, first), owned(homes, second)
        assert (mine | other, mine & other) == (ALL, set())

        clock.advance(61)
        assert owned(homes, first) == ALL


def test_homes_are_those_of_the_present_number_of_partitions() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        homes, session = Homes(db, RootKeys(DEFAULT_ROOT)), Session(db, ttr=1_000)
        for count in (4, 2, 3):
            begins = {homes.next(count, count, session.id) for _ in range(4 * limits.TAKES_PER_VISIT)}
            assert begins == set(range(count))
