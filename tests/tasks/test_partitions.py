"""Partitions: a queue that is several keeps the promises of one. Each rule is a test, on every engine."""

from typing import Any

import pytest

from fdbqueue import Database, QueueFull, Session, TaskQueue, verify
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, QueueBusy, QueueNotFound
from fdbqueue.core.partitions import home_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.ending import end_in, end_in_all_queues
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.repartition import Settling
from fdbqueue.tasks.stored.records import id_bytes, partition_of
from tests.partitions.support import key_in
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeParted
from tests.tasks.support import SetLimits

KINDS = ("fifottl", "utube", "fair", "bag")
KEYED = ("utube", "utubettl", "fair")


@pytest.mark.parametrize("count", [0, -1, 257, 1.5, "4", True])
def test_a_bad_number_is_refused_and_changes_nothing(parted: MakeParted, count: Any) -> None:
    b = parted(partitions=2)
    before = b.contents()
    with pytest.raises(InvalidArgument):
        b.repartition(count)
    with pytest.raises(InvalidArgument):
        TaskQueue.create(b.db, "other", partitions=count, root=b.root)
    assert (b.contents(), b.queue.options["partitions"]) == (before, 2)
    with pytest.raises(QueueNotFound):
        TaskQueue.open(b.db, "other", root=b.root)


@pytest.mark.commits_by_hand
def test_256_partitions_work(parted: MakeParted) -> None:
    b = parted(partitions=256)
    ids = b.put_each(range(300))
    assert {partition_of(id_bytes(id_)) for id_ in ids} == set(range(256))
    taken: list[Any] = []
    while found := b.queue.take_many(b.db, 100, session=b.session):
        taken += [task.data for task in found]
    assert sorted(taken) == list(range(300))


def test_a_kick_does_not_conflict_with_a_change_elsewhere(parted: MakeParted) -> None:
    """It kicks a task of the first partition that has one, and has looked at both."""
    b = parted(partitions=2)
    ids = sorted(b.put_each(range(4)), key=lambda id_: partition_of(id_bytes(id_)))
    for id_ in (ids[0], ids[-1]):
        b.queue.bury(b.db, id_)
    tr = begin(b.db)
    assert b.queue.kick(tr) == 1
    b.queue.delete(b.db, ids[-1])
    assert commit_code(tr) == 0


