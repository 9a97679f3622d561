"""Producers and consumers that record their calls: threads of a test, or processes that may be killed."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, FairQueue, Queue, Session, TaskQueue
from fdbqueue.core.errors import NotTaken
from fdbqueue.testing.history import REFUSED, Recorder

TTR_S = 0.1
KEYS = ("red", "green", "blue")
NAME = "tasks"
TAKES_MAX = 300


class Items:
    """The calls on a plain queue."""

    def __init__(self, space: Subspace) -> None:
        self._queue = Queue(space["items"], root=space["root"])

    def put(self, db: Database, recorder: Recorder, value: str) -> None:
        recorder.call("put", value, lambda: self._queue.enqueue(db, value), shown=nothing)

    def take(self, db: Database, recorder: Recorder, timeout: float) -> bool:
        value = recorder.call("take", None, lambda: self._queue.dequeue(db, timeout=timeout))
        return value is not None


class Tenants:
    """The calls on a fair queue."""

    def __init__(self, space: Subspace) -> None:
        self._queue = FairQueue(space["fair"], key=lambda item: item[0], capacity=None, root=space["root"])

    def put(self, db: Database, recorder: Recorder, value: str) -> None:
        item = [random.choice(KEYS), value]
        recorder.call("put", item, lambda: self._queue.put(db, item), shown=nothing)

    def take(self, db: Database, recorder: Recorder, timeout: float) -> bool:
        item = recorder.call("take", None, lambda: self._queue.get(db, timeout=timeout))
        return item is not None


class Leased:
    """The calls on a task queue. Leases are acked, released or renewed, and some are let lapse."""

    def __init__(self, space: Subspace) -> None:
        self._root = space["root"]
        self._sessions: dict[int, Session] = {}

    def prepare(self, db: Database) -> None:
        TaskQueue.create(db, NAME, "fifottl", root=self._root, ttr=TTR_S)
        self._session(db)

    def _session(self, db: Database) -> Session:
        """One for all consumers, and for the test. A directory knows at once that a process was killed: with
        a session of its own, its leases would end before their time.
        """
        if id(db) not in self._sessions:
            self._sessions[id(db)] = Session(db, NAME, root=self._root)
        return self._sessions[id(db)]

    def put(self, db: Database, recorder: Recorder, value: str) -> None:
        queue = TaskQueue.open(db, NAME, root=self._root)
        recorder.call("put", value, lambda: queue.put(db, value), shown=nothing)

    def take(self, db: Database, recorder: Recorder, timeout: float) -> bool:
        queue, session = TaskQueue.open(db, NAME, root=self._root), self._session(db)
        task = recorder.call("take", None, lambda: queue.take(db, timeout, session=session), shown=lease_of)
        again = task
        while again is not None:
            again = self._end(db, queue, recorder, again)
        return task is not None

    def _end(
        self, db: Database, queue: TaskQueue, recorder: Recorder, task: fdbqueue.Task
    ) -> fdbqueue.Task | None:
        """End a lease. One that has lapsed is used after another take, which mostly gets the same task:
        that one is returned.
        """
        chance, lease = random.random(), lease_of(task)
        again: fdbqueue.Task | None = None
        if chance < 0.1:
            db.runtime.sleep(TTR_S * 1.2)
            session = self._session(db)
            again = recorder.call("take", None, lambda: queue.take(db, 0, session=session), shown=lease_of)
        elif chance < 0.3:
            db.runtime.sleep(TTR_S * 0.6)
            recorder.call(
                "renew",
                lease,
                lambda: queue.renew(db, [task]),
                shown=lambda renewed: None if task.id in renewed else REFUSED,
            )
            db.runtime.sleep(TTR_S * 0.6)
        verb: Callable[..., Any] = queue.release if chance > 0.85 else queue.ack
        name = "release" if chance > 0.85 else "ack"
        recorder.call(name, lease, lambda: verb(db, task), shown=nothing, refusals=(NotTaken,))
        return again


SUBJECTS: dict[str, Callable[[Subspace], Any]] = {"items": Items, "fair": Tenants, "leases": Leased}


def nothing(_: object) -> None:
    """The result of a call whose answer tells nothing but that it has happened."""


def lease_of(task: fdbqueue.Task | None) -> list[str] | None:
    return None if task is None or task.token is None else [task.data, task.token.hex()]


def produce(subject: Any, db: Database, recorder: Recorder, name: str, count: int) -> None:
    for number in range(count):
        subject.put(db, recorder, f"{name}.{number}")
        db.runtime.sleep(random.expovariate(200))


def consume(subject: Any, db: Database, recorder: Recorder, count: int) -> None:
    for _ in range(count):
        if not subject.take(db, recorder, random.choice((0, 0, 0.02))):
            db.runtime.sleep(random.expovariate(200))


def drain(subject: Any, db: Database, recorder: Recorder) -> None:
    """Take until there is nothing. A planted bug might go on for ever."""
    for _ in range(TAKES_MAX):
        if not subject.take(db, recorder, 0):
            return


def process(role: str, kind: str, url: str, prefix: bytes | str, directory: str, count: int) -> None:
    """A process of its own. It ends at once: to close the database would end its leases before their time."""
    raw = bytes.fromhex(prefix) if isinstance(prefix, str) else prefix
    subject = SUBJECTS[kind](Subspace(rawPrefix=raw))
    name = f"{role}-{os.getpid()}"
    db = fdbqueue.open(url, session_ttr_s=60)
    recorder = Recorder(Path(directory), name)
    if role == "producer":
        produce(subject, db, recorder, name, count)
    else:
        consume(subject, db, recorder, count)
    os._exit(0)
