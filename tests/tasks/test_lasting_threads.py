"""Threads that keep sessions alive and tell callbacks: errors planted at each step, and the others go on."""

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fdb import tuple as layer
from greenlet import GreenletExit

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core.errors import DatabaseClosed, StorageFull, WaitStopped
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import deadline_of
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.embedded import FDBError
from fdbqueue.embedded.directory import no_room
from fdbqueue.tasks import ending
from tests.support import PATIENCE_S, TOO_OLD, FailsOnce, replace_method
from tests.tasks.support import Bench, MakeBench, SetLimits, keeper
from tests.tasks.test_callbacks import Told

KEYS = RootKeys(DEFAULT_ROOT)
TTR_S = 9.0
ERRORS = [KeyError("gone"), TypeError("option"), DeprecationWarning("odd"), MemoryError()]


class Broken:
    """A queue with one step that fails."""

    name = "broken"

    def __init__(self, step: str, error: BaseException) -> None:
        self._step, self._error = step, error

    def _fail_at(self, step: str) -> None:
        if step == self._step:
            raise self._error

    def guard(self, _: object) -> Callable[[], None]:
        return lambda: self._fail_at("guard")

    def ask_next_due(self, _: object) -> Callable[[], int]:
        def due() -> int:
            self._fail_at("due")
            return 0

        return due

    def tidy(self, _: object) -> bool:
        self._fail_at("tidy")
        return False


