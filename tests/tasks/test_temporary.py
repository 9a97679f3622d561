"""A temporary queue goes with its session, and lives again when its session has gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Limit, PersistentQueue, Session, TaskQueue, list_queues
from fdbqueue.core import limits
from fdbqueue.core.database import as_database, run
from fdbqueue.core.errors import QueueDropped, QueueExists, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.session import own_session_of
from tests.support import NOT_COMMITTED, commit_code
from tests.tasks.support import LONG_S, StillClock
from tests.tasks.test_lasting_threads import fail_with

KEYS = RootKeys(DEFAULT_ROOT)
NAME = "scratch"


class Two:
    """Two processes on one database."""

    def __init__(self, db: Database, clock: StillClock) -> None:
        self.clock = clock
        self.first, self.second = Database(db.engine, clock), Database(db.engine, clock)

    def create(self, db: Any, **options: Any) -> TaskQueue:
        return TaskQueue.create(db, NAME, **{"temporary": True, "if_not_exists": True, **options})

    def end_first(self) -> None:
        own_session_of(self.first, KEYS).get().end()

    def outlive_first(self) -> None:
        """The session of the first process is overdue, and no process has ended it."""
        self.clock.advance(limits.SESSION_TTR_S + 1)


GONE: dict[str, Callable[[Two], None]] = {"ended": Two.end_first, "overdue": Two.outlive_first}


@pytest.fixture
def two(still_db: Database, clock: StillClock) -> Two:
    return Two(still_db, clock)


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("temporary", [True, False])
def test_the_queue_is_fresh_when_its_session_has_gone(two: Two, how: str, temporary: bool) -> None:
    old = two.create(two.first)
    old.put(two.first, 1)
    old.take(two.first, 0, session=Session(two.second, ttr=LONG_S))
    GONE[how](two)
    fresh = two.create(two.second, kind="fifottl", temporary=temporary)
    assert fresh.kind == "fifottl"
    found = fresh.statistics(two.second)
    assert {*found["tasks"].values(), *found["calls"].values()} == {0}
    assert fresh.put(two.second, 2).data == 2
    with pytest.raises(QueueDropped):
        old.put(two.first, 3)
    with pytest.raises(QueueDropped):
        old.statistics(two.second)


@pytest.mark.parametrize("temporary", [True, False])
def test_while_its_session_lives_others_get_queue_exists(two: Two, temporary: bool) -> None:
    queue = two.create(two.first)
    queue.put(two.first, 1)
    for db in (two.second, two.second.create_transaction()):
        with pytest.raises(QueueExists):
            two.create(db, temporary=temporary)
    assert TaskQueue.open(two.second, NAME).statistics(two.second)["tasks"]["ready"] == 1


def test_its_own_session_gets_the_queue_again(two: Two) -> None:
    two.create(two.first).put(two.first, 1)
    again = two.create(two.first)
    assert again.statistics(two.first)["tasks"]["ready"] == 1


def test_a_queue_that_is_not_temporary_is_opened_if_any_will_do(two: Two) -> None:
    """Its tasks would not go with the session, as the caller asks."""
    TaskQueue.create(two.first, NAME).put(two.first, 1)
    with pytest.raises(QueueExists):
        two.create(two.second)
    assert two.create(two.second, if_not_exists="any").statistics(two.second)["tasks"]["ready"] == 1


def test_in_a_transaction_the_stored_state_decides(two: Two) -> None:
    two.create(two.first)
    two.outlive_first()
    with pytest.raises(QueueExists):
        run(two.second, two.create)
    two.end_first()
    fresh = run(two.second, two.create)
    assert fresh.put(two.second, 1).data == 1


def test_a_process_with_a_dead_session_gets_a_fresh_queue(two: Two) -> None:
    """It stood still, and does not know yet that its session is gone."""
    two.create(two.first)
    two.outlive_first()
    TaskQueue.create(two.second, "other").take(two.second, 0)  # ends the session
    fresh = two.create(two.first)
    assert fresh.put(two.first, 1).data == 1
    unused = TaskQueue.create(two.first, "unused", temporary=True)
    assert unused.put(two.first, 1).data == 1


def test_without_if_not_exists_the_name_stays_taken(two: Two) -> None:
    queue = two.create(two.first)
    two.end_first()
    with pytest.raises(QueueExists):
        two.create(two.second, if_not_exists=False)
    with pytest.raises(UnknownSession):
        queue.put(two.first, 1)


def test_partitions_of_an_ended_session_take_no_put(two: Two) -> None:
    queue = two.create(two.first, kind="fair", partitions=3)
    queue.put(two.first, 1)
    two.end_first()
    for key in range(6):
        with pytest.raises(UnknownSession):
            queue.put(two.second, 1, key=key)
    assert queue.statistics(two.second)["tasks"]["total"] == 0


def test_the_old_contents_are_gone_whatever_they_were(two: Two) -> None:
    old = two.create(two.first)
    old.put_many(two.first, range(3))
    under = old.contents.range()
    two.end_first()
    two.create(two.second)
    assert list(two.second.get_range(under.start, under.stop)) == []
    assert list_queues(two.second) == [NAME]


def test_a_queue_in_place_of_another_finds_free_slots(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the session was interrupted before it came to the tasks."""

    Limit.set(two.first, "api", slots=1)
    old = two.create(two.first, limits=["api"])
    old.put(two.first, 1)
    assert old.take(two.first, 0, session=Session(two.second, ttr=LONG_S)) is not None
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.ending._enders", lambda: [fail_with(KeyboardInterrupt())])
        with pytest.raises(KeyboardInterrupt):
            two.end_first()
    two.clock.advance(1)
    fresh = two.create(two.second, limits=["api"])
    assert Limit.open(two.second, "api").used == 0
    fresh.put(two.second, 2)
    assert fresh.take(two.second, 0) is not None


