"""The verbs of task queues that a power cut may undo wait for no flush (docs/security.md)."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Failure, Session, Subspace, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Look, Reason, Ticket
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Place
from fdbqueue.embedded.journal import Journal
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.stored.records import TaskKeys, id_bytes
from tests.tasks.support import StillClock, keeper

LATE = "fdbqueue-flush"
"""The thread that flushes the commits for which no call waits."""
RID = b"r" * 12
Step = Callable[[], object]


class Bench:
    """A queue in a directory, on a clock that stands still, and the flushes for which its calls wait."""

    def __init__(self, path: Path, flushes: Counter[str]) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open(f"embedded:{path}/data", runtime=self.clock)
        self.queue = TaskQueue.create(self.db, "q", "fifottl", ttr=60)
        self.session, self.named = Session(self.db, ttr=600), Session(self.db, "worker", ttr=600)
        self._flushes = flushes

    @property
    def calls(self) -> TaskCalls:
        return calls_of(self.db, self.queue._shape)

    @property
    def line(self) -> Line:
        return self.calls.source.line

    def put(self, **options: Any) -> None:
        self.queue.put(self.db, "a", **options)

    def take(self, session: Session | None = None) -> fdbqueue.Task | None:
        return self.queue.take(self.db, 0, session=session or self.session)

    def taken(self, session: Session | None = None, **options: Any) -> fdbqueue.Task:
        self.put(**options)
        task = self.take(session)
        assert task is not None
        return task

    def cancelled(self, **options: Any) -> fdbqueue.Task:
        """A taken one: it ends as it comes back."""
        task = self.taken(**options)
        self.queue.cancel(self.db, task.id)
        return task

    def lapsed(self) -> fdbqueue.Task:
        """A task with a lease that is over; no sweep has seen it."""
        task = self.taken(ttr=1)
        self.clock.advance(2)
        return task

    def crowd(self, session: Session | None = None) -> None:
        """Let the next take of a session go straight to the line."""
        self.calls._takes.of(session or self.session, 0)._memory.crowded_until = float("inf")

    def joined(self, session: Session) -> Ticket:
        """A request of another process."""
        params, now_us = self.calls._new_params(session), self.clock.now_us()
        run(self.db, lambda tr: self.line.register(tr, RID, 1, params, now_us))
        return run(self.db, lambda tr: self.line.find(tr, RID))

    def sweep(self) -> None:
        keeper(self.db).tick()

    def waits(self, step: Step) -> bool:
        """True if the step waits for a flush."""
        self._flushes.clear()
        step()
        return any(name != LATE for name in list(self._flushes))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    flushes, flush = Counter[str](), Journal.flush

    def noted(journal: Journal, generation: int) -> None:
        flush(journal, generation)
        flushes[threading.current_thread().name] += 1

    monkeypatch.setattr(Journal, "flush", noted)
    bench = Bench(tmp_path, flushes)
    yield bench
    bench.db.close()


def after(*prepared: Any) -> Step:
    """The last one, behind what was done for the others."""
    step: Step = prepared[-1]
    return step


MAY_UNDO: dict[str, Callable[[Bench], Step]] = {
    "a take": lambda b: after(b.put(), b.take),
    "a take behind a lapsed lease": lambda b: after(b.lapsed(), b.take),
    "a renewal": lambda b: partial(b.queue.renew, b.db, [b.taken()]),
    "a return": lambda b: partial(b.queue.give_back, b.db, b.taken()),
    "a take without a caller": lambda b: partial(b.calls._undo_take, [b.taken()]),
    "a sweep of lapsed leases": lambda b: after(b.lapsed(), b.sweep),
    "a heartbeat": lambda b: b.session.beat,
    "a take by the line": lambda b: after(b.put(), b.crowd(), b.take),
    "a take of nothing by the line": lambda b: after(b.crowd(), b.take),
    "a take that serves another request": lambda b: after(b.joined(b.named), b.put(), b.take),
}


@pytest.mark.parametrize("step", MAY_UNDO)
def test_a_power_cut_may_undo(bench: Bench, step: str) -> None:
    assert not bench.waits(MAY_UNDO[step](bench))


def test_a_power_cut_may_undo_the_collection_of_a_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bench.waits(_collection(bench, bench.session, monkeypatch))


def test_a_named_session_collects_durably(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit that has served it is earlier, so it is durable, too."""
    assert bench.waits(_collection(bench, bench.named, monkeypatch))


