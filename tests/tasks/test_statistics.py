"""Statistics, of a queue and by task key: how tasks have ended, what is due, the busiest keys."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fdb import tuple as layer

import fdbqueue
from fdbqueue import Group, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.embedded import FDBError
from fdbqueue.embedded.directory import no_room
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.key_counts import level_of
from tests.partitions.support import key_in, moving_key
from tests.queue_support import faulty
from tests.tasks.partitions import MakeParted
from tests.tasks.support import LONG_S, Bench, MakeBench, SetLimits, StillClock
from tests.tasks.test_micro import meets, putting


def looked(b: Bench) -> dict[str, int]:
    """The tasks, as a transaction sees them: nothing is swept."""
    return run(b.db, b.queue.statistics)["tasks"]


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


def test_due_tasks_are_counted_up_to_a_bound(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(DUE_COUNTED_MAX=3)
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
    bench: MakeBench, set_limits: SetLimits, look: Callable[[TaskQueue, Any], Any]
) -> None:
    set_limits(DUE_BATCH=2)
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


def test_statistics_add_the_tasks_of_all_cancelled_groups(bench: MakeBench) -> None:
    b = bench()
    for size in (2, 3):
        of = Group.create(b.db)
        of.put_many(b.db, b.queue, range(size))
        of.cancel(b.db)
    found = b.queue.statistics(b.db)["tasks"]
    assert (found["ready"], found["cancelled"]) == (5, 5)


def index_of(b: Bench) -> list[tuple[int, bytes]]:
    index, levels = run(b.db, lambda tr: b.queue._shape.discipline.counts.index(tr, 99))  # type: ignore[attr-defined]
    assert index == levels
    return index


def test_without_a_key_the_key_is_none(bench: MakeBench) -> None:
    b = bench("utube")
    b.put("x")
    assert [s.key for s in b.queue.key_statistics(b.db, 9)] == [None]


def test_bad_questions(bench: MakeBench) -> None:
    b = bench("utube")
    for limit in (-1, 0, 1.5, True, limits.KEYS_LOOKED_AT_MAX + 1):
        with pytest.raises(InvalidArgument):
            b.queue.key_statistics(b.db, limit)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOption):
        TaskQueue.create(b.db, "plain", "fifo").key_statistics(b.db, 1)


def test_among_too_many_keys_the_busy_ones_are_found(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(KEYS_LOOKED_AT_MAX=3, KEY_LEVEL_MIN=1)
    b = bench("fair")
    for key in range(20):
        b.queue.put_many(b.db, ["x"] * {11: 9, 17: 30}.get(key, 1), key=key)
    assert [(s.key, s.ready) for s in b.queue.key_statistics(b.db, 2)] == [(17, 30), (11, 9)]
    b.queue.take_many(b.db, 40, session=b.session)  # a task of each, and then those of the two
    assert [(s.key, s.ready) for s in b.queue.key_statistics(b.db, 2)] == [(17, 17)]


def test_looking_reads_as_much_whatever_there_is(clock: StillClock, set_limits: SetLimits) -> None:
    set_limits(KEYS_LOOKED_AT_MAX=5, KEY_LEVEL_MIN=0)

    def read(keys: int) -> int:
        with fdbqueue.open("memory:", runtime=clock) as db:
            counted, engine = faulty(db, FDBError, clock)
            queue = TaskQueue.create(counted, "many", "fair")
            for key in range(keys):
                queue.put_many(counted, ["x"] * 5, key=key)
            engine.read_most = 0
            assert len(queue.key_statistics(counted, 5)) == 5
            found = engine.read_most
            counted.close()
            return found

    assert read(60) == read(10)


def test_the_level_follows_the_number_at_a_distance() -> None:
    """So a number that swings does not move it: it is written once while the number doubles or halves."""
    moves = []
    level = 0
    for waiting in [*range(300), *range(300, -1, -1)]:
        new = level_of(waiting, level)
        if new != level:
            moves.append((waiting, new))
        level = new
    assert moves == [(64, 6), (128, 7), (256, 8), (127, 6), (31, 0)]


def test_puts_of_one_key_do_not_meet_where_its_level_moves(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(KEY_LEVEL_MIN=1)
    b = bench("fair")
    b.queue.put_many(b.db, ["x"] * 3, key="a")
    assert not meets(b, putting(b, "a"), putting(b, "a"))
    assert [s.ready for s in b.queue.key_statistics(b.db, 1)] == [5]
    assert index_of(b) == [(2, layer.pack(("a",)))]


@pytest.mark.parametrize("sizes", [(1, 9), (9, 1)], ids=["higher first", "lower first"])
def test_moves_apart_meet_so_that_a_key_has_one_entry(
    bench: MakeBench, set_limits: SetLimits, sizes: tuple[int, int]
) -> None:
    """Whichever of the two levels is committed first."""
    set_limits(KEY_LEVEL_MIN=1)
    b = bench("fair")
    b.queue.put_many(b.db, ["x"] * 3, key="a")
    mine, theirs = (partial(b.queue.put_many, data=["x"] * size, key="a") for size in sizes)
    assert meets(b, mine, theirs)


def test_counting_leaves_nothing_of_a_key_that_was_busy(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(KEY_LEVEL_MIN=0)
    b = bench("utube", key_concurrency=5)
    b.queue.put_many(b.db, range(20), key="a")
    session = Session(b.db, ttr=LONG_S)
    while tasks := b.queue.take_many(b.db, 3, session=session):
        for task in tasks:
            b.queue.ack(b.db, task)
    assert b.contents() == []


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_moving_key_has_its_oldest_task_in_either_partition(
    parted: MakeParted, before: int, after: int
) -> None:
    b = parted("utube", partitions=before)
    key = moving_key(0, 2, 4) if before < after else key_in(3, 4)
    old = b.put("old", key=key)
    b.clock.advance(5)
    b.repartition(after)
    b.put("new", key=key)
    assert len({*b.places().values()}) == 2
    [found] = b.queue.key_statistics(b.db, 9)
    assert (found.key, found.ready, found.oldest.id) == (key, 2, old)
    assert found.oldest.age_s >= 5
