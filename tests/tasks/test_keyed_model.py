"""Keyed kinds go through the whole life cycle beside plain models of the next task."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from fdb import tuple as layer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.tasks.stored.key_counts import level_of
from tests.conftest import SLOW
from tests.tasks.model import Model, ModelTask
from tests.tasks.support import StillClock
from tests.tasks.test_model import LifeCycle

KEYS = 3


def key_of(data: int) -> int:
    return data * data % KEYS  # 0, 1, 1: one key has two thirds of the tasks


class KeyedPuts:
    """A queue with a key for each task."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue

    def put_many(self, target: Any, data: Iterable[int], **options: Any) -> list[fdbqueue.Task]:
        def put(tr: Any) -> list[fdbqueue.Task]:
            return [self._queue.put(tr, one, key=key_of(one), **options) for one in data]

        return run(target, put)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class MicroModel(Model):
    """A sorted list for each key; the next task is the first head of a key that is not busy."""

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
    """With an index of busy keys that begins at four tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "KEY_LEVEL_MIN", 1)

    def teardown(self) -> None:
        self.patch.undo()
        super().teardown()

    @invariant()
    def statistics_by_key_are_those_of_the_model(self) -> None:
        if not hasattr(self, "db"):
            return
        expected = {}
        for key in range(KEYS):
            states = Counter(task.state for task in self.model.tasks.values() if key_of(task.data) == key)
            first = next((task.id for task in self.model.ready() if key_of(task.data) == key), None)
            if states["r"]:
                expected[key] = (*(states[state] for state in "rt!~"), first)
        found = self.queue.key_statistics(self.db, 9)
        assert {
            s.key: (s.ready, s.taken, s.buried, s.delayed, s.oldest and s.oldest.id) for s in found
        } == expected
        assert [s.ready for s in found] == sorted((s.ready for s in found), reverse=True)
        index, levels = run(self.db, lambda tr: self.queue._queue._shape.discipline.counts.index(tr, 99))
        assert index == levels
        ready = {layer.pack((s.key,)): s.ready for s in found}
        for level, key in levels:
            assert level_of(ready[key], level) == level

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
    max_examples=5_000 if SLOW else 50, stateful_step_count=60 if SLOW else 40, deadline=None
)
TestMicroLife = MicroLife.TestCase
