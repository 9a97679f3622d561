"""Repartitions: the number of partitions changes under load, and no promise is broken meanwhile."""

from collections.abc import Iterable
from typing import Any

import pytest

from fdbqueue import Database, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, RepartitionUnderWay, TaskNotFound
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.partitions import PartitionGone, home_of
from fdbqueue.core.runtime import Waitable
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import Swept, calls_of
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import id_bytes, id_text, partition_of, record_of
from fdbqueue.tasks.verbs import Target
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeParted, PartitionsBench, moving_key
from tests.tasks.support import StillClock

KEYED = ("utube", "utubettl", "fair")
KEY = moving_key(1, 4)


def done_by_key(b: PartitionsBench) -> dict[Any, list[Any]]:
    """Take and ack until nothing is left. The data of each task key, in order."""
    found: dict[Any, list[Any]] = {}
    while (task := b.take()) is not None:
        found.setdefault(task.key, []).append(task.data)
        b.queue.ack(b.db, task)
    return found


def test_a_key_without_tasks_moves_at_once(parted: MakeParted) -> None:
    b = parted("utube")
    b.put("old", key=KEY)
    b.queue.ack(b.db, b.take())
    b.repartition(4)
    b.put("new", key=KEY)
    assert b.take().data == "new"


def test_tasks_without_keys_move_at_once(parted: MakeParted) -> None:
    b = parted()
    b.put_each(range(4))
    assert b.repartition(4).is_finished
    b.put_each(range(4, 12))
    assert len(set(b.places().values())) == 4
    assert sorted(b.taken_data()) == list(range(12))


def test_a_key_that_never_pauses_moves_in_bounded_time(parted: MakeParted) -> None:
    """It moves when the tasks are gone that it had at the change, however many follow."""
    b = parted("utube")
    for number in range(5):
        b.put(number, key=KEY)
    task = b.take()
    b.repartition(4)
    done = []
    for number in range(5, 12):
        b.put(number, key=KEY)
        done.append(b.queue.ack(b.db, task).data)
        task = b.take()
    assert done == list(range(7))
    assert b.places()[task.id] == home_of(key_bytes(KEY), 4)
    b.settle()
    assert b.plan().before == 0


def test_a_task_that_moves_back_home_is_found(parted: MakeParted) -> None:
    b = parted("utube", partitions=4)
    id_ = b.put("back", key=KEY)
    for count in (1, 4):
        b.queue.bury(b.db, id_)
        assert b.repartition(count).is_finished
        assert b.queue.kick(b.db) == 1
    assert b.places()[id_] == partition_of(id_bytes(id_)) == home_of(key_bytes(KEY), 4)
    assert b.queue.peek(b.db, id_).data == "back"
    assert b.queue.ack(b.db, b.take()).id == id_
    assert b.db[b.queue._shape.shared.moved(id_bytes(id_))] is None


def test_a_second_repartition_is_refused_and_names_the_first(parted: MakeParted) -> None:
    b = parted("utube")
    b.put("x", key=KEY)
    assert not b.repartition(4).is_finished
    before = b.contents()
    with pytest.raises(RepartitionUnderWay) as refused:
        b.repartition(2)
    assert (refused.value.before, refused.value.partitions) == (1, 4)
    assert b.contents() == before
    b.queue.ack(b.db, b.take())
    assert b.repartition(4).is_finished
    assert b.repartition(2).is_finished


def test_a_handle_tells_the_options_that_its_process_has_met(parted: MakeParted) -> None:
    b = parted(partitions=2)
    db = Database(b.db.engine, b.clock)
    other = TaskQueue.open(db, "bench", root=b.root)
    assert other.options["partitions"] == 2
    b.repartition(3)
    other.put(db, "x")
    assert [handle.options["partitions"] for handle in (b.queue, other)] == [3, 3]


def test_the_command_finishes_a_dead_repartition(parted: MakeParted) -> None:
    b = parted("utube")
    b.put("old", key=KEY)
    assert not b.repartition(4).is_finished
    b.queue.ack(b.db, b.take())
    other = b.other_process()
    again = other.repartition(other._database, 4)
    assert (again.before, again.partitions, again.is_finished) == (1, 4, True)


