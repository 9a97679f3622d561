"""A process that ends without db.close() gives its tasks back at once. With real processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, NotADatabase
from fdbqueue.core.root_keys import DEFAULT_ROOT, SESSION, RootKeys
from fdbqueue.core.seam import KeyValue
from fdbqueue.core.sessions.keeper import Keeper
from tests.support import PATIENCE_S
from tests.tasks.endings import NAME
from tests.tasks.support import StillClock, keeper

ROOT = Path(__file__).parents[2]
KEYS = RootKeys(DEFAULT_ROOT)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path}/data"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with fdbqueue.open(url) as db:
        TaskQueue.create(db, NAME).put(db, "x")
        yield db


def end_of(how: str, url: str) -> int:
    """The exit status of a program of tests/tasks/endings.py."""
    command = [sys.executable, "-m", "tests.tasks.endings", how, url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE_S).returncode


def counts(db: Database) -> tuple[int, int]:
    """Ready and taken tasks."""
    tasks = TaskQueue.open(db, NAME).statistics(db)["tasks"]
    return tasks["ready"], tasks["taken"]


ENDINGS = {
    "take": 0,
    "take_for_a_session": 0,
    "take_in_a_daemon_thread": 0,
    "take_then_exit": 3,
    "take_then_fail": 1,
    "fork:take": 0,
    "fork:take_then_fail": 1,
    "spawn:take_then_exit": 3,
}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_normal_end_gives_the_tasks_back(db: Database, url: str, how: str) -> None:
    assert end_of(how, url) == ENDINGS[how]
    assert counts(db) == (1, 0)


def test_a_named_session_outlives_its_process(db: Database, url: str) -> None:
    """For a process that is started again, and goes on with its tasks."""
    assert end_of("take_for_a_named_session", url) == 0
    assert counts(db) == (0, 1)
    queue = TaskQueue.open(db, NAME)
    with Session(db, name="worker") as again:
        [held] = queue.tasks(db, "t", limit=1)
        assert queue.ack(db, held.id, session=again).data == "x"


@pytest.mark.parametrize("how", ["ack_in_a_pool_thread", "fork:ack_in_a_pool_thread"])
def test_a_session_outlives_the_threads_of_its_process(db: Database, url: str, how: str) -> None:
    assert end_of(how, url) == 0
    assert counts(db) == (0, 0)


def test_a_database_that_does_not_answer_does_not_stop_the_exit(db: Database, url: str) -> None:
    assert end_of("take_and_lose_the_database", url) == 0
    assert counts(db) == (0, 1)


class Joined:
    """A thread that notes for how long it was waited for."""

    def __init__(self, timeouts: list[float | None]) -> None:
        self._timeouts = timeouts

    def join(self, timeout: float | None = None) -> None:
        self._timeouts.append(timeout)

    def is_alive(self) -> bool:
        return True


def test_all_databases_together_delay_the_exit_by_the_limit(still_db: Database, clock: StillClock) -> None:
    timeouts: list[float | None] = []
    began = clock.monotonic()
    for passed_s in (0.0, 4.0, 4.0):
        keeper = Keeper(still_db, KEYS)
        keeper._thread = Joined(timeouts)
        clock.advance(passed_s)
        keeper.end_at_exit(began)
    assert timeouts == [limits.CLOSE_TIMEOUT_S, 1.0, 0.0]


def test_a_session_that_is_wanted_ends_with_its_process(still_db: Database) -> None:
    """Only a session with a name and without a `wanted` waits for a process that is started again."""
    unnamed, named = Session(still_db), Session(still_db, name="named")
    wanted = Session(still_db, name="wanted", wanted=lambda: True)
    keeper(still_db)._end_those_of_this_process()
    there = [still_db[KEYS.session(session.id)] is not None for session in (unnamed, named, wanted)]
    assert there == [False, True, False]


@pytest.mark.parametrize("end", [Keeper.close, Keeper._end_those_of_this_process])
def test_all_sessions_of_a_process_end_with_it(
    still_db: Database, clock: StillClock, end: Callable[[Keeper], None]
) -> None:
    process = Database(still_db.engine, clock)
    sessions = [Session(process) for _ in range(4)]
    end(keeper(process))
    assert [still_db[KEYS.session(session.id)] for session in sessions] == [None] * 4


def test_no_session_opens_while_the_process_ends(still_db: Database) -> None:
    keeper = Keeper(still_db, KEYS)
    keeper.end_at_exit(0.0)
    with pytest.raises(DatabaseClosed):
        keeper.keep(Session(still_db))


def test_the_end_of_a_forked_child_is_not_that_of_its_parent(db: Database) -> None:
    """The child's exit handlers are copies of the parent's."""
    queue = TaskQueue.open(db, NAME)
    assert queue.take(db, 0) is not None
    mine = keeper(db)
    mine._process_id = os.getpid() + 1
    mine.end_at_exit(0.0)
    mine._process_id = os.getpid()
    assert counts(db) == (0, 1)


def test_open_decides_for_how_long_sessions_live(url: str) -> None:
    with fdbqueue.open(url, session_ttr_s=5) as db:
        TaskQueue.create(db, NAME).put(db, "x")
        assert Session(db).ttr == 5
        assert Session(db, ttr=7).ttr == 7
        task = TaskQueue.open(db, NAME).take(db, 0)
        assert task is not None
        ttrs = {fdbqueue.embedded.tuple.unpack(row.value)[2] for row in _sessions(db)}
        assert ttrs == {5_000_000, 7_000_000}
        assert fdbqueue.PersistentQueue(db, "p")._client.ttr_s == 5


def _sessions(db: Database) -> list[KeyValue]:
    under = SESSION.all(KEYS.prefix)
    return list(db.get_range(under.start, under.stop))


def test_the_same_option_serves_an_engines_own_database(tmp_path: Path) -> None:
    raw = fdbqueue.embedded.open(str(tmp_path / "raw"))
    try:
        with fdbqueue.open(raw, session_ttr_s=5) as db:
            assert Session(raw).ttr == 5
            assert Session(db).ttr == 5
        assert Session(raw).ttr == limits.SESSION_TTR_S
    finally:
        raw.close()


def test_open_refuses_a_thing_that_is_no_database() -> None:
    with pytest.raises(NotADatabase):
        fdbqueue.open(5)  # type: ignore[arg-type]
