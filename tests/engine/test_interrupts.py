"""A signal handler that raises, at any moment of a commit, leaves a database that works."""

import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

import fdbqueue
import fdbqueue.embedded
from fdbqueue.embedded.writes import CommitRequest
from tests.engine import programs
from tests.engine.running import in_turn, running
from tests.support import PATIENCE_S, wait_until

ONE = (1).to_bytes(8, "little")

# In a destructor, Python reports the handler's exception and goes on without it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
AGAIN_S = 0.5


class Interrupt(BaseException):
    """The exception of the handler."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupt

    before, tracer = signal.signal(signal.SIGALRM, interrupt), sys.gettrace()
    # A tracer, as that of coverage.py, runs Python code at each line, and most signals come there: they are
    # swallowed, or leave a lock held. So this thread is not traced.
    sys.settrace(None)
    yield
    sys.settrace(tracer)
    signal.signal(signal.SIGALRM, before)


def repeat_until_interrupted(action: Callable[[], None], after_s: float) -> None:
    """Interrupt after `after_s`, and again if a destructor swallowed the first interrupt."""
    with suppress(Interrupt):
        signal.setitimer(signal.ITIMER_REAL, after_s, AGAIN_S)
        while True:
            action()
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    """Return a database in memory, with commits that are only steps between which a signal can come."""
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[fdbqueue.Database]:
    """Return a database in a directory where another process commits all the time, so both ask."""
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as database:
        programs.take_a_slot(database.engine)
        data = tmp_path / "data"
        with running("ask", data, "other", 1_000_000_000, patience_s=30 * PATIENCE_S) as other:
            other.expect("ready")
            other.go()
            reading = threading.Thread(
                target=lambda: any(not other.line() for _ in iter(int, 1)), daemon=True
            )
            reading.start()
            yield database
            other.process.kill()
            reading.join()


def commit_until_interrupted(db: fdbqueue.Database, key: bytes) -> None:
    repeat_until_interrupted(lambda: db.set(key, b"value"), 0.0005 + random.random() * 0.002)


def adds_until_interrupted(db: fdbqueue.Database, key: bytes) -> int:
    """Add one until interrupted; return the number of calls that returned."""
    returned: list[None] = []
    repeat_until_interrupted(lambda: returned.append(db.add(key, ONE)), 0.001 + random.random() * 0.02)
    return len(returned)


def test_an_interrupt_before_the_wake_up_wakes_the_next_leader(db, monkeypatch):
    """A thread has committed and named the next leader. The interrupt comes before the wake-up."""
    committer, wake, interrupted = db.engine._store.committer, CommitRequest.wake, []

    def interrupted_once(request: CommitRequest) -> None:
        if request is committer._leader and request.turn is not None and not interrupted:
            interrupted.append(request)
            raise Interrupt
        wake(request)

    def commit(key: bytes) -> None:
        with suppress(Interrupt):
            db[key] = b"1"

    monkeypatch.setattr(CommitRequest, "wake", interrupted_once)
    in_turn(db, partial(commit, b"first"), partial(commit, b"second"))
    assert (len(interrupted), db[b"second"]) == (1, b"1")


def test_a_leader_interrupted_late_keeps_the_results_of_others(db, monkeypatch):
    """The first thread leads alone. The second one commits for the third one, too, and is interrupted."""
    store = db.engine._store
    committer, outcomes = store.committer, {}
    hand_over = committer._hand_over

    def interrupted_once() -> None:
        if len(committer._batch) == 2:
            monkeypatch.setattr(committer, "_hand_over", hand_over)
            raise Interrupt
        hand_over()

    def commit(key: bytes) -> None:
        tr = db.create_transaction()
        tr[key] = b"1"
        try:
            tr.commit().wait()
            outcomes[key] = tr.get_committed_version() > 0
        except (Interrupt, fdbqueue.embedded.FDBError) as error:
            outcomes[key] = error

    monkeypatch.setattr(committer, "_hand_over", interrupted_once)
    in_turn(db, *(partial(commit, key) for key in (b"first", b"second", b"third")))
    assert isinstance(outcomes.pop(b"second"), Interrupt)
    assert outcomes == {b"first": True, b"third": True}


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_commit_holds_up_no_other_commit(db, k, rounds):
    """Later commits and those of other threads go on, with the right results."""
    stop = threading.Event()
    confirmed: list[bytes] = []

    def commit(name: str) -> None:
        number = 0
        while not stop.is_set():
            key = k(f"{name}-{number}")
            db[key] = b"value"
            confirmed.append(key)
            number += 1

    threads = [threading.Thread(target=commit, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(rounds(300, 5_000)):
        commit_until_interrupted(db, k("main"))
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it waits for somebody who was interrupted"
    assert all(db[key] == b"value" for key in confirmed)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_process_alone_goes_on(db, k, rounds):
    """No other process can lead in its place."""
    for _ in range(rounds(500, 5_000)):
        commit_until_interrupted(db, k("main"))
    done = threading.Thread(target=lambda: db.set(k("after"), b"value"), daemon=True)
    done.start()
    done.join(PATIENCE_S)
    assert not done.is_alive(), "it waits for a commit that was interrupted"


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_process_among_others_goes_on(shared, rounds):
    """No process waits for it, and none of its commits is made twice or late."""
    confirmed = 0
    for number in range(rounds(100, 2_000)):
        key = b"%d" % number
        made = adds_until_interrupted(shared, key)
        found = shared[key]
        counted = int.from_bytes(found, "little") if found is not None else 0
        assert made <= counted <= made + 1
        confirmed += counted
        shared.add(b"total", counted.to_bytes(8, "little"))
        assert shared[key] == found
    before = shared[b"other"]
    assert int.from_bytes(shared[b"total"], "little") == confirmed
    wait_until(lambda: shared[b"other"] != before)  # it goes on