def test_the_present_number_changes_nothing(parted: MakeParted) -> None:
    b = parted(partitions=4)
    before = b.contents()
    assert b.repartition(4).is_finished
    assert (b.contents(), b.plan().epoch) == (before, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_without_partitions_keeps_its_keys(parted: MakeParted, kind: str) -> None:
    b = parted(kind)
    b.put_each(range(9))
    b.queue.bury(b.db, b.take())
    assert len(b.taken_data()) == 8
    columns = {key[len(b.queue.contents.key()) + 1] for key in b.contents()}
    assert max(columns) < 24
    assert b.plan() is None
    assert "partitions" not in b.queue.options or b.queue.options["partitions"] in (None, 1)


@pytest.mark.parametrize("kind", KEYED)
def test_the_tasks_of_a_key_lie_in_one_partition(parted: MakeParted, kind: str) -> None:
    b = parted(kind, partitions=4)
    for key in range(20):
        ids = [b.put(key, key=key) for _ in range(3)]
        assert {b.places()[id_] for id_ in ids} == {home_of(key_bytes(key), 4)}
    assert set(b.places().values()) == {0, 1, 2, 3}


def test_tasks_that_are_put_together_stay_together(parted: MakeParted) -> None:
    b = parted(partitions=4)
    tasks = b.queue.put_many(b.db, range(9))
    assert len({b.places()[task.id] for task in tasks}) == 1
    assert b.taken_data() == list(range(9))


def test_a_take_elsewhere_conflicts_with_no_put_at_home(parted: MakeParted) -> None:
    """The home is empty, and proves nothing: the other partition has the task."""
    b = parted("utube", partitions=2)
    b.put_each(range(9))
    assert len(b.taken_data()) == 9
    for there in (0, 1):  # one of them is the home
        b.put("there", key=key_in(there, 2))
        tr = begin(b.db)
        task = b.queue.take(tr, session=b.session)
        assert task is not None
        b.put("at home", key=key_in(1 - there, 2, nth=1))
        assert (task.data, commit_code(tr)) == ("there", 0)
        assert b.taken_data() == ["at home"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_proven_over_all_partitions(parted: MakeParted, kind: str) -> None:
    """A put anywhere conflicts with the answer, before the flags are cleared, and after."""
    b = parted(kind, partitions=8)
    b.put_each(range(16))
    assert len(b.taken_data()) == 16
    for number in range(16):
        tr = begin(b.db)
        assert b.queue.take(tr, session=b.session) is None
        tr.set(b.root.pack(("answer",)), b"nothing")
        b.put_each([100 + number])
        assert commit_code(tr) == NOT_COMMITTED
        assert b.take().data == 100 + number


def test_a_truncate_in_steps_empties_all_partitions(parted: MakeParted) -> None:
    b = parted(partitions=4)
    b.put_each(range(12))
    assert [b.queue.truncate_some(b.db, 5) for _ in range(4)] == [5, 5, 2, 0]
    assert b.counts("total") == (0,)


def test_a_drop_sees_all_partitions_and_leaves_no_key(parted: MakeParted) -> None:
    b = parted(partitions=4)
    b.put_each(range(4))
    held = [b.take() for _ in range(4)]
    for task in held:
        with pytest.raises(QueueBusy):
            b.queue.drop(b.db)
        b.queue.ack(b.db, task)
    b.queue.drop(b.db)
    assert b.contents() == {}


def test_a_process_that_ends_a_session_first_uses_all_partitions(parted: MakeParted) -> None:
    """Ending a session in partition 1 is its first use of the queue."""
    b = parted("fifottl", partitions=2)
    b.put_each([0, 1])
    with Database(b.db.engine, b.db.runtime) as other:
        end_in(other, b.queue._shape.partition(1), b"dead", died=True)
        queue = TaskQueue.open(other, b.queue.name, root=b.root)
        assert sorted(task.data for task in queue.take_many(other, 2) + queue.take_many(other, 2)) == [0, 1]
        assert verify(other, queue).findings == ()


def test_the_end_of_many_sessions_asks_for_few_ranges_at_once(
    parted: MakeParted, set_limits: SetLimits
) -> None:
    """A transaction lives for five seconds: it cannot ask each partition for each session."""
    set_limits(TAKEN_READ_MAX=1, HOLDINGS_ASKED_MAX=12)
    b = parted("fifottl", partitions=8)
    b.put_each(range(8))
    sessions = [Session(b.db, ttr=60) for _ in range(5)]
    for session in sessions:
        assert b.queue.take(b.db, 0, session=session) is not None
    engine = AskedRanges(b.db.engine)
    with Database(engine, b.db.runtime) as other:  # type: ignore[arg-type]  # options are never asked for
        left = end_in_all_queues(other, RootKeys(b.root), {one.id: "" for one in sessions}, True)
    assert (left, b.counts("ready", "taken")) == (set(), (8, 0))
    assert max(engine.asked) <= 12


class AskedRanges:
    """An engine that counts the ranges that each transaction asks for by snapshot."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.asked: list[int] = []

    def create_transaction(self) -> Any:
        self.asked.append(0)
        return Asking(self.engine.create_transaction(), self.asked, len(self.asked) - 1)


class Asking:
    def __init__(self, tr: Any, asked: list[int], number: int) -> None:
        self._tr, self._asked, self._number = tr, asked, number

    def __getattr__(self, name: str) -> Any:
        if name == "snapshot":
            return Asking(self._tr.snapshot, self._asked, self._number)
        self._asked[self._number] += name == "get_range"
        return getattr(self._tr, name)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_put_of_more_than_the_capacity_does_not_wait(parted: MakeParted, partitions: int) -> None:
    """There can never be room for it."""
    b = parted("limfifottl", capacity=2, partitions=partitions)
    began = b.clock.now()
    with pytest.raises(QueueFull):
        b.queue.put_many(b.db, range(3), timeout=60)
    assert b.clock.now() == began


def test_a_put_that_waits_for_room_gives_up_in_time(parted: MakeParted) -> None:
    b = parted("limfifottl", capacity=4, partitions=4)
    b.put_each(range(4))
    began, commits = b.clock.monotonic(), b.db.counters.commits
    with pytest.raises(QueueFull):
        b.queue.put(b.db, "x", timeout=5.0)
    assert b.clock.monotonic() - began >= 5
    assert b.db.counters.commits - commits < 20


def test_a_task_that_expires_anywhere_makes_room(parted: MakeParted) -> None:
    b = parted("limfifottl", capacity=4, partitions=4)
    for number in range(4):
        b.put(number, ttl=3 if number == 2 else None)
    began = b.clock.monotonic()
    assert b.queue.put(b.db, "x", timeout=50.0)
    assert b.clock.monotonic() - began < 4


def test_any_transaction_goes_by_the_clock_of_its_database(parted: MakeParted) -> None:
    """Transactions of the binding have the real clock. A sweep by two clocks finds tasks, and leaves them."""
    b = parted("limfifottl", capacity=4, partitions=4)
    b.clock.advance(5e9)  # the real clock is behind
    for number in range(4):
        b.put(number, ttl=3)
    b.clock.advance(4)
    tr = b.db.engine.create_transaction()
    assert b.queue.put(tr, "x")
    tr.commit().wait()


def test_a_put_reads_its_key_after_it_has_made_room(parted: MakeParted) -> None:
    b = parted("fair", capacity=4, partitions=2)
    for number in range(4):
        b.put(number, key="a", ttl=1)
    b.clock.advance(2)
    b.put("new", key="a")
    assert b.taken_data() == ["new"]
    assert verify(b.db, "bench", root=b.root).findings == ()


@pytest.mark.parametrize("partition", [0, 1])
def test_a_session_holds_tasks_in_a_queue_that_fails(parted: MakeParted, partition: int) -> None:
    """In any partition: the definition has an option of a newer release for a while."""
    b = parted("utube", partitions=2)
    keys = RootKeys(b.root)
    other = Database(b.db.engine, b.clock)
    b.put("x", key=key_in(partition, 2))
    session = Session(other, ttr=5, root=b.root)
    assert b.queue.take(other, 0, session=session) is not None
    stored = bytes(b.db[keys.definition("bench")])
    b.db[keys.definition("bench")] = stored.replace(b'"codec"', b'"newer": 1, "codec"', 1)
    b.clock.advance(6)
    end_the_dead(b.db, keys)
    b.db[keys.definition("bench")] = stored
    b.clock.advance(1_000)
    end_the_dead(b.db, keys)
    assert b.counts("ready", "taken") == (1, 0)


def test_the_end_of_a_partition_is_due_until_it_commits(parted: MakeParted) -> None:
    b = parted("fifottl", partitions=2)
    while (id_ := b.put("last")) and b.places()[id_] == 0:
        b.queue.delete(b.db, id_)
    b.queue.bury(b.db, id_)
    b.repartition(1)
    b.queue.delete(b.db, id_)
    settling = Settling(calls_of(b.db, b.queue._shape).parts, b.clock.monotonic)
    assert settling.step(b.db.create_transaction())  # its commit is lost
    assert run(b.db, settling.step)
    assert len(b.queue.partitions(b.db)) == 1
