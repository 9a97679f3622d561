"""Handlers that hang: a worker tells how long its tasks usually run, and looks judge by that."""

import json
import shlex
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fdbqueue
from fdbqueue import (
    Database,
    Overview,
    Severity,
    Task,
    TaskQueue,
    Tasks,
    TaskState,
    Worker,
    diagnose,
    workers,
)
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import LongRun
from fdbqueue.fleet.usual import Usual, weighed
from tests.fleet.conftest import working
from tests.support import wait_until
from tests.tasks.support import StillClock

KEYS = RootKeys(DEFAULT_ROOT)
HUNG_S, FULL_S = 61, limits.FULL_WARNING_S + 1


calls = Tasks("q")


@calls.task
def a() -> None: ...


@calls.task
def b() -> None: ...


def run(for_s: float, usual_s: float | None) -> LongRun:
    return LongRun("A", "q", for_s, usual_s, "host", 7)


@pytest.mark.parametrize(
    ("for_s", "usual_s", "hangs"),
    [
        (HUNG_S, 0.5, True),
        (limits.HUNG_MIN_S, 0.5, False),
        (HUNG_S, limits.HUNG_MIN_S, False),
        (601, limits.HUNG_MIN_S, True),
        (1e6, None, False),  # nobody knows how long its like take
    ],
)
def test_a_run_hangs_beside_its_class(for_s: float, usual_s: float | None, hangs: bool) -> None:
    assert run(for_s, usual_s).is_hung == hangs


def test_the_usual_time_is_a_mean_and_then_follows() -> None:
    known = None
    for seconds in (1.0, 3.0):
        known = weighed(known, seconds)
    assert known == (2, 2.0)
    for _ in range(200):
        known = weighed(known, 10.0)
    assert known == (limits.RUNS_WEIGHED, pytest.approx(10.0, abs=0.01))


def test_each_function_is_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    of = {name: Task(name, TaskState.TAKEN, {"function": name}) for name in "abc"}
    usual = Usual(calls)
    usual.ran("q", of["a"], 2.0)
    assert [usual.seconds("q", task) for task in of.values()] == [2.0, None, None]
    monkeypatch.setattr(limits, "RUN_CLASSES_MAX", 1)
    usual.ran("q", of["b"], 3.0)
    usual.ran("q", of["a"], 4.0)
    assert [usual.seconds("q", task) for task in of.values()] == [3.0, None, None]


def test_a_worker_tells_its_threads_and_its_usual_time(db, space, queue, monkeypatch):
    """The mean of its first task is told beside its second one, which keeps the only thread."""
    monkeypatch.setattr(limits, "PRESENCE_EVERY_S", 0.05)
    ends, begun = threading.Event(), threading.Event()

    def handler(task):
        if task.data:
            begun.set()
            ends.wait()

    queue.put_many(db, [0, 1])
    with working(Worker(db, queue, handler, threads=1, root=space)):
        assert begun.wait(30)
        wait_until(lambda: any(one.full_s for one in workers(db, root=space)))
        [seen] = workers(db, root=space)
        [running] = seen.running
        assert 0 < seen.full_s <= running.for_s
        assert 0 <= running.usual_s < 10
        ends.set()
        wait_until(lambda: not any(one.full_s for one in workers(db, root=space)))


def test_a_failed_run_tells_nothing_of_the_usual_time(db: Database, space: Any, queue: TaskQueue) -> None:
    def fail(_: Any) -> None:
        raise ValueError

    task = queue.put(db, "x")
    worker = Worker(db, queue, fail, root=space, attempts=1)
    worker.run(until_empty=True)
    assert worker.status().tally.buried == 1
    assert worker._usual.seconds("jobs", task) is None


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


