"""Statistics: how tasks have ended, which delayed ones are due, and the batch that a look sweeps."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Group, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.embedded.causes import no_room
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.parts import Parts
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.support import Bench

MakeBench = Callable[..., Bench]


def looked(b: Bench) -> dict[str, int]:
    """The tasks, as a transaction sees them: nothing is swept."""
    return run(b.db, b.queue.statistics)["tasks"]


def test_truncating_some_conflicts_with_the_end_of_one_of_them(bench: MakeBench) -> None:
    b = bench()
    b.queue.put_many(b.db, range(2))
    task, tr = b.take(), begin(b.db)
    assert b.queue.truncate_some(tr, 2) == 2
    b.queue.ack(b.db, task)
    assert commit_code(tr) == NOT_COMMITTED
    assert b.counts("total", "ready") == (1, 1)


def test_takes_that_are_undone_together_are_counted_apart(bench: MakeBench) -> None:
    b = bench()
    b.queue.put_many(b.db, range(3))
    tasks = b.queue.take_many(b.db, 2, session=b.session)
    calls_of(b.db, b.queue._shape)._undo_take(tasks)
    assert b.counts("ready", "taken", "take") == (3, 0, 0)


def test_due_tasks_are_counted_beside_the_stored_states(bench: MakeBench) -> None:
    b = bench("fifottl", ttr=5)
    b.put("taken")
    b.take()
    b.put("expired", ttl=1)
    for n in range(3):
        b.put(n, delay=5 * (n + 1))
    assert looked(b)["due"] == 0
    b.clock.advance(10)
    found = looked(b)
    assert (found["delayed"], found["due"], found["ready"], found["taken"]) == (3, 2, 1, 1)


def test_due_tasks_are_counted_up_to_a_bound(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DUE_COUNTED_MAX", 3)
    b = bench("fifottl")
    for _ in range(5):
        b.put(delay=1)
    b.clock.advance(1)
    assert (looked(b)["delayed"], looked(b)["due"]) == (5, 3)


LOOKS: dict[str, Callable[[TaskQueue, Any], Any]] = {
    "statistics": lambda queue, db: queue.statistics(db),
    "tasks": lambda queue, db: queue.tasks(db, "!", 1),
    "key_statistics": lambda queue, db: queue.key_statistics(db, 1),
    "statistics of all": lambda _, db: fdbqueue.statistics(db),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_sweeps_one_batch(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, look: Callable[[TaskQueue, Any], Any]
) -> None:
    monkeypatch.setattr(limits, "DUE_BATCH", 2)
    b = bench("utubettl")
    for n in range(5):
        b.put(n, delay=1, key=n)
    b.clock.advance(1)
    for ready in (2, 4, 5, 5):
        look(b.queue, b.db)
        assert looked(b)["ready"] == ready


def test_statistics_are_read_before_the_sweep(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put(delay=1)
    b.clock.advance(1)
    assert b.counts("ready", "delayed", "due") == (0, 1, 1)
    assert b.counts("ready", "delayed", "due") == (1, 0, 0)


def test_a_look_in_a_transaction_writes_nothing(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put(delay=1)
    b.clock.advance(1)
    before = b.stored()
    run(b.db, lambda tr: (b.queue.statistics(tr), b.queue.tasks(tr, "r", 1), fdbqueue.statistics(tr)))
    assert b.stored() == before


def test_a_look_does_not_fail_for_a_sweep(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def tidy(*_: Any) -> bool:
        raise no_room("disk")

    monkeypatch.setattr(Parts, "tidy", tidy)
    b = bench("fifottl")
    b.put(delay=1)
    b.clock.advance(1)
    assert b.counts("delayed", "due") == (1, 1)


def test_statistics_add_the_tasks_of_all_cancelled_groups(bench: Callable[..., Bench]) -> None:
    b = bench()
    for size in (2, 3):
        of = Group.create(b.db)
        of.put_many(b.db, b.queue, range(size))
        of.cancel(b.db)
    found = b.queue.statistics(b.db)["tasks"]
    assert (found["ready"], found["cancelled"]) == (5, 5)
