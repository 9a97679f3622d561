"""The trash: purged tasks are kept for a day, and come back as they were."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Failure, Group, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, QueueDropped, TrashFull
from fdbqueue.core.partitions import home_of
from fdbqueue.operate.exports import trash
from fdbqueue.operate.exports.trash import _Summary, too_many
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.selected import ChangedTasks
from fdbqueue.tasks.trashed import Emptying, over_us
from tests.queue_support import faulty
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, MakeBench, SetLimits


@pytest.fixture
def b(bench: MakeBench) -> Iterator[Bench]:
    made = bench("utubettl")
    yield made
    assert not verify(made.db).findings


def purge(b: Bench, **given: Any) -> int:
    return trash.purge(b.queue, b.db, "ann", **given).changed


def lying(b: Bench) -> list[int]:
    return [one.tasks for one in trash.listed(b.queue, b.db)]


def rows(b: Bench) -> list[bytes]:
    keys = b.queue._shape.root
    return [key for key, _ in b.stored() if keys.shape_of(key)[0] in (20, 21, 22)]


def test_tasks_of_each_state_come_back_as_they_were(b: Bench) -> None:
    first = b.put({"n": 1}, key="a", pri=3, ttr=9, ttl=1000, headers={"t": "x"})
    large = b.put("x" * 300_000, key="a")
    later, bad = b.put(key="b", delay=60), b.put(key="c")
    b.queue.bury(b.db, bad, failure=Failure("ValueError", "odd"))
    ids = [first, large, later, bad]
    before = [b.queue.peek(b.db, id_) for id_ in ids]
    assert purge(b) == 4
    assert (b.counts("total", "done"), b.contents(), lying(b)) == ((0, 0), [], [4])
    assert trash.restore(b.queue, b.db) == trash.Restored(4, 0, None)
    assert [b.queue.peek(b.db, id_) for id_ in ids] == before
    assert [one.error for one in b.queue.failures(b.db, bad)] == ["ValueError"]
    assert (b.counts("ready", "delayed", "buried"), rows(b)) == ((2, 1, 1), [])
    assert [b.take().id, b.take()] == [large, None]  # one of the key, by priority


def test_a_taken_task_is_ready_after_a_restore(b: Bench) -> None:
    held = b.put("held", key=1)
    task = b.take()
    assert purge(b) == 1
    trash.restore(b.queue, b.db)
    assert b.state(held) == "r"
    again = b.take()
    assert (again.data, again.attempts, again.token != task.token) == ("held", task.attempts + 1, True)


def test_a_purge_with_filters_takes_waiting_tasks_only(b: Bench) -> None:
    b.put("held", key=1)
    held, other, mine = b.take(), b.put({"to": "bob"}, key=2), b.put({"to": "ada"}, key=3)
    assert purge(b, where={"data.to": "ada"}) == 1
    assert [b.state(held.id), b.state(other)] == ["t", "r"]
    trash.restore(b.queue, b.db)
    assert b.state(mine) == "r"


def test_a_task_stays_while_another_has_its_unique_key(b: Bench) -> None:
    first, free = b.put("first", key=1, unique="u"), b.put(key=2)
    purge(b)
    [before] = trash.listed(b.queue, b.db)
    second = b.put("second", key=1, unique="u")
    assert second != first
    assert trash.restore(b.queue, b.db) == trash.Restored(1, 1, None)
    [rest] = trash.listed(b.queue, b.db)
    assert (b.state(free), rest.tasks, rest.size_bytes < before.size_bytes, rest.actor) == (
        "r",
        1,
        True,
        "ann",
    )
    b.queue.delete(b.db, second)
    assert trash.restore(b.queue, b.db).tasks == 1
    assert b.put("third", key=1, unique="u") == first


def test_a_group_counts_no_purged_task(b: Bench) -> None:
    group = Group.create(b.db)
    member = b.put(key=1, group=group)
    group.close(b.db)
    purge(b)
    b.sweep()
    b.clock.advance(1)
    b.sweep()
    assert group.progress(b.db).left == 0
    trash.restore(b.queue, b.db)
    assert b.state(member) == "r"


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "fair", "bag"])
def test_tasks_of_all_kinds_are_taken_again(bench: MakeBench, kind: str) -> None:
    b = bench(kind)
    keyed = b.queue._shape.kind.supports("key")
    for n in range(9):
        b.put(n, **({"key": n % 2} if keyed else {}))
    purge(b)
    b.put(9, **({"key": 0} if keyed else {}))
    trash.restore(b.queue, b.db)
    assert not verify(b.db).findings
    found = list[Any]()
    while (task := b.take()) is not None:
        found.append(task.data)
        b.queue.ack(b.db, task)
    assert sorted(found) == list(range(10))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("kind", ["utubettl", "fifottl"])
def test_tasks_join_the_partitions_of_now(parted: MakeParted, kind: str, count: int) -> None:
    b = parted(kind, partitions=3)
    ids = b.put_each(range(20))
    purge(b)
    b.repartition(count)
    b.settle()
    assert trash.restore(b.queue, b.db).tasks == 20
    places = b.places()
    assert {*places.values()} <= {*range(count)}
    if b.keyed:
        assert [places[id_] for id_ in ids] == [home_of(key_bytes(n), count) for n in range(20)]
    assert {task.id for task in iter(b.take, None)} == {*ids}


def test_many_and_large_tasks_take_several_transactions(bench: MakeBench, set_limits: SetLimits) -> None:
    b = bench("fifo")
    set_limits(VERB_BATCH=7, TRASH_ROWS=10, MOVED_BYTES_MAX=500_000)
    ids = [b.put("x" * (600_000 if n == 3 else 250_000 if n % 5 else 10)) for n in range(30)]
    assert (purge(b), lying(b)) == (30, [30])
    told = list[trash.Restored]()
    trash.restore(b.queue, b.db, progress=told.append)
    assert max(now.tasks - before.tasks for before, now in pairwise(told)) == 2
    assert [task.id for task in iter(b.take, None)] == ids
    assert rows(b) == []


def test_a_task_comes_back_with_all_its_pieces(bench: MakeBench, set_limits: SetLimits) -> None:
    b = bench("fifo")
    set_limits(TRASH_ROWS=4)
    for _ in range(3):
        b.put("x" * 250_000)  # in three pieces
    purge(b)
    assert trash.restore(b.queue, b.db) == trash.Restored(3, 0, None)


def test_a_restore_ends_at_its_bound_and_goes_on(b: Bench, set_limits: SetLimits) -> None:
    assert (purge(b), lying(b)) == (0, [])
    b.queue.put_many(b.db, range(5), key=1)
    purge(b)
    set_limits(VERB_BATCH=2)
    first = trash.restore(b.queue, b.db, most=2)
    assert (first.tasks, first.after is None, lying(b)) == (2, False, [3])
    assert trash.restore(b.queue, b.db) == trash.Restored(3, 0, None)


def test_a_purge_fills_the_trash_step_by_step(b: Bench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=2)
    b.queue.put_many(b.db, range(4), key=1)
    assert (purge(b, most=4), lying(b)) == (4, [4])
    assert trash.restore(b.queue, b.db).tasks == 4


def test_a_restore_looks_at_each_task_once(b: Bench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=1)
    for _ in range(2):
        b.queue.put_many(b.db, range(3), key=1)
        b.put(key=2, unique="u")
        b.put(key=2, unique="v")
        purge(b)
    b.put(key=2, unique="u")
    b.put(key=2, unique="v")
    assert trash.restore(b.queue, b.db) == trash.Restored(3, 2, None)


@pytest.mark.parametrize("is_restore", [False, True])
def test_a_drop_ends_a_purge_and_a_restore(bench: MakeBench, set_limits: SetLimits, is_restore: bool) -> None:
    set_limits(VERB_BATCH=1, LOOKED_THROUGH=1)
    b = bench("fifo")
    b.queue.put_many(b.db, range(3))

    def drop(_: Any) -> None:
        TaskQueue.open(b.db, "bench").drop(b.db)

    verb: Callable[..., Any] = partial(purge, b)
    if is_restore:
        verb()
        verb = partial(trash.restore, b.queue, b.db)
    with pytest.raises(QueueDropped):
        verb(progress=drop)


def test_a_purge_ends_beside_puts_that_go_on(b: Bench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=2, LOOKED_THROUGH=2)
    ids = [b.put(key=1) for _ in range(5)]

    def more(so_far: ChangedTasks) -> None:
        assert so_far.changed <= 6
        b.queue.put_many(b.db, range(3), key=1)

    assert purge(b, progress=more) == 5
    assert (lying(b), b.counts("ready"), b.take().id in ids) == ([5], (9,), False)


@pytest.mark.parametrize("fate", [(COMMIT_UNKNOWN, True), (COMMIT_UNKNOWN, False), (NOT_COMMITTED, False)])
def test_an_unknown_commit_moves_each_task_once(
    db: Database, space: Subspace, fdb_module: ModuleType, fate: tuple[int, bool]
) -> None:
    db, engine = faulty(db, fdb_module.FDBError)
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.put_many(db, range(5))
    fates = [fate, fate]
    engine.fate = lambda _: fates.pop() if fates else (0, True)
    assert trash.purge(queue, db, "ann").changed == 5
    fates += [fate, fate]
    assert trash.restore(queue, db).tasks == 5
    assert queue.statistics(db)["tasks"]["ready"] == 5
    assert not verify(db, root=space).findings


def test_the_latest_purge_comes_first_and_ids_choose(b: Bench) -> None:
    for n in range(3):
        b.queue.put_many(b.db, [n] * (n + 1), key=n)
        purge(b)
        b.clock.advance(1)
    latest, middle, oldest = trash.listed(b.queue, b.db)
    assert (latest.tasks, middle.tasks, oldest.tasks) == (3, 2, 1)
    assert (latest.actor, latest.until - latest.at) == ("ann", limits.TRASH_KEPT_S)
    assert trash.restore(b.queue, b.db, middle.id).tasks == 2
    assert trash.empty(b.queue, b.db, oldest.id) == 1
    assert [trash.restore(b.queue, b.db).tasks, lying(b)] == [3, []]
    assert (trash.restore(b.queue, b.db), trash.empty(b.queue, b.db)) == (trash.Restored(0, 0, None), 0)
    for wrong in (oldest.id, "x"):
        with pytest.raises(InvalidArgument, match="the purge must be one that lies in the trash"):
            trash.restore(b.queue, b.db, wrong)


def test_a_sweep_clears_what_is_over(b: Bench) -> None:
    b.put(key=1)
    purge(b)
    b.clock.advance(limits.TRASH_KEPT_S - 1)
    b.sweep()
    assert lying(b) == [1]
    b.clock.advance(1)
    assert (lying(b), trash.restore(b.queue, b.db).tasks) == ([], 0)
    b.sweep()
    assert rows(b) == []


def test_a_drop_clears_the_trash_of_its_queue(b: Bench) -> None:
    other = TaskQueue.create(b.db, "other", "fifo")
    for queue in (other, b.queue):
        queue.put(b.db, "x")
        trash.purge(queue, b.db, "ann")
    other.drop(b.db)
    assert lying(b) == [1]
    b.clock.advance(limits.TRASH_KEPT_S + 1)
    b.sweep()
    assert rows(b) == []


def test_a_purge_that_is_too_large_is_refused_first(b: Bench, set_limits: SetLimits) -> None:
    b.queue.put_many(b.db, range(5), key=1)
    before = b.stored()
    with pytest.raises(TrashFull, match=r"at most 4 tasks and .* --no-trash"):
        purge(b, most=4)
    assert b.stored() == before
    set_limits(TRASH_BYTES_MAX=10)
    with pytest.raises(TrashFull):
        purge(b)
    assert (b.counts("ready"), lying(b)) == ((5,), [])


def test_old_purges_make_room(b: Bench, set_limits: SetLimits) -> None:
    set_limits(TRASH_PURGES_MAX=2)
    for n in range(3):
        b.queue.put_many(b.db, range(n + 1), key=1)
        purge(b)
        b.clock.advance(1)
    assert lying(b) == [3, 2]
    b.put(key=1)
    assert purge(b, most=4) == 1
    assert lying(b) == [1, 3]
    assert trash.empty(b.queue, b.db) == 4
    assert rows(b) == []


def test_the_oldest_go_until_the_rest_fits(set_limits: SetLimits) -> None:
    set_limits(TRASH_BYTES_MAX=10, TRASH_PURGES_MAX=3)
    one = _Summary("", 1, 2)
    three = dict.fromkeys((b"1", b"2", b"3"), one)
    two = dict.fromkeys((b"2", b"3"), one)
    assert too_many(three, one, 9) == [b"1"]
    assert too_many(two, one, 9) == []
    assert too_many(two, _Summary("", 1, 7), 9) == [b"2"]
    assert too_many(two, one, 2) == [b"2"]


def test_damaged_rows_are_left_and_cleared_at_their_end(b: Bench) -> None:
    kept, lost = b.put("kept", key=1), b.put("lost", key=2)
    purge(b)
    keys, id_ = b.queue._shape.root, b.queue._shape.definition.id
    [one] = trash.listed(b.queue, b.db)
    under = keys.trashed_by(id_, bytes.fromhex(one.id))
    [_, last] = [row.key for row in b.db.get_range(under.start, under.stop)]
    b.db[last] = b"odd"
    b.db[keys.trash_overs.start + b"\x01"] = b"odd"
    assert trash.restore(b.queue, b.db) == trash.Restored(1, 1, None)
    assert b.state(kept) == "r"
    b.clock.advance(limits.TRASH_KEPT_S + 1)
    b.sweep()
    assert (rows(b), over_us(bytes(12)), lost != kept) == ([], limits.TRASH_KEPT_S * 1_000_000, True)


def test_a_purge_with_a_damaged_summary_is_restored(b: Bench, set_limits: SetLimits) -> None:
    set_limits(VERB_BATCH=1)
    first = b.put(0, key=0, unique="u")
    b.put(1, key=1)
    purge(b)
    second = b.put(2, key=0, unique="u")
    [one] = trash.listed(b.queue, b.db)
    shape = b.queue._shape
    b.db[shape.root.purge(shape.definition.id, bytes.fromhex(one.id))] = b"\xff"
    assert trash.restore(b.queue, b.db, one.id) == trash.Restored(1, 1, None)
    b.queue.delete(b.db, second)
    assert trash.restore(b.queue, b.db, one.id) == trash.Restored(1, 0, None)
    assert (b.state(first), rows(b)) == ("r", [])


def test_the_trash_of_a_dropped_queue_is_refused(bench: MakeBench) -> None:
    b = bench("fifo")
    b.queue.drop(b.db)
    for call in (trash.listed, trash.restore, trash.empty):
        with pytest.raises(QueueDropped):
            call(b.queue, b.db)


def test_a_queue_without_trash_is_swept_by_one_read(b: Bench) -> None:
    """The whole root has one first purge: no queue is asked."""
    emptying = Emptying(b.db, b.queue._shape.root)
    tr = b.db.create_transaction()
    assert (emptying.ask_next_due(tr)(), emptying.tidy(tr)) == (None, False)
