"""Calls that wait, and are stopped: by their own event, or because their database closes."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import FairQueue, PersistentQueue, Queue, Session, TaskQueue
from fdbqueue.core.calls import Call, Combiner, Nudge
from fdbqueue.core.database import run
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument, WaitStopped
from fdbqueue.core.line.decision import LineKeys, Look, Reason
from fdbqueue.core.line.staging import Outcome
from fdbqueue.core.line.taking import Memory, Place
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime, Stop
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.tasks import edges
from tests.conftest import DURABLE, open_engine
from tests.queue_support import registered
from tests.support import PATIENCE_S, wait_until
from tests.tasks.support import StillClock

LONG_S = 60.0

Waiting = Callable[..., Any]
"""A call that waits for LONG_S and more, unless it is stopped."""


class Watched(RealRuntime):
    """Tells when a thread begins to wait for a watch."""

    def __init__(self) -> None:
        self.asleep = threading.Semaphore(0)

    def wait_any(self, futures: Any, timeout_s: float | None) -> bool:
        self.asleep.release()
        return super().wait_any(futures, timeout_s)

    def require_sleepers(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.asleep.acquire(timeout=PATIENCE_S)


@pytest.fixture
def runtime() -> Watched:
    return Watched()


@pytest.fixture
def db(engine: str, tmp_path: Path, runtime: Watched) -> Iterator[fdbqueue.Database]:
    with open_engine(engine, tmp_path / "data", runtime) as database:
        yield database


@pytest.fixture
def other(engine: str, db: fdbqueue.Database, tmp_path: Path) -> Iterator[fdbqueue.Database]:  # noqa: ARG001
    """Another client of the same database, which stays open."""
    with open_engine(engine, tmp_path / "data") as database:
        yield database


Make = Callable[[fdbqueue.Database, Subspace], Waiting]


def plain(space: Subspace, **options: Any) -> Queue:
    return Queue(space["q"], root=space["root"], **options)


def fair(space: Subspace) -> FairQueue:
    return FairQueue(space["q"], key=str, root=space["root"])


def tasks(db: fdbqueue.Database, space: Subspace, *data: str, **options: Any) -> TaskQueue:
    q = TaskQueue.create(db, "q", root=space["root"], **options)
    q.put_many(db, data)
    return q


def proxy(db: fdbqueue.Database, space: Subspace, *data: str) -> PersistentQueue:
    q = PersistentQueue(db, "q", maxsize=1, root=space["root"])
    for item in data:
        q.put(item)
    return q


def proxy_transaction(db: fdbqueue.Database, space: Subspace) -> Waiting:
    q = proxy(db, space, "full")

    def transaction(stop: Stop | None) -> None:
        with q.transaction():
            q.put("more", stop=stop)

    return transaction


TAKES: dict[str, Make] = {
    "dequeue": lambda db, s: partial(plain(s).dequeue, db, timeout=LONG_S),
    "dequeue simply": lambda db, s: partial(plain(s, contended="simple").dequeue, db, timeout=LONG_S),
    "get": lambda db, s: partial(fair(s).get, db, LONG_S),
    "take item": lambda db, s: partial(fair(s).take_item, db, LONG_S),
    "take": lambda db, s: partial(tasks(db, s).take, db, None),
    "take many": lambda db, s: partial(tasks(db, s).take_many, db, 5, LONG_S),
    "proxy get": lambda db, s: proxy(db, s).get,
}
CALLS: dict[str, Make] = {
    **TAKES,
    "hold": lambda db, s: partial(plain(s).holder(db).wait, LONG_S),
    "put": lambda db, s: partial(tasks(db, s, "full", capacity=1).put, db, "more", timeout=LONG_S),
    "put many": lambda db, s: partial(
        tasks(db, s, "full", capacity=1).put_many, db, ["more"], timeout=LONG_S
    ),
    "proxy put": lambda db, s: partial(proxy(db, s, "full").put, "more"),
    "proxy join": lambda db, s: proxy(db, s, "full").join,
    "proxy transaction": proxy_transaction,
}


def dequeue_at_once(db: fdbqueue.Database, space: Subspace) -> Waiting:
    plain(space).enqueue(db, "x")
    return TAKES["dequeue"](db, space)


AT_ONCE: dict[str, Make] = {
    "dequeue at once": dequeue_at_once,
    "take at once": lambda db, s: partial(tasks(db, s, "x").take, db, None),
    "put at once": lambda db, s: partial(tasks(db, s, capacity=1).put, db, "x", timeout=LONG_S),
    "proxy put at once": lambda db, s: partial(proxy(db, s).put, "x"),
}
"""Calls that need not wait."""
calls = pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)


def contents(db: fdbqueue.Database, space: Subspace) -> list[tuple[bytes, bytes]]:
    """All that is stored, but for receipts, sessions and the time of heartbeats."""
    keys = RootKeys(space["root"])
    passing = (keys.receipts, slice(keys.session(b""), keys.presences.stop))
    rows = [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(space.key())]
    return [row for row in rows if not any(under.start <= row[0] < under.stop for under in passing)]


def outcome(call: Waiting, stop: Stop | None) -> Any:
    try:
        return call(stop=stop)
    except fdbqueue.FdbQueueError as error:
        return type(error)


@calls
def test_a_call_that_is_stopped_leaves_nothing_behind(
    make: Any, db: fdbqueue.Database, space: Subspace, runtime: Watched
) -> None:
    call, stop = make(db, space), db.runtime.event()
    before = contents(db, space)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(outcome, call, stop)
        runtime.require_sleepers()
        stop.set()
        assert waiting.result(PATIENCE_S) is WaitStopped
    assert contents(db, space) == before


@pytest.mark.parametrize("make", [*CALLS.values(), *AT_ONCE.values()], ids=[*CALLS, *AT_ONCE])
def test_a_call_with_a_set_event_does_nothing(make: Any, db: fdbqueue.Database, space: Subspace) -> None:
    call, stop = make(db, space), threading.Event()
    stop.set()
    before = contents(db, space)
    assert outcome(call, stop) is WaitStopped
    assert contents(db, space) == before


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
@calls
@pytest.mark.commits_by_hand
def test_closing_ends_the_wait_before_it_returns(
    make: Any, db: fdbqueue.Database, other: fdbqueue.Database, space: Subspace, runtime: Watched
) -> None:
    call = make(db, space)
    before = contents(other, space)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(outcome, call, None)
        runtime.require_sleepers()
        db.close()
        assert contents(other, space) == before
        assert waiting.result(PATIENCE_S) is DatabaseClosed


def test_a_threading_event_stops_a_call(db: fdbqueue.Database, space: Subspace, runtime: Watched) -> None:
    call, stop = TAKES["take"](db, space), threading.Event()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(outcome, call, stop)
        runtime.require_sleepers()
        stop.set()
        assert waiting.result(PATIENCE_S) is WaitStopped
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "fdbqueue-stops"])


def test_a_stop_must_be_an_event_and_not_in_a_transaction(db: fdbqueue.Database, space: Subspace) -> None:
    call, stop = TAKES["take"](db, space), db.runtime.event()
    with pytest.raises(InvalidArgument, match="stop must be an event"):
        call(stop=True)
    for compose in (
        lambda tr: Queue(space["plain"]).dequeue(tr, stop=stop),
        lambda tr: TaskQueue.open(db, "q", root=space["root"]).take(tr, stop=stop),
        lambda tr: TaskQueue.open(db, "q", root=space["root"]).put(tr, 1, stop=stop),
        lambda tr: FairQueue(space["fair"], key=str).get(tr, stop=stop),
    ):
        with pytest.raises(InvalidArgument, match="None in a transaction"):
            run(db, compose)


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("stopped", [0, 1], ids=["leader", "follower"])
def test_one_thread_is_stopped_and_the_other_waits_on(
    name: str, stopped: int, db: fdbqueue.Database, space: Subspace, runtime: Watched
) -> None:
    call, stops = TAKES[name](db, space), [db.runtime.event(), db.runtime.event()]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(outcome, call, stops[0])
        runtime.require_sleepers()
        waiting = [first, pool.submit(outcome, call, stops[1])]
        stops[stopped].set()
        assert waiting[stopped].result(PATIENCE_S) is WaitStopped
        give(db, name, space)
        assert waiting[1 - stopped].result(PATIENCE_S) not in (None, [], WaitStopped)


def give(db: fdbqueue.Database, name: str, space: Subspace) -> None:
    """Put an item into the queue of that call."""
    if name.startswith("dequeue"):
        plain(space).enqueue(db, "item")
    elif name in ("get", "take item"):
        fair(space).put(db, "item")
    else:
        TaskQueue.open(db, "q", root=space["root"]).put(db, "item")


def test_an_item_that_was_delivered_to_a_stopped_call_goes_back(
    db: fdbqueue.Database, space: Subspace
) -> None:
    q = Queue(space["q"], root=space["root"])
    line, root = q._recipe.zero.line, RootKeys(space["root"])
    place = Place(db, root, line, 1, b"", Nudge(), Memory(db), is_named=False)
    q.enqueue_many(db, ["first", "second"])
    now_us = round(db.runtime.now() * 1e6)
    server = registered(db, line, b"server", now_us)
    run(db, lambda tr: line.look(tr, server, Look(now_us, Reason.NEGLECT)))
    assert q.items(db, 2) == []
    call = Call(None, 1, 0, until=float("-inf"))
    call.stopped = True
    assert place.stand(Combiner(db.runtime, lambda *_: None), call) is Outcome.LEFT
    assert q.items(db, 2) == ["first"]
    line_keys = LineKeys(q._recipe.keys.line)
    assert list(db.get_range(line_keys.activity.start, line_keys.activity.stop)) == []


def test_a_task_taken_while_its_call_is_stopped_goes_back(
    db: fdbqueue.Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, stop = TAKES["take"](db, space), db.runtime.event()
    give(db, "take", space)
    take_edge = edges.take

    def stopped_meanwhile(*args: Any) -> Any:
        stop.set()
        return take_edge(*args)

    monkeypatch.setattr(edges, "take", stopped_meanwhile)
    assert outcome(call, stop) is WaitStopped
    q = TaskQueue.open(db, "q", root=space["root"])
    [task] = q.tasks(db, "r", 2)
    assert task.attempts == 0
    assert q.statistics(db)["calls"]["take"] == 0


@pytest.mark.commits_by_hand
def test_cancelling_a_take_in_a_thread_leaves_the_task_to_others(
    db: fdbqueue.Database, space: Subspace, runtime: Watched
) -> None:
    """The event of its `stop=` ends the take."""
    q = TaskQueue.create(db, "q", root=space["root"])

    async def take_cancellably() -> Any:
        stop = db.runtime.event()
        taking = asyncio.ensure_future(asyncio.to_thread(q.take, db, 30, stop=stop))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([taking])
            if not taking.exception() and taking.result():
                q.release(db, taking.result())
            raise

    async def cancel() -> None:
        waiting = asyncio.create_task(take_cancellably())
        await asyncio.to_thread(runtime.require_sleepers)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 15  # asyncio.run waits for the threads
    q.put(db, "next")
    assert q.take(db, 0).data == "next"  # type: ignore[union-attr]


def test_an_event_keeps_nothing_of_the_calls_that_have_returned(
    db: fdbqueue.Database, space: Subspace
) -> None:
    q, stop = Queue(space["q"], root=space["root"]), db.runtime.event()
    for _ in range(10):
        assert q.dequeue(db, stop=stop) is None
    assert stop._listeners._callbacks == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_results_for_a_closed_database_go_to_others_at_once(
    db: fdbqueue.Database, other: fdbqueue.Database, space: Subspace, runtime: Watched
) -> None:
    q = TaskQueue.create(db, "q", root=space["root"])
    Session(db, root=space["root"])  # of another thread, perhaps
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(outcome, lambda stop: q.take(db, LONG_S, stop=stop), None) for _ in range(8)]
        runtime.require_sleepers()
        db.close()
        q.put(other, "task")
        assert q.take(other, 0, session=Session(other, root=space["root"])) is not None
        assert [call.result(PATIENCE_S) for call in waiting] == [DatabaseClosed] * 8
    assert TaskQueue.open(other, "q", root=space["root"]).statistics(other)["tasks"]["taken"] == 1


def test_while_a_database_closes_other_threads_start_nothing(db: fdbqueue.Database, space: Subspace) -> None:
    q = Queue(space["q"], root=space["root"])
    met: list[Any] = []

    class Slow:
        def close(self) -> None:
            begin = [lambda **_: q.enqueue(db, 1), lambda **_: Session(db, root=space["root"])]
            with ThreadPoolExecutor() as pool:
                met.extend(pool.map(lambda call: outcome(call, None), begin))

    db.service("slow", lambda _: Slow())
    db.close()
    assert met == [DatabaseClosed, DatabaseClosed]


def test_an_error_of_a_take_in_closing_is_that_of_closing(
    db: fdbqueue.Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that the take makes for its session fails, because the database is also away."""
    q, taker, answered = (
        TaskQueue.create(db, "q", root=space["root"]),
        threading.get_ident(),
        threading.Event(),
    )
    closer = threading.Thread(target=db.close)
    [away, *_] = engine_errors()

    class Slow:
        def close(self) -> None:
            assert answered.wait(PATIENCE_S)

    def beat_if_due(_: Session) -> None:
        if threading.get_ident() == taker:
            closer.start()
            wait_until(lambda: db.closed)
            raise away(1031)

    db.service("slow", lambda _: Slow())
    session = Session(db, root=space["root"])
    monkeypatch.setattr(Session, "beat_if_due", beat_if_due)
    try:
        with pytest.raises(DatabaseClosed):
            q.take(db, 0, session=session)
    finally:
        answered.set()
        closer.join(PATIENCE_S)


class EndsSession(StillClock):
    """Ends a session while a call waits for the first time, and counts the seconds of all waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0
        self.first: Callable[[], None] | None = None

    def wait_any(self, futures: Any, timeout_s: float | None) -> bool:
        begin = self.now()
        woken = super().wait_any(futures, timeout_s)
        self.waited_s += self.now() - begin
        if self.waited_s > 6 and self.first is not None:
            first, self.first = self.first, None
            first()
        return woken


def test_a_take_that_lost_its_session_keeps_its_timeout() -> None:
    clock = EndsSession()
    with fdbqueue.open("memory:", runtime=clock) as db:
        q = TaskQueue.create(db, "q")
        keys = RootKeys(fdbqueue.core.root_keys.DEFAULT_ROOT)
        own = own_session_of(db, keys).get()
        clock.first = lambda: end_session(db, keys, own.id, lambda *_: True, died=False)
        began = clock.now()
        assert q.take(db, 10) is None
        assert clock.first is None
        assert own.lost
        assert clock.now() - began == pytest.approx(10, abs=2)