def test_an_empty_closed_partition_goes(parted: MakeParted) -> None:
    b = parted("utubettl", partitions=4)
    b.put_each(range(12))
    assert len(done_by_key(b)) == 12
    assert b.repartition(1).is_finished
    b.clock.advance(limits.PARTITIONS_LOWERED_EVERY_S)
    b.settle()
    assert b.plan().high == 1
    assert [part.number for part in b.queue.partitions(b.db)] == [0]
    assert b.counts("put", "take", "ack") == (12, 12, 12)
    under = b.queue._shape.shared.partitions
    assert not [key for key in b.contents() if under.start <= key < under.stop]


def test_a_partition_with_a_task_stays_until_the_task_goes(parted: MakeParted) -> None:
    b = parted("fifottl", partitions=2)
    ids = b.put_each(range(2))
    [id_] = [one for one in ids if b.places()[one] == 1]
    b.queue.bury(b.db, id_)
    b.repartition(1)
    for has_gone in (False, True):
        b.clock.advance(limits.PARTITIONS_LOWERED_EVERY_S)
        b.settle()
        assert b.plan().high == (1 if has_gone else 2)
        assert b.state(id_) == "!" if not has_gone else True
        if not has_gone:
            b.queue.delete(b.db, id_)
    with pytest.raises(TaskNotFound):
        b.queue.peek(b.db, id_)


