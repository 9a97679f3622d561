"""Keyed kinds go through the whole life cycle beside plain models of which task is next."""

import os
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.database import run
from tests.tasks.model import Model, ModelTask
from tests.tasks.support import StillClock
from tests.tasks.test_model import LifeCycle

SLOW = "FDBQUEUE_TEST_SLOW" in os.environ
KEYS = 3


def key_of(data: int) -> int:
    return data * data % KEYS  # 0, 1, 1: one key has two thirds of the tasks


class KeyedPuts:
    """A queue whose tasks get keys."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue

    def put_many(self, target: Any, data: Iterable[int], **options: Any) -> list[fdbqueue.Task]:
        def put(tr: Any) -> list[fdbqueue.Task]:
            return [self._queue.put(tr, one, key=key_of(one), **options) for one in data]

        return run(target, put)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class MicroModel(Model):
    """A line per key, each as long as it is sorted; the first of all heads whose key is not busy."""

    def __init__(self, *, timed: bool, concurrency: int) -> None:
        super().__init__(timed=timed, capacity=None)
        self.concurrency = concurrency

    def ready(self) -> list[ModelTask]:
        return sorted(super().ready(), key=lambda task: (key_of(task.data), task.pri, task.id))

    def take(self, session: str, count: int) -> list[ModelTask]:
        taken = []
        for _ in range(count):
            task = self._next()
            if task is not None:
                taken.append(self._lease(task, session))
        self.calls["take"] += len(taken)
        return taken

    def release(self, task: ModelTask, delay: float) -> None:
        super().release(task, delay)
        self.advance(0)  # its ttl may have ended meanwhile

    def bury(self, task: ModelTask) -> None:
        super().bury(task)
        self.advance(0)

    def release_of(self, session: str | None) -> None:
        super().release_of(session)
        self.advance(0)

    def _next(self) -> ModelTask | None:
        held = [key_of(task.data) for task in self.tasks.values() if task.state == "t"]
        heads: dict[int, ModelTask] = {}
        for task in self.ready():
            if held.count(key_of(task.data)) < self.concurrency:
                heads.setdefault(key_of(task.data), task)
        return min(heads.values(), key=lambda task: (task.pri, task.id), default=None)

    def _lease(self, task: ModelTask, session: str) -> ModelTask:
        self._leases += 1
        task.state, task.session, task.lease = "t", session, self._leases
        task.until = self.now + task.ttr  # the ttl does not end a lease
        task.attempts += 1
        return task


class MicroLife(LifeCycle):
    @initialize(kind=st.sampled_from(["utube", "utubettl"]), concurrency=st.sampled_from([1, 1, 2]))
    def create(self, kind: str, concurrency: int) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.timed = kind == "utubettl"
        self.queue = KeyedPuts(TaskQueue.create(self.db, "model", kind, key_concurrency=concurrency))
        self.model = MicroModel(timed=self.timed, concurrency=concurrency)
        self.sessions = {name: self._open() for name in "ab"}
        self.leases = []
        self.ids = []


MicroLife.TestCase.settings = settings(
    max_examples=5_000 if SLOW else 80, stateful_step_count=60 if SLOW else 40, deadline=None
)
TestMicroLife = MicroLife.TestCase