class Fleet:
    """A queue with a task that waits, and workers of one thread that run a task each."""

    def __init__(self, db: Database, clock: StillClock) -> None:
        self.db, self.clock, self.count = db, clock, 0
        self.queue = TaskQueue.create(db, "q")

    def works(self, usual_s: float | None = None, full: bool = True, **more: Any) -> Task:
        self.count += 1
        session = fdbqueue.Session(self.db, ttr=10_000)
        self.queue.put(self.db, self.count)
        task = self.queue.take(self.db, session=session)
        running = [{"id": task.id, "queue": "q", "for_s": 1.0, "usual_s": usual_s}]
        told: dict[str, Any] = {"queues": ["q"], "host": "host", "process_id": 7, "running": running}
        told |= {"seen": self.clock.now(), "full_s": 1.0 if full else 0.0, **more}
        self.db[KEYS.presence(session.id)] = json.dumps(told).encode()
        return task

    def doctor(self) -> list[tuple[str, str]]:
        checks = diagnose(self.db, watch_s=0).checks
        return [(one.text, one.cure) for one in checks if (one.name, one.severity) == ("queues", WARNING)]


WARNING = Severity.WARNING


@pytest.fixture
def fleet(still: Database, clock: StillClock) -> Fleet:
    return Fleet(still, clock)


def test_doctor_names_the_longest_hanging_task(fleet: Fleet) -> None:
    first = fleet.works(0.5)
    fleet.clock.advance(5)
    fleet.works(0.5)
    assert fleet.doctor() == []
    fleet.clock.advance(HUNG_S)
    text = (
        f"q: task {first.id} has run for 67 s in process 7 on host, where its like take 0.5 s;"
        " so has 1 other task"
    )
    [(told, cure)] = fleet.doctor()
    assert (told, cure.partition("  # ")[2]) == (
        text,
        "then SIGKILL process 7 on host: its other tasks come back",
    )
    assert cure.startswith(f"fdbqueue bury q {first.id} ")
    assert len(shlex.split(cure, comments=True)) == 5


def test_doctor_names_the_hanging_task_of_a_drained_worker(fleet: Fleet) -> None:
    """A worker that takes nothing is no worker of the queue, but its tasks may hang."""
    task = fleet.works(0.5, trouble="it is drained")
    fleet.clock.advance(HUNG_S)
    text = f"q: task {task.id} has run for 62 s in process 7 on host, where its like take 0.5 s"
    [(told, cure)] = fleet.doctor()
    assert (told, cure.partition("  # ")[0]) == (text, f"fdbqueue bury q {task.id}")


def test_doctor_says_that_the_lease_of_a_hanging_handler_is_over(fleet: Fleet) -> None:
    """The worker knows it: the task was buried. To bury it again cures nothing."""
    running = {"id": "A", "queue": "q", "for_s": 1.0, "usual_s": 0.5, "lost": True}
    fleet.works(running=[running])
    fleet.clock.advance(FULL_S)
    [(text, cure)] = fleet.doctor()
    assert text.endswith("its like take 0.5 s; its lease is over, and its handler keeps a thread")
    assert cure == "SIGKILL process 7 on host: its other tasks come back. `--timeout` ends such attempts."
    [reason] = fleet.queue.explain(fleet.db, fleet.queue.put(fleet.db, "waits")).reasons
    assert reason.cure == cure


def test_a_worker_tells_that_a_lease_is_over(db, space, monkeypatch):
    queue = TaskQueue.create(db, "short", "fifottl", ttr=1, root=space)
    monkeypatch.setattr(limits, "PRESENCE_EVERY_S", 0.05)
    ends, begun = threading.Event(), threading.Event()

    def handler(_):
        begun.set()
        ends.wait()

    task = queue.put(db, 0)
    with working(Worker(db, queue, handler, threads=1, root=space)):
        assert begun.wait(30)
        queue.bury(db, task.id)
        wait_until(lambda: [run.lost for one in workers(db, root=space) for run in one.running] == [True])
        ends.set()


def test_doctor_tells_of_full_workers_while_tasks_wait(fleet: Fleet) -> None:
    """Nothing is known of their usual time."""
    fleet.works()
    fleet.clock.advance(FULL_S)
    assert fleet.doctor() == []
    fleet.queue.put(fleet.db, "waits")
    text = "q has 1 ready task, and for 302 s no thread of its 1 worker has been free"
    assert fleet.doctor() == [(text, "fdbqueue explain q")]
    fleet.works(full=False)
    assert fleet.doctor() == []


