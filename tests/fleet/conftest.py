"""A queue, a worker that works until it is empty, and fleets in other programs."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Backoff, Database, Hooks, Session, TaskQueue, Worker
from fdbqueue.core.sessions.keeper import Silence
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.settling import Heartbeat
from tests.fleet.handlers import SPACE
from tests.support import PATIENCE_S

HERE = Path(__file__).parents[2]
OBEY = "tests.fleet.handlers:obey"
SOON = Backoff(first_s=0.01, cap_s=0.02)


@pytest.fixture(autouse=True)
def no_worker_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that has failed leaves no worker at work, which would delay the tests behind it."""
    started: list[Worker] = []
    start = Worker.start

    def noted(worker: Worker, **options: Any) -> None:
        started.append(worker)
        start(worker, **options)

    monkeypatch.setattr(Worker, "start", noted)
    yield
    for worker in started:
        worker.stop(at_once=True)


@pytest.fixture(autouse=True)
def _empty_queues_are_looked_at_often(workers_end_soon: None) -> None: ...


@pytest.fixture
def queue(db: Database, space: Any) -> TaskQueue:
    return TaskQueue.create(db, "jobs", "fifottl", ttr=30, root=space)


@pytest.fixture
def work(db: Database, space: Any, queue: TaskQueue) -> Callable[..., list[tuple[str, Any]]]:
    """Work until the queue is empty; return each outcome with its data, in order."""

    def run(handler: Callable[..., object], **options: Any) -> list[tuple[str, Any]]:
        told: list[tuple[str, Any]] = []
        note = lambda event: told.append((event.name, event.task.data))  # noqa: E731
        names = ("succeeded", "retried", "snoozed", "handed_off", "buried", "lease_lost", "cancelled")
        hooks = Hooks(**dict.fromkeys(names, note))
        settings: dict[str, Any] = {"threads": 2, "backoff": SOON, "hooks": hooks, "root": space, **options}
        Worker(db, queue, handler, **settings).run(until_empty=True)
        return told

    return run


@contextmanager
def working(worker: Worker) -> Iterator[Worker]:
    """Start a worker; stop it at the end of the block, and wait for its last handler."""
    worker.start()
    yield worker
    worker.stop()
    assert worker.join(PATIENCE_S)


class Run(threading.Thread):
    """A call of `worker.run()`, and the error that it raises."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:
            self.error = error

    def end(self) -> Exception | None:
        """Wait for the end; return the error."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.error


class Beaten:
    """Leases of one session, and a heartbeat that the test ticks. It renews them, or owes them an excuse."""

    def __init__(
        self,
        db: Database,
        space: Any,
        queues: Sequence[TaskQueue],
        count: int = 1,
        *,
        timeout_s: float | None = None,
        overran: Callable[[Hold], object] = print,
        owes: bool = False,
    ) -> None:
        self.db, self.session, self.chores = db, Session(db, root=space), 0
        self.heartbeat = Heartbeat(db, Silence(db.runtime), timeout_s, overran, self._chore, print)
        self._note = self.heartbeat.owe if owes else self.heartbeat.add
        self.holds = [hold for queue in queues for hold in self.take(queue, count, self.session)]

    def _chore(self) -> float:
        self.chores += 1
        return self.db.runtime.monotonic() + PATIENCE_S

    def take(self, queue: TaskQueue, count: int, session: Session) -> list[Hold]:
        queue.put_many(self.db, range(count))
        tasks = queue.take_many(self.db, count, session=session)
        holds = [Hold(queue, task, self.db, session, self.db.runtime.now()) for task in tasks]
        for hold in holds:
            self._note(hold)
        return holds

    def renew_all(self) -> float:
        for hold in self.holds:
            hold.beat_at = 0.0
        return self.heartbeat._tick()


class Supervisor:
    """A fleet in another program, which the test can signal and wait for."""

    def __init__(self, url: str, space: Any, **options: Any) -> None:
        settings = {"queues": "jobs", "handler": OBEY, "session_ttr_s": 1.5, "root": space.key().hex()}
        command = [sys.executable, "-m", "tests.fleet.supervise", url, json.dumps(settings | options)]
        self.process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        self.seen: list[dict[str, Any]] = []

    def read_until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next line that fulfils the condition."""
        for line in self.stdout:
            self.seen.append(json.loads(line))
            if condition(self.seen[-1]):
                return self.seen[-1]
        raise AssertionError(self.seen)

    def wait_until_running(self, tasks: int = 1) -> list[int]:
        """Wait until `count` tasks run; return the ids of the processes."""
        told = self.read_until(lambda said: sum(n for _, _, n in said.get("processes", ())) >= tasks)
        return [pid for pid, _, _ in told["processes"]]

    def end(self) -> tuple[int, dict[str, Any]]:
        said = self.read_until(lambda said: "processes" not in said)
        return self.process.wait(PATIENCE_S), said


@pytest.fixture
def supervise(url: str, space: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    monkeypatch.setenv(SPACE, space.key().hex())
    started: list[Supervisor] = []

    def start(**options: Any) -> Supervisor:
        started.append(Supervisor(url, space, **options))
        return started[-1]

    yield start
    for supervisor in started:
        supervisor.process.kill()
        supervisor.process.wait()
        supervisor.stdout.close()


def gone(pid: int) -> bool:
    """True if the process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
