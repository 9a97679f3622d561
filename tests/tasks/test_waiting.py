"""Takes and puts that wait, on the real clock and between threads: wake-ups, and their time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, Session, TaskQueue, transactional
from fdbqueue.core.errors import QueueBusy, WaitStopped
from fdbqueue.core.line import taking
from fdbqueue.core.line.staging import Line
from fdbqueue.tasks.capacity import admit
from fdbqueue.tasks.stored.records import TaskKeys
from tests.persistent.support import Running
from tests.queue_support import Quiet
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code
from tests.tasks.support import MakeBench

# A signal or the time of an event wakes each waiting call: at the end of its time it would look by itself.
pytestmark = pytest.mark.usefixtures("without_looks")
LONG_S = 100 * PATIENCE_S

MakeQueue = Callable[..., TaskQueue]


@pytest.fixture
def make(db: Database, space: Subspace) -> MakeQueue:
    def create(kind: str = "fifo", **options: Any) -> TaskQueue:
        return TaskQueue.create(db, "waiting", kind, root=space, **options)

    return create


class Waiters:
    """Threads that each take one task, with their results and times."""

    def __init__(self, queue: TaskQueue, db: Database, count: int) -> None:
        self.got: list[tuple[Any, float]] = []
        self._queue, self._db = queue, db
        self._threads = [threading.Thread(target=self._take) for _ in range(count)]

    def _take(self) -> None:
        task = self._queue.take(self._db, LONG_S)
        self.got.append((task, time.monotonic()))

    @contextmanager
    def waiting(self) -> Iterator["Waiters"]:
        for thread in self._threads:
            thread.start()
        time.sleep(0.3)
        yield self
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def taken(queue: TaskQueue, db: Database, session: Session, **options: Any) -> Any:
    queue.put(db, 1, **options)
    return queue.take(db, 0, session=session)


def buried(queue: TaskQueue, db: Database, session: Session) -> None:
    queue.bury(db, taken(queue, db, session))


WAKES: dict[str, tuple[float, Callable[[TaskQueue, Database, Session], Any], Any]] = {
    "a put": (0, lambda *_: None, lambda q, db, *_: q.put(db, 1)),
    "a release": (0, taken, lambda q, db, _, task: q.release(db, task)),
    "a kick": (0, buried, lambda q, db, *_: q.kick(db)),
    "a resume": (0, lambda q, db, *_: (q.pause(db), q.put(db, 1)), lambda q, db, *_: q.resume(db)),
    "the end of a session": (0, taken, lambda _, __, session, *___: session.end()),
    "the end of a delay": (0.45, lambda *_: None, lambda q, db, *_: q.put(db, 1, delay=0.5)),
    "the end of a lease": (0, partial(taken, ttr=1), lambda *_: None),
}
"""The least time of the wait, what comes before it, and the call that wakes."""


@pytest.mark.parametrize("what", WAKES)
def test_a_waiting_take_is_woken(make: MakeQueue, db: Database, space: Subspace, what: str) -> None:
    queue, session, (least_s, prepare, call) = make("fifottl"), Session(db, root=space), WAKES[what]
    task = prepare(queue, db, session)
    with Waiters(queue, db, 1).waiting() as waiters:
        assert waiters.got == []
        called = time.monotonic()
        call(queue, db, session, task)
    ((found, at),) = waiters.got
    assert found is not None
    assert at - called > least_s
    session.end()


def test_a_waiting_take_needs_no_sweep_at_the_end_of_a_delay() -> None:
    """The keeper does not run: the call itself wakes at the due time."""
    with fdbqueue.open("memory:", runtime=Quiet()) as db:
        queue = TaskQueue.create(db, "waiting", "fifottl")
        queue.put(db, 1, delay=0.3)
        assert Running(lambda: queue.take(db, LONG_S)).result().data == 1


def test_an_end_of_waits_ends_the_sleep_in_the_line(
    make: MakeQueue, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, asleep = make(), threading.Event()
    on_ready = taking.Nudge.on_ready

    def noted(nudge: taking.Nudge, callback: Callable[[Any], None]) -> None:
        on_ready(nudge, callback)
        asleep.set()

    monkeypatch.setattr(taking.Nudge, "on_ready", noted)
    waiting = Running(lambda: queue.take(db, LONG_S))
    assert asleep.wait(PATIENCE_S)
    queue.end_waits(db)
    assert waiting.result() is None


def test_a_later_task_does_not_prolong_the_wait_of_a_take(bench: MakeBench) -> None:
    b = bench("fifottl")
    b.put("late", delay=3600)
    began = b.clock.now()
    assert b.take(10) is None
    assert 10 <= b.clock.now() - began < 11


def test_a_stop_just_before_a_sleep_ends_it(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of the sleep is known by then."""
    queue, stop = Queue(space[0], root=space[1]), db.runtime.event()

    def stop_and_look(_: Any) -> bool:
        stop.set()
        return False

    monkeypatch.setattr(taking, "_is_refused", stop_and_look)
    waiting = Running(lambda: queue.dequeue(db, timeout=LONG_S, stop=stop))
    with pytest.raises(WaitStopped):
        waiting.result()


def test_a_call_out_of_time_takes_an_item_that_is_there(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of its process is busy: another call leads."""
    queue, look = Queue(space[0], root=space[1]), Line.look
    looking, go_on = threading.Event(), threading.Event()

    def look_later(*arguments: Any) -> Any:
        looking.set()
        assert go_on.wait(PATIENCE_S)
        return look(*arguments)

    monkeypatch.setattr(Line, "look", look_later)
    leader = Running(lambda: queue.dequeue(db, timeout=LONG_S))
    assert looking.wait(PATIENCE_S)
    queue.enqueue_many(db, ["of the request", "left"])
    found = queue.dequeue(db, timeout=0.001)
    go_on.set()
    assert (leader.result(), found) == ("of the request", "left")


def test_drop_is_refused_while_a_call_waits(make: MakeQueue, db: Database) -> None:
    queue = make()
    with Waiters(queue, db, 1).waiting():
        with pytest.raises(QueueBusy, match="waiting"):
            queue.drop(db)
        queue.put(db, 1)
    queue.truncate(db)
    queue.drop(db)


def test_a_put_that_counted_before_one_at_the_edge_conflicts(db: Database, space: Subspace) -> None:
    """It has a seat of its own, but the put at the edge relied on an exact count."""
    keys, capacity = TaskKeys(space), 4

    def admitted(tr: Any, count: int, seat: int) -> None:
        assert admit(tr, keys, capacity, count, 1, bytes([0, 0, 0, 0, 0, 0, 0, seat]))
        tr[space.pack(("task", count, seat))] = b""

    early = begin(db)
    admitted(early, 0, 0)
    for count, seat in enumerate((1, 1, 0, 0)):
        transactional(parameter="tr")(admitted)(db, count, seat)
    assert commit_code(early) == NOT_COMMITTED


def test_a_full_queue_lets_a_waiting_put_in_when_a_task_is_acked(make: MakeQueue, db: Database) -> None:
    queue = make("limfifottl", capacity=1)
    queue.put(db, 0)
    task = queue.take(db, 0)
    done: list[Any] = []
    putter = threading.Thread(target=lambda: done.append(queue.put(db, 1, timeout=LONG_S)))
    putter.start()
    time.sleep(0.2)
    assert done == []
    queue.ack(db, task)
    putter.join(PATIENCE_S)
    assert done[0].data == 1