def test_a_worker_of_any_queue_may_have_a_free_thread(fleet: Fleet) -> None:
    """With more queues than its presence names, it may take from this one, too."""
    fleet.works()
    fleet.queue.put(fleet.db, "waits")
    fleet.clock.advance(FULL_S)
    assert fleet.doctor() != []
    fleet.works(full=False, queues=["other"], more_queues=1)
    assert fleet.doctor() == []


def test_a_clock_that_is_ahead_makes_no_run_shorter(fleet: Fleet) -> None:
    task = fleet.works(0.5, seen=fleet.clock.now() + 100)
    found = fleet.queue.explain(fleet.db, task).run
    assert found is not None
    assert found.for_s == 1.0


@pytest.mark.parametrize(("behind_s", "versions_s", "told_s"), [(100, 0, 6), (0, 100, 6), (-100, 0, 1)])
def test_no_wrong_clock_makes_a_run_longer(
    fleet: Fleet, behind_s: float, versions_s: float, told_s: float
) -> None:
    """The same holds for versions that have jumped. The task has run for 1 s, and then for 5 s."""
    ticks = round((fleet.clock.monotonic() - versions_s) * 1_000_000)
    task = fleet.works(0.5, seen=fleet.clock.now() - behind_s, ticks=ticks)
    fleet.clock.advance(5)
    found = fleet.queue.explain(fleet.db, task).run
    assert found is not None
    assert found.for_s == pytest.approx(told_s)


def test_explain_tells_the_runs_that_hold_all_threads(fleet: Fleet) -> None:
    first = fleet.works()
    fleet.clock.advance(1)
    second = fleet.works()
    waits = fleet.queue.put(fleet.db, "waits")
    fleet.clock.advance(9)
    [reason] = fleet.queue.explain(fleet.db, waits).reasons
    told = f"{first.id} of q for 11 s, {second.id} of q for 10 s"
    assert reason.text == (
        "There are 2 workers of the queue, and none of them waits for a task: for 10 s no thread has been"
        f" free. The longest runs are {told}."
    )
    assert reason.cure == "More workers, or more threads in each."
    fleet.clock.advance(FULL_S)
    [reason] = fleet.queue.explain(fleet.db, waits).reasons
    assert reason.cure == f"fdbqueue explain q {first.id}"


def test_explain_of_a_hanging_task_says_so(fleet: Fleet) -> None:
    task = fleet.works(0.5)
    found = fleet.queue.explain(fleet.db, task)
    assert (found.run, found.runs, found.full_s) == (LongRun(task.id, "q", 1.0, 0.5, "host", 7), (), 0.0)
    assert "hangs" not in found.reasons[0].cure
    fleet.clock.advance(HUNG_S)
    [reason] = fleet.queue.explain(fleet.db, task).reasons
    assert reason.text.endswith("has held it for 61 s, where its like take 0.5 s.")
    assert reason.cure.startswith(
        "If it hangs, bury it, or else another worker takes it; then end that process."
    )


def test_a_worker_with_a_free_thread_is_no_reason(fleet: Fleet) -> None:
    fleet.works()
    fleet.works(full=False)
    found = fleet.queue.explain(fleet.db, fleet.queue.put(fleet.db, "waits"))
    assert (found.workers, found.runs, found.full_s) == (2, (), 0.0)


@pytest.mark.parametrize(
    ("ahead_s", "idle_s", "told_s"),
    [(3_600, 0, 3_599), (-3_600, 10, 3_598), (0, 10, 0), (0.9, 0, 0), (3_600, 61, 0)],
)
def test_a_wrong_clock_of_a_worker_is_a_figure(
    fleet: Fleet, ahead_s: float, idle_s: float, told_s: float
) -> None:
    """A presence of more than a minute tells none: versions may have jumped since then."""
    fleet.works(
        0.5, seen=fleet.clock.now() + ahead_s, ticks=max(1, round(fleet.clock.monotonic() * 1_000_000))
    )
    fleet.clock.advance(idle_s)
    assert Overview().figures(fleet.db).clock_difference_s == pytest.approx(told_s)
