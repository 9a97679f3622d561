"""One dashboard for the tests of a module, over a clock that stands still; and a database for each test."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import fdbqueue
from fdbqueue import Database, Failure, Session, TaskQueue
from tests.dashboard.support import Browser, browsing
from tests.tasks.support import StillClock

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
NAME = "a/b ~41 <i>"


@dataclass
class Served:
    """A queue with a task in each state, and browsers of two dashboards of it."""

    db: Database
    clock: StillClock
    queue: TaskQueue
    ids: dict[str, str]
    reader: Browser
    writer: Browser


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = TaskQueue.create(db, NAME, "utubettl", ttr=60, retain_s=900)
        fdbqueue.Queue.named(db, "plain").enqueue(db, "x")
        session = Session(db, HOSTILE, 1e9)
        ids = {
            name: queue.put(db, {"n": HOSTILE}, key=name).id for name in ("taken", "buried", "ended", "ready")
        }
        ids["delayed"] = queue.put(db, "later", delay=60, key="delayed").id
        for task in queue.take_many(db, 3, session=session):
            assert ids[task.key] == task.id
            if task.key == "taken":
                queue.progress(db, task, 0.4)
            elif task.key == "buried":
                queue.bury(db, task, failure=Failure("ValueError", HOSTILE, f"Traceback\n  {HOSTILE}"))
            else:
                queue.ack(db, task)
        with browsing(db) as reader, browsing(db, write=True) as writer:
            yield Served(db, clock, queue, ids, reader, writer)


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as db:
        yield db