def test_acks_follow_a_plan_that_another_thread_meets(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition of the acked task goes, while the transaction looks for the task."""
    b = parted(partitions=2)
    b.put_each(range(2))
    done = [b.queue.ack(b.db, b.take()) for _ in range(2)]
    parts, place_of = calls_of(b.db, b.queue._shape).parts, Parts.place_of
    b.repartition(1)

    def meet(self: Parts, *args: Any) -> int:
        place = place_of(self, *args)
        if b.plan().high > 1:
            b.clock.advance(limits.PARTITIONS_LOWERED_EVERY_S)
            b.settle()
        return place

    monkeypatch.setattr(Parts, "place_of", meet)
    targets = [Target(id_bytes(task.id), b"token") for task in done]
    answers = run(b.db, lambda tr: parts.each(tr, targets, verbs.ack_each))
    assert [type(answer) for answer in answers] == [NotTaken] * 2
    assert b.plan().high == 1


@pytest.mark.parametrize("end", ["delete", "expire"])
def test_a_task_that_ends_elsewhere_holds_no_key(parted: MakeParted, end: str) -> None:
    """It ends in the partition of an earlier plan, while its key moves between others."""
    b = parted("utubettl")
    key = next(n for n in range(99) if home_of(key_bytes(n), 2) == 1 < home_of(key_bytes(n), 8))
    id_ = b.put("late", key=key, delay=9, ttl=1 if end == "expire" else None)
    b.repartition(2)
    b.put("first", key=key)
    assert not b.repartition(8).is_finished
    b.clock.advance(60)
    b.queue.delete(b.db, id_) if end == "delete" else b.settle()
    b.queue.ack(b.db, b.take())
    assert verify(b.db, "bench", root=b.root).findings == ()
    b.settle()
    b.repartition(1)
    b.put("last", key=key)
    assert b.take().data == "last"


@pytest.mark.parametrize("kind", KEYED)
def test_a_key_is_let_go_after_its_tasks_are_set_aside(parted: MakeParted, kind: str) -> None:
    """A mending knows no other partition."""
    b = parted(kind)
    id_ = id_bytes(b.put("damaged", key=KEY))
    keys, discipline = b.queue._shape.keys, b.queue._shape.discipline
    filed = discipline.filed(record_of(b.db[keys.task(id_)]))
    b.repartition(4)
    b.put("new", key=KEY)
    for key in (keys.task(id_), filed):
        b.db[key] = b"damaged"
    b.queue.delete(b.db, id_text(id_))
    b.settle()
    assert b.repartition(4).is_finished
    assert b.taken_data() == ["new"]
    assert verify(b.db, "bench", root=b.root).findings == ()


def test_a_task_that_expires_in_a_put_holds_no_key(parted: MakeParted) -> None:
    """The put makes room: it removes the old task of its own key."""
    b = parted("fair", capacity=2, partitions=2)
    key = moving_key(2, 4)
    b.put("old", key=key, ttl=1)
    b.put("old", key=key, ttl=1)
    b.repartition(4)
    b.clock.advance(2)
    b.put("new", key=key)
    assert b.taken_data() == ["new"]


def put_elsewhere(b: PartitionsBench, queue: TaskQueue, db: Database) -> None:
    """Give the queue partitions, and let each but partition 0 have a task."""
    queue.repartition(db, 4)
    for id_ in [queue.put(db, number).id for number in range(4)]:
        if b.places(db)[id_] == 0:
            queue.delete(db, id_)


def test_a_take_that_begins_to_wait_too_late_waits_for_all(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread learns the first plan between the decision to wait and the wait."""
    b, wait = parted(), Takes.wait

    def late(self: Takes, *args: Any) -> Any:
        if b.plan() is None:
            put_elsewhere(b, b.queue, b.db)
        return wait(self, *args)

    monkeypatch.setattr(Takes, "wait", late)
    began = b.clock.monotonic()
    assert b.take(timeout=60) is not None
    assert b.clock.monotonic() - began < 0.5


def test_every_database_of_a_handle_hears_of_partitions(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, wait_any = parted(), StillClock.wait_any
    other = Database(b.db.engine, b.clock)
    b.queue.statistics(other)
    first = iter([True])

    def meanwhile(self: StillClock, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        if next(first, False):
            put_elsewhere(b, b.queue, other)
        return wait_any(self, futures, timeout_s)

    monkeypatch.setattr(StillClock, "wait_any", meanwhile)
    began = b.clock.monotonic()
    assert b.take(timeout=60) is not None
    assert b.clock.monotonic() - began < 0.5


def test_a_look_follows_a_plan_that_another_thread_meets(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task moves while the transaction looks for it."""
    b = parted("utubettl", partitions=2)
    id_, place_of = b.put("late", key=moving_key(2, 4), delay=1), Parts.place_of

    def meet(self: Parts, *args: Any) -> int:
        place = place_of(self, *args)
        if b.plan().count == 2:
            b.repartition(4)
            b.settle()
        return place

    monkeypatch.setattr(Parts, "place_of", meet)
    assert b.queue.peek(b.db, id_).data == "late"


def test_a_request_of_a_dead_process_keeps_no_partition(parted: MakeParted) -> None:
    b = parted("fifottl", partitions=4)
    line = calls_of(b.db, b.queue._shape).parts.part(3).line
    run(b.db, lambda tr: line.register(tr, b"dead", 1, b"", now_us=0))
    b.repartition(1)
    b.settle()
    assert len(b.queue.partitions(b.db)) == 1


def test_no_request_joins_the_line_of_a_partition_that_has_gone(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = parted("fifottl", partitions=4)
    line = calls_of(b.db, b.queue._shape).parts.part(3).line
    b.repartition(1)
    b.settle()
    with pytest.raises(PartitionGone):
        run(b.db, lambda tr: line.register(tr, b"late", 1, b"", b.db.runtime.now_us()))
    b.put(0)
    monkeypatch.setattr("fdbqueue.core.line.wide.Homes.next", lambda *_: 3)
    assert b.queue.take(b.db).data == 0


def test_a_sweep_goes_by_the_plan_that_is_stored(parted: MakeParted) -> None:
    """Another process has changed the plan since this one has looked for tasks that come due."""
    b = parted("fifottl", partitions=4)
    for number in range(4):
        b.put(number, delay=1)
    parts = calls_of(b.db, b.queue._shape).parts
    keeper = Swept(parts, b.clock)
    other = b.other_process()
    other.repartition(other._database, 1)
    b.clock.advance(2)
    while run(b.db, keeper.tidy):
        pass
    assert set(b.places().values()) == {0}


def test_one_of_two_last_tasks_at_once_lets_their_key_go(parted: MakeParted) -> None:
    """The later end has seen the other: otherwise each would leave the key to the other one."""
    b = parted("fair", partitions=1)
    for n in range(2):
        b.put(n, key=KEY)
    tasks = [b.take() for _ in range(2)]
    assert not b.repartition(4).is_finished
    b.put("moved", key=KEY)
    assert b.take() is None
    ends = [(begin(b.db), task) for task in tasks]
    for tr, task in ends:
        b.queue.ack(tr, task)
    lost = [task for tr, task in ends if commit_code(tr) == NOT_COMMITTED]
    for task in lost:
        b.queue.ack(b.db, task)
    assert b.taken_data() == ["moved"]


def test_a_client_with_an_old_plan_conflicts_and_then_follows(parted: MakeParted) -> None:
    b = parted("utube")
    other = b.other_process()
    tr = begin(other._database)
    other.put(tr, "early", key=KEY)
    b.repartition(4)
    assert commit_code(tr) == NOT_COMMITTED
    id_ = other.put(other._database, "late", key=KEY).id
    assert b.places()[id_] == home_of(key_bytes(KEY), 4)