def _collection(b: Bench, session: Session, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A take that another request serves, as soon as it has registered."""
    ahead, stand = b.joined(b.session), Place.stand
    b.queue.put_many(b.db, ["a", "b"])
    b.crowd(session)

    def served(place: Place, *arguments: Any) -> Any:
        look = Look(b.clock.now_us(), Reason.SIGNAL)

        def serve(tr: Any) -> None:
            tr.options.set_durability_risky()
            assert len(b.line.look(tr, ahead, look).answers) == 1

        run(b.db, serve)
        return stand(place, *arguments)

    monkeypatch.setattr(Place, "stand", served)
    return partial(b.take, session)


def a_take_that_buries_an_unreadable_task(b: Bench) -> Step:
    unreadable = b.queue.put(b.db, "x" * 2 * limits.RECORD_PAYLOAD_BYTES_MAX)
    b.db[TaskKeys(b.queue.contents).payload(id_bytes(unreadable.id), 0)] = b"{"
    b.put()
    return b.take


def a_renewal_that_sets_a_task_aside(b: Bench) -> Step:
    tasks = [b.taken(), b.taken()]
    b.db[b.queue._shape.keys.task(id_bytes(tasks[1].id))] = b"damaged"
    return partial(b.queue.renew, b.db, tasks)


def a_dequeue(b: Bench) -> Step:
    queue = fdbqueue.Queue(Subspace(("plain",)))
    queue.enqueue(b.db, "a")
    return partial(queue.dequeue, b.db)


MAY_NOT_UNDO: dict[str, Callable[[Bench], Step]] = {
    "a take of a named session": lambda b: after(b.put(), partial(b.take, b.named)),
    "a take of a named session by the line": lambda b: after(
        b.put(), b.crowd(b.named), partial(b.take, b.named)
    ),
    "a take within a transaction": lambda b: after(
        b.put(), lambda: run(b.db, lambda tr: b.queue.take(tr, session=b.session))
    ),
    "a take that buries an unreadable task": a_take_that_buries_an_unreadable_task,
    "a take behind an expired task": lambda b: after(b.put(ttl=1), b.put(), b.clock.advance(2), b.take),
    "a sweep of a delay": lambda b: after(b.put(delay=1), b.clock.advance(2), b.sweep),
    "a sweep that ends a cancelled task": lambda b: after(b.cancelled(ttr=1), b.clock.advance(2), b.sweep),
    "a sweep that ends an expired task": lambda b: after(b.taken(ttr=1, ttl=2), b.clock.advance(3), b.sweep),
    "a release": lambda b: partial(b.queue.release, b.db, b.taken()),
    "a return of a cancelled task": lambda b: partial(b.queue.give_back, b.db, b.cancelled()),
    "a renewal that sets a task aside": a_renewal_that_sets_a_task_aside,
    "an undone take beside a cancelled task": lambda b: partial(
        b.calls._undo_take, [b.taken(), b.cancelled()]
    ),
    "a burial": lambda b: partial(b.queue.bury, b.db, b.taken(), failure=Failure("x")),
    "a touch": lambda b: partial(b.queue.touch, b.db, b.taken(), 1),
    "a progress": lambda b: partial(b.queue.progress, b.db, b.taken(), 0.5),
    "an ack": lambda b: partial(b.queue.ack, b.db, b.taken()),
    "a heartbeat of a named session": lambda b: b.named.beat,
    "an end of a session": lambda b: b.session.end,
    "a dequeue": a_dequeue,
}


@pytest.mark.parametrize("step", MAY_NOT_UNDO)
def test_a_power_cut_may_not_undo(bench: Bench, step: str) -> None:
    assert bench.waits(MAY_NOT_UNDO[step](bench))