def fail_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def plant(b: Bench, step: str, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """Have the step of the keeper fail, for a session or a queue of its own."""
    if step in ("guard", "due", "tidy"):
        b.broken = Broken(step, error)  # type: ignore[attr-defined]  # lives as long as the test
        keeper(b.db).look_after(b.broken)  # type: ignore[attr-defined]
        return
    other = Session(b.db, ttr=TTR_S)
    if step == "wanted":
        other.wanted = fail_with(error)
    elif step == "beat":
        replace_method(patch, other, "_beat", fail_with(error))
    elif step == "end":
        other.wanted = lambda: False
        replace_method(patch, other, "end_within", fail_with(error))
    elif step == "shape":
        patch.setattr(ending, "Shape", fail_with(error))
    elif step == "damaged heartbeat":
        b.db[KEYS.heartbeat(other.id)] = b"\xff"
    elif step == "damaged record":
        b.db[KEYS.session(other.id)] = b"\xff"
    elif step == "foreign entry":
        b.db[KEYS.beats_due.start + b"\x01"] = b""


STEPS = ["wanted", "beat", "end", "guard", "due", "tidy", "shape"]
DAMAGED = ["damaged heartbeat", "damaged record", "foreign entry"]


@pytest.mark.parametrize(
    ("step", "error"),
    [*((step, error) for step in STEPS for error in ERRORS), *((step, ERRORS[0]) for step in DAMAGED)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_one_trouble_of_a_keeper_ends_no_other_lease(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    b = bench()
    mine = Session(b.db, ttr=TTR_S)
    id_ = b.put("mine")
    b.queue.take(b.db, 0, session=mine)
    plant(b, step, error, monkeypatch)
    for _ in range(10):
        b.clock.advance(TTR_S / 4)
        keeper(b.db).tick()
    assert not mine.lost
    assert b.queue.ack(b.db, id_, session=mine).id == id_


@pytest.mark.parametrize("error", [KeyError("gone"), SystemExit(1)])
def test_a_wanted_that_fails_ends_no_call_and_no_session(
    bench: MakeBench, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    b = bench()
    session = Session(b.db, ttr=TTR_S, wanted=fail_with(error))
    keeper(b.db).end_unwanted()
    keeper(b.db).end_unwanted()
    assert not session.lost
    assert caplog.text.count("the `wanted` of a session fails") == 1


@pytest.mark.parametrize(
    "record", [b"\xff", *(layer.pack((b"owner", None, ttr_us)) for ttr_us in (-1, 0, None, "9"))]
)
def test_a_session_with_a_damaged_record_keeps_its_task(bench: MakeBench, record: bytes) -> None:
    """Its next heartbeat writes the record anew: a damaged ttr would be a deadline in the past."""
    b = bench()
    session = Session(b.db, ttr=TTR_S, name="damaged")
    b.put("x")
    b.queue.take(b.db, 0, session=session)
    b.db[KEYS.session(session.id)] = record
    for _ in range(10):
        b.clock.advance(TTR_S / 4)
        keeper(b.db).tick()
    assert not session.lost
    assert b.counts("ready", "taken") == (0, 1)


def test_heartbeats_go_on_while_the_dead_are_ended(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold many tasks: their end takes longer than a ttr."""
    b = bench()
    mine, dead = Session(b.db, ttr=TTR_S), Session(b.db, ttr=1)
    b.queue.put_many(b.db, range(12))
    b.queue.take_many(b.db, 12, session=dead)
    keeper(b.db).forget(dead)
    release, left = ending.verbs.release_taken, []

    def release_slowly(*arguments: Any) -> int:
        b.clock.advance(TTR_S / 4)
        left.append(deadline_of(b.db[KEYS.heartbeat(mine.id)]) / 1_000_000 - b.clock.now())
        return release(*arguments)

    monkeypatch.setattr(ending.verbs, "release_taken", release_slowly)
    monkeypatch.setattr(fdbqueue.core.limits, "VERB_BATCH", 2)
    b.clock.advance(2)
    keeper(b.db).tick()
    assert b.counts("ready") == (12,)
    assert len(left) > 6
    assert min(left) > 0


def test_a_heartbeat_without_an_answer_holds_up_no_other(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    first, second = (Session(b.db, ttr=TTR_S) for _ in range(2))
    replace_method(monkeypatch, first, "beat", fail_with(no_room("full")))
    b.clock.advance(TTR_S / 2)
    with pytest.raises(StorageFull):
        keeper(b.db).tick()
    left_s = deadline_of(b.db[KEYS.heartbeat(second.id)]) / 1_000_000 - b.clock.now()
    assert left_s == TTR_S


def test_a_queue_without_an_answer_holds_up_no_other(bench: MakeBench) -> None:
    """The next round begins with the others."""
    b, broken = bench(), Broken("tidy", no_room("full"))
    keeper(b.db).look_after(broken)
    queue = TaskQueue.create(b.db, "other", "fifottl")
    queue.put(b.db, "x", delay=1)
    b.clock.advance(2)
    for _ in range(2):
        with pytest.raises(StorageFull):
            keeper(b.db).tick()
    assert queue.statistics(b.db)["tasks"]["ready"] == 1


def test_a_read_that_is_too_old_is_no_trouble_of_a_queue(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, as in any transaction."""
    b, queue, due = bench(), Broken("none", KeyError()), FailsOnce(FDBError(TOO_OLD))
    queue.ask_next_due = lambda _: due  # type: ignore[assignment, method-assign, return-value]  # a stand-in
    keeper(b.db).look_after(queue)
    keeper(b.db).tick()
    due.wait_for(2)
    assert caplog.text == ""


def test_every_queue_is_swept_however_many_there_are(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(QUEUES_PER_TRANSACTION=2)
    b = bench()
    queues = [TaskQueue.create(b.db, str(number), "fifottl") for number in range(5)]
    for queue in queues:
        queue.put(b.db, "x", delay=1)
    b.clock.advance(2)
    keeper(b.db).tick()
    assert [queue.statistics(b.db)["tasks"]["ready"] for queue in queues] == [1] * 5


@pytest.fixture
def memory() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [KeyError("gone"), SystemExit(1), KeyboardInterrupt(), GreenletExit()])
def test_a_keeper_goes_on_after_whatever_ends_a_round(
    memory: Database, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ticks = FailsOnce(error)
    monkeypatch.setattr(Keeper, "tick", ticks)
    session = Session(memory)
    ticks.wait_for(2)
    assert not session.lost


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sessions_are_lost_if_their_keeper_cannot_be_replaced(
    memory: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(memory)
    kept = keeper_of(memory, KEYS)
    monkeypatch.setattr(kept, "_runtime", None)  # has no threads
    monkeypatch.setattr(kept, "_tick_until_stopped", fail_with(GreenletExit()))
    with pytest.raises(GreenletExit):
        kept._run()
    assert session.lost


@pytest.mark.parametrize("below", [lambda database: database, lambda database: database.engine])
def test_sessions_are_lost_if_the_engine_below_is_closed(below: Callable[[Database], Any]) -> None:
    """Nothing renews them from then on."""
    with fdbqueue.open("memory:") as database:
        above = Database(below(database))
        session = Session(above)
    kept = keeper_of(above, KEYS)
    kept._thread.join(PATIENCE_S)
    assert session.lost


def test_a_keeper_without_sessions_ends_with_its_engine() -> None:
    """A sweep that fails does not hide that the engine is closed."""
    with fdbqueue.open("memory:") as database:
        above = Database(database.engine)
        kept = keeper_of(above, KEYS)
        kept.start()
    kept._thread.join(PATIENCE_S)
    assert not kept._thread.is_alive()


@pytest.mark.parametrize("leave", [sys.exit, fail_with(KeyError("k"))])
def test_a_callback_that_fails_once_is_told_of_all_else(bench: MakeBench, leave: Callable[[], None]) -> None:
    b, told, failing = bench(), Told(), [True]

    def callback(task: Any, event: str) -> None:
        told(task, event)
        if failing.pop() if failing else False:
            leave()

    b.queue.on_task_change(callback)
    for number in range(3):
        b.put(number)
    assert told.names(3) == ["put"] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_callbacks_that_is_ended_is_replaced(bench: MakeBench) -> None:
    """Its successor tells in order: a later event comes in while the thread has the others."""
    b, told, ended = bench(), Told(), list[threading.Thread]()

    def callback(task: Any, event: str) -> None:
        told(task, event)
        if not ended:
            ended.append(threading.current_thread())
            b.put(3)
            raise GreenletExit

    b.queue.on_task_change(callback)
    b.queue.put_many(b.db, range(3))
    assert told.names(4) == ["put"] * 4
    assert [data for data, _, _ in told.events] == [0, 1, 2, 3]
    ended[0].join(PATIENCE_S)  # its last words belong to this test
    assert not ended[0].is_alive()


def test_callbacks_are_told_later_if_no_thread_can_be_started(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    b, told = bench(), Told()
    b.queue.on_task_change(told)
    with monkeypatch.context() as patch:
        patch.setattr(b.clock, "spawn", fail_with(RuntimeError("can't start new thread")))
        b.put(1)
    b.put(2)
    assert told.names(2) == ["put"] * 2


def test_a_damaged_session_spoils_no_take_of_others(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    with pytest.raises(Exception, match="session"):
        b.queue.take(b.db, 0, session="worker-1")  # type: ignore[arg-type]
    assert b.queue.take(b.db, 0, session=Session(b.db)) is not None


class BrokenStop:
    def is_set(self) -> bool:
        if threading.current_thread().name == "fdbqueue-stops":
            raise KeyError("broken")
        return False


def test_a_stop_that_is_broken_ends_its_own_wait_and_no_other(memory: Database) -> None:
    queue, stop = TaskQueue.create(memory, "waited for"), threading.Event()
    with pytest.raises(WaitStopped):
        queue.take(memory, PATIENCE_S, stop=BrokenStop())
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    with pytest.raises(WaitStopped):
        queue.take(memory, PATIENCE_S, stop=stop)
    timer.join()


@pytest.mark.parametrize("closing", [False, True])
def test_a_sweep_of_a_closing_database_tells_no_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closing: bool
) -> None:
    """While a database closes, its engine still answers, and its services do not."""
    with fdbqueue.open("memory:") as db:
        keeper, ends = keeper_of(db, RootKeys(DEFAULT_ROOT)), iter([False, True])
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "tick", fail_with(DatabaseClosed()))
            patch.setattr(keeper._stop, "wait", lambda _: next(ends))
            patch.setattr(db, "_closer", 1 if closing else None)
            keeper._tick_until_stopped()
    assert ("sweeping fails" in caplog.text) == (not closing)
