"""Dead letters of a queue with partitions are those of all of them."""

from functools import partial

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, DeadLetters, Failure, RedriveState, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.errors import TooMuchForOneTransaction
from fdbqueue.core.page import every_row
from fdbqueue.core.transactional import transactional
from tests.partitions.support import PARTITIONS, bury_in, key_in, moving_key
from tests.tasks.test_callbacks import Told

FAST = 1e6


@pytest.fixture
def queue(db: Database, space: Subspace) -> TaskQueue:
    return TaskQueue.create(db, "q", "utubettl", root=space, partitions=PARTITIONS)


@pytest.fixture
def letters(db: Database, space: Subspace, queue: TaskQueue) -> DeadLetters:
    return DeadLetters.open(db, queue.name, root=space)


@pytest.fixture
def buried(db: Database, queue: TaskQueue) -> list[str]:
    """Two tasks in each partition, with failures of two classes."""
    return [bury_in(queue, db, n, error, n) for n in range(PARTITIONS) for error in ("A", "B")]


def listed(letters: DeadLetters, db: Database, limit: int, **matching) -> list[str]:
    return [letter.task.id for letter in every_row(partial(letters.tasks, db, limit, **matching))]


def counted(letters: DeadLetters, db: Database) -> dict[str | None, int]:
    return {found.error: found.tasks for found in letters.classes(db)}


def test_classes_count_the_tasks_of_all_partitions(db, queue, letters) -> None:
    late = bury_in(queue, db, 3, "C")
    for partition in range(PARTITIONS):
        bury_in(queue, db, partition)
    first, second = letters.classes(db)
    assert (first.error, first.tasks, first.failure.message) == ("A", PARTITIONS, "in 0")
    assert (second.error, second.tasks, second.first) == ("C", 1, late)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_listings_go_through_all_partitions(db, letters, buried, limit) -> None:
    assert listed(letters, db, limit) == buried
    assert listed(letters, db, limit, error="B") == buried[1::2]
    assert listed(letters, db, limit, text="in 3") == buried[-2:]


def test_one_task_is_edited_and_kicked_in_its_partition(db, queue, letters, buried) -> None:
    letters.edit(db, buried[-1], "new", kick=True)
    assert letters.kick(db, buried[-3]).data == 2
    queue.delete(db, buried[-2])
    assert counted(letters, db) == {"A": 3, "B": 2}
    assert queue.take(db, 0).data in ("new", 2)


def test_an_edit_that_moves_a_task_writes_its_data_once(db, queue, letters) -> None:
    """Twice they would not fit into the transaction."""
    id_ = queue.put(db, "x" * limits.PAYLOAD_PIECE_BYTES_MAX, key=moving_key(1, PARTITIONS, 7)).id
    queue.bury(db, id_)
    queue.repartition(db, 7)
    told = Told()
    queue.on_task_change(told)
    data = "y" * (limits.PAYLOAD_BYTES_MAX - 1_000)
    letters.edit(db, id_, data, kick=True)
    told.names(1)
    assert told.events == [(data, "kick", "r")]
    assert queue.take(db, 60).data == data
    assert verify(db, queue).findings == ()


def test_all_that_match_are_kicked(db, letters, buried) -> None:
    assert letters.kick_matching(db, error="A") == len(buried) // 2
    assert transactional(lambda tr: letters.kick_matching(tr, text="in 2"))(db) == 1
    assert counted(letters, db) == {"B": PARTITIONS - 1}


def test_too_many_in_all_partitions_together_are_refused(db, letters, buried, monkeypatch) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 3)
    with pytest.raises(TooMuchForOneTransaction):
        transactional(lambda tr: letters.kick_matching(tr, error="A"))(db)
    assert letters.kick_matching(db) == len(buried)


def test_a_redrive_goes_through_all_partitions(db, letters, buried) -> None:
    begun = letters.begin_redrive(db, error="A", rate_per_s=FAST)
    assert begun.left == len(buried) // 2
    done = letters.run_redrive(db)
    assert (done.state, done.moved, done.left) == (RedriveState.DONE, PARTITIONS, 0)
    assert counted(letters, db) == {"B": PARTITIONS}


def test_a_redrive_goes_on_in_its_partition(db, queue, letters, buried, monkeypatch) -> None:
    """A task that is buried again lies behind its cursor."""
    monkeypatch.setattr(limits, "VERB_BATCH", 3)
    letters.begin_redrive(db, rate_per_s=FAST)
    assert letters.step_redrive(db).redrive.partition == 1
    queue.bury(db, queue.take(db, 0).id, failure=Failure("A"))
    assert letters.run_redrive(db).moved == len(buried)
    assert counted(letters, db) == {"A": 1}


def test_a_redrive_moves_into_partitions_with_all_failures(db, space, letters, buried) -> None:
    other = TaskQueue.create(db, "other", "utube", root=space, partitions=PARTITIONS)
    letters.begin_redrive(db, into="other", rate_per_s=FAST)
    assert letters.run_redrive(db).moved == len(buried)
    told, after = list[str](), ""
    while after is not None:
        page = other.tasks(db, "r", 100, after=after or None)
        told += [other.failures(db, task)[0].message for task in page]
        after = page.next
    assert sorted(told) == sorted(f"in {n // 2}" for n in range(len(buried)))


@pytest.mark.usefixtures("buried")
def test_a_redrive_knows_the_room_of_all_partitions(db, space, letters) -> None:
    other = TaskQueue.create(db, "other", "limfifottl", root=space, partitions=2, capacity=5)
    other.put(db, 0), other.put(db, 1)
    letters.begin_redrive(db, into="other", rate_per_s=FAST)
    assert (letters.step_redrive(db).moved, letters.step_redrive(db).is_full) == (3, True)


def test_a_key_of_the_support_lies_where_it_says(db, queue) -> None:
    queue.put(db, 1, key=key_in(2, nth=1))
    assert [found.ready for found in queue.partitions(db)] == [0, 0, 1, 0]