def test_its_end_leaves_no_slot_of_a_key(two: Two) -> None:
    """No process uses the queue any more, so no sweep looks at the keys."""
    Limit.set(two.first, "tenant", slots=1, per_key=True)
    old = two.create(two.first, kind="fifottl", task_limits=["tenant"])
    old.put(two.first, 1, limits={"tenant": "acme"})
    assert old.take(two.first, 0, session=Session(two.second, ttr=LONG_S)) is not None
    two.end_first()
    assert Limit.open(two.second, "tenant").used == 0


def test_a_persistent_queue_replaces_an_orphaned_temporary_one(two: Two) -> None:
    two.create(two.first)
    with pytest.raises(QueueExists):
        PersistentQueue(two.second, NAME)
    two.outlive_first()
    q = PersistentQueue(two.second, NAME)
    q.put(1)
    assert q.get_nowait() == 1


def test_a_transaction_opens_the_queue_of_its_own_session() -> None:
    """A transaction names its engine only: the database is the one that was opened over it."""
    with fdbqueue.open("memory:") as db:
        TaskQueue.create(db, NAME, temporary=True).put(db, 1)
        again = run(db, lambda tr: TaskQueue.create(tr, NAME, if_not_exists=True))
        assert again.statistics(db)["tasks"]["ready"] == 1


def test_a_queue_of_a_transaction_goes_with_its_database(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    with fdbqueue.open(url) as other:
        with fdbqueue.open(url) as db:
            assert db.engine is not other.engine
            own_session_of(db, KEYS).get()
            queue = run(db, lambda tr: TaskQueue.create(tr, NAME, temporary=True))
            queue.put(db, 1)
        with pytest.raises(UnknownSession):
            queue.put(other, 2)


def test_a_fresh_queue_fails_the_attempts_of_its_dead_owner(two: Two) -> None:
    """A task of the same session in another queue counts a lost lease."""
    two.create(two.first)
    tasks = TaskQueue.create(two.first, "tasks")
    id_ = tasks.put(two.first, 1).id
    assert tasks.take(two.first, 0) is not None
    two.outlive_first()
    two.create(two.second)
    assert [failure.outcome for failure in tasks.failures(two.second, id_)] == ["lease_lost"]


def test_an_opening_conflicts_with_the_end_of_its_session(still_db: Database) -> None:
    with as_database(still_db.engine) as db:
        TaskQueue.create(db, NAME, temporary=True)
        tr = db.create_transaction()
        TaskQueue.create(tr, NAME, if_not_exists=True)
        tr[b"opened"] = b"it"
        own_session_of(db, KEYS).get().end()
        assert commit_code(tr) == NOT_COMMITTED
