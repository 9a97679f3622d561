"""A process that is stopped (SIGSTOP) in its commit makes all others wait.

A call with a timeout ends, and names the process.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import aio
from fdbqueue.core import limits
from fdbqueue.core.errors import StorageInUse
from fdbqueue.embedded import directory, processes
from fdbqueue.operate.checks import Severity, check_directory, see_directory
from tests.engine import programs
from tests.engine.running import Program, running
from tests.support import PATIENCE_S, TIMED_OUT, wait_until

TIMEOUT_MS = 200
ONE = (1).to_bytes(8, "little")


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{path}") as database:
        yield database


@contextmanager
def stopped(program: str, path: Path) -> Iterator[Program]:
    """Run a program that stops itself; at the end it is killed, if it still runs."""
    with running(program, path) as found:
        found.expect("stops")
        wait_until(lambda: is_stopped(found))
        yield found


def is_stopped(program: Program) -> bool:
    return directory._see(str(program.process.pid)).is_stopped


def go_on(program: Program) -> None:
    program.process.send_signal(signal.SIGCONT)
    program.expect("done")


def late(db: fdbqueue.Database, key: bytes = b"key") -> Exception:
    """Return the error of a commit that has a timeout."""
    tr = db.create_transaction()
    tr.options.set_timeout(TIMEOUT_MS)
    tr.add(key, ONE)
    error = tr.commit().exception()
    assert tr.on_error(error).exception() is error  # it cannot be tried again
    return error


def require_named(error: Exception, program: Program) -> None:
    assert error.code == TIMED_OUT
    assert f"process {program.process.pid} (" in str(error)
    assert "which is stopped" in str(error)
    assert f"kill -CONT {program.process.pid}" in str(error)


class Setting:
    """A commit without a timeout, in a thread of its own."""

    def __init__(self, db: fdbqueue.Database, key: bytes) -> None:
        self._thread = threading.Thread(target=db.set, args=(key, b"value"), daemon=True)
        self._thread.start()

    def ends(self) -> bool:
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()


@pytest.mark.parametrize("has_slot", [False, True])
@pytest.mark.parametrize("end", [go_on, Program.kill])
def test_a_commit_with_a_timeout_names_the_process(
    path: Path, db: fdbqueue.Database, has_slot: bool, end: Callable[[Program], object]
) -> None:
    """Afterwards the database works, and the late commit was made at most once."""
    if has_slot:
        programs.take_a_slot(db.engine)
    with stopped("stop_in_a_commit", path) as program:
        require_named(late(db), program)
        end(program)
        db.add(b"key", ONE)
    assert db[b"key"] in (ONE, (2).to_bytes(8, "little"))


def test_a_commit_without_a_timeout_waits_for_the_process(path: Path, db: fdbqueue.Database) -> None:
    """A timeout of another thread of the same process changes nothing for it."""
    with stopped("stop_in_a_commit", path) as program:
        waiting = Setting(db, b"a")
        wait_until(lambda: db.engine.lmdb_store.committer._leader is not None)
        require_named(late(db), program)
        go_on(program)
        assert waiting.ends()
    assert db[b"a"] == b"value"


def test_a_late_leader_of_the_threads_hands_over(path: Path, db: fdbqueue.Database) -> None:
    """The batch of the thread with the timeout has an unknown result; later ones are committed."""
    with stopped("stop_in_a_commit", path) as program:
        errors: list[Exception] = []
        leader = threading.Thread(target=lambda: errors.append(late(db)), daemon=True)
        leader.start()
        wait_until(lambda: db.engine.lmdb_store.committer._leader is not None or errors)
        waiting = Setting(db, b"a")
        leader.join(PATIENCE_S)
        require_named(errors[0], program)
        go_on(program)
        assert waiting.ends()
    assert db[b"a"] == b"value"


def test_a_holder_that_may_not_be_seen_is_told_so(
    path: Path, db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another user, in a shared directory."""
    monkeypatch.setattr(directory, "_holds", lambda *_: False)
    with stopped("stop_in_a_commit", path):
        error = late(db)
    assert error.code == TIMED_OUT
    assert "a process that this user may not see" in str(error)


def test_the_diagnosis_names_the_process(
    path: Path, db: fdbqueue.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks end, and the sweeps of a look do."""
    monkeypatch.setattr(limits, "LEADER_STANDS_S", TIMEOUT_MS / 1000)
    monkeypatch.setattr(limits, "CLOSE_TIMEOUT_S", TIMEOUT_MS / 1000)
    queue = fdbqueue.TaskQueue.create(db, "q", kind="fifottl")
    queue.put(db, "late", delay=0.001)
    with stopped("stop_in_a_commit", path) as program:
        (found,) = check_directory(see_directory(db.engine.lmdb_store))
        assert queue.statistics(db)["tasks"]["total"] == 1
        whole = fdbqueue.diagnose(db, watch_s=0)
    assert (found.severity, found.data["process_id"]) == (Severity.FAILURE, program.process.pid)
    assert found.text.endswith("which is stopped")
    assert whole.severity == Severity.FAILURE


def test_opening_behind_a_stopped_process_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening that only takes long, as a recovery may, is awaited."""
    monkeypatch.setattr(processes, "_STOPPED_S", TIMEOUT_MS / 1000)
    with stopped("stop_while_opening", path) as program:
        with pytest.raises(StorageInUse, match=f"process {program.process.pid} .*, which is stopped"):
            fdbqueue.open(f"embedded:{path}")
        go_on(program)
        with fdbqueue.open(f"embedded:{path}") as db:
            db[b"key"] = b"value"


def test_a_commit_on_an_event_loop_ends_at_its_timeout(path: Path) -> None:
    """Though the thread that commits for the loop still waits."""

    async def commit(program: Program) -> None:
        async with aio.open(f"embedded:{path}") as db:
            waiting = asyncio.ensure_future(db.run(lambda tr: tr.set(b"a", b"value")))
            with pytest.raises(fdbqueue.embedded.FDBError) as raised:
                await db.run(set_within)
            require_named(raised.value, program)
            assert not waiting.done()
            go_on(program)
            await asyncio.wait_for(waiting, PATIENCE_S)

    def set_within(tr) -> None:
        tr.options.set_timeout(TIMEOUT_MS)
        tr.set(b"key", b"value")

    with stopped("stop_in_a_commit", path) as program:
        asyncio.run(commit(program))
