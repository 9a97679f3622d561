"""Takes in a transaction that meet tasks which have come due, expired or cannot be read.

None is true, within a bounded number of reads. Else the take raises.
"""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Session, TaskQueue, TooMuchToSweep
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.line.staging import Outcome, Turn
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.stored.records import id_bytes
from tests.tasks.partitions import MakeParted
from tests.tasks.support import Bench, SetLimits, StillClock
from tests.tasks.test_poison import spoil_payload, spoil_records
from tests.tasks.trips import Trips, trips_of


@pytest.fixture
def small_batches(set_limits: SetLimits) -> None:
    set_limits(DUE_BATCH=4, TIDY_ROUNDS_MAX=3)


def take(b: Any) -> Any:
    return run(b.db, lambda tr: b.queue.take(tr, session=b.session))


def test_a_batch_is_swept_from_all_partitions_together(
    trips: tuple[Database, Trips], clock: StillClock
) -> None:
    """Each partition has a task, which has expired: two batches have all of them."""
    db, engine = trips
    queue, session = TaskQueue.create(db, "trips", "fifottl", partitions=96), Session(db, ttr=1e9)
    for number in range(96):
        queue.put(db, number, ttl=5)
    clock.advance(10)
    queue.paused(db)  # the plan is known
    waited, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
    assert (task, waited < 16) == (None, True)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_nothing_is_never_told_beside_a_ready_task(parted: MakeParted, partitions: int) -> None:
    b = parted(partitions=partitions)
    for number in range(40 * partitions):  # more in each than one transaction sweeps
        b.put(number, ttl=5)
    for _ in range(partitions):
        b.put("ready")
    b.clock.advance(10)
    with pytest.raises(TooMuchToSweep) as raised:
        take(b)
    assert raised.value.name == "bench"
    assert b.take().data == "ready"


@pytest.mark.usefixtures("small_batches")
def test_nothing_is_told_after_the_last_expired_task(parted: MakeParted) -> None:
    b = parted(partitions=4)
    for number in range(11):
        b.put(number, ttl=5)
    b.clock.advance(10)
    assert take(b) is None


@pytest.mark.usefixtures("small_batches")
def test_a_paused_queue_has_nothing_whatever_is_due(parted: MakeParted) -> None:
    b = parted(partitions=2)
    for number in range(40):
        b.put(number, ttl=5)
    b.queue.pause(b.db)
    b.clock.advance(10)
    assert take(b) is None


def test_a_sweep_of_several_partitions_moves_few_bytes(parted: MakeParted, set_limits: SetLimits) -> None:
    """Each task that is due joins another partition, with its payload."""
    set_limits(MOVED_BYTES_MAX=100_000)
    b = parted(partitions=4)
    for _ in range(4):
        b.put("x" * 60_000, delay=5)
    assert sorted(b.places().values()) == [0, 1, 2, 3]
    b.repartition(1)
    b.clock.advance(10)
    sizes = []
    while b.counts("delayed")[0]:
        tr = b.db.create_transaction()
        b.queue.take(tr, session=b.session)
        sizes.append(tr.get_approximate_size().wait())
        tr.commit().wait()
    assert b.counts("ready", "taken") == (1, 3)
    assert max(sizes) < 200_000


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("partitions", [1, 2])
def test_nothing_is_never_told_beside_unreadable_tasks(parted: MakeParted, partitions: int) -> None:
    b = parted("fifo", partitions=partitions)
    for _ in range(6 * partitions):
        spoil_payload(b.db, b.queue, id_bytes(b.put("bad")))
    b.queue.put_many(b.db, ["good"])
    with pytest.raises(TooMuchToSweep):
        take(b)
    assert b.take().data == "good"


def test_a_task_that_comes_due_in_a_look_has_its_priority(still_db: Database, clock: StillClock) -> None:
    """It stands before the task that the look has found first."""
    b = Bench(still_db, clock, "fifottl")
    b.put("ready", pri=5)
    b.put("due", pri=1, delay=5)
    clock.advance(10)
    takes = calls_of(b.db, b.queue._shape)._takes.of(b.session, 0)
    takes._memory.note(Turn(Outcome.SERVED, ["x"], crowd=limits.CROWD_MIN))
    assert b.taken_data() == ["due", "ready"]


def test_a_task_that_comes_due_in_a_take_has_its_priority(parted: MakeParted) -> None:
    """It stands before the task that the take has found first."""
    b = parted("fifottl")
    b.put("ready", pri=5)
    b.put("due", pri=1, delay=5)
    b.clock.advance(10)
    assert b.taken_data() == ["due", "ready"]


def test_a_sweep_clears_an_earlier_timer_of_a_task(parted: MakeParted) -> None:
    """Each sweep would find it due, and the task not."""
    b = parted("fifottl", ttl=100)
    keys, id_ = b.queue._shape.keys, b.put("stays")
    timer = keys.timer(b.db.runtime.now_us(), id_bytes(id_))
    b.db[timer] = b""
    b.clock.advance(1)
    assert take(b).data == "stays"
    assert b.db[timer] is None


def test_a_task_with_two_timers_expires_once(parted: MakeParted) -> None:
    b = parted("fifottl", ttl=100)
    keys, stays, id_ = b.queue._shape.keys, b.put("stays"), b.put("expires", ttl=5)
    b.db[keys.timer(b.db.runtime.now_us(), id_bytes(id_))] = b""
    b.clock.advance(6)
    assert take(b).id == stays
    assert b.counts("total", "ready", "taken", "done") == (1, 0, 1, 1)
    assert fdbqueue.verify(b.db, root=b.root).findings == ()


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_look_that_is_begun_anew_gives_each_task_once(parted: MakeParted, partitions: int) -> None:
    """It begins anew behind entries that it has set aside."""
    b = parted("fifo", partitions=partitions)
    ids = [task.id for task in b.queue.put_many(b.db, range(5))]
    for damaged in ids[1:3]:
        spoil_records(b.db, b.queue, id_bytes(damaged))
    assert [task.data for task in b.queue.take_many(b.db, 3, session=b.session)] == [0, 3, 4]
    assert b.counts("ready", "taken", "take") == (0, 3, 3)
