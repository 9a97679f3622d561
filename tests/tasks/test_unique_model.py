"""Unique keys against a plain model: puts of every scope, verbs and time in any order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fdbqueue
from fdbqueue import Session, Task, TaskQueue
from fdbqueue.core.errors import UniqueTaskBusy
from fdbqueue.core.task import TaskState
from fdbqueue.core.transactional import transactional
from tests.conftest import SLOW
from tests.tasks.support import LONG_S, Bench, StillClock, keeper

TTR_S, WINDOW_S, LATEST_S, FOREVER = 4.0, 3.0, 5.0, float("inf")
SCOPES: dict[str, Any] = {"a": "queued", "b": "unfinished", "c": WINDOW_S}
WAITING = (TaskState.READY, TaskState.DELAYED)
keys = st.sampled_from("abc")
picks = st.integers(0, 5)


@dataclass
class Known:
    """A task as the model knows it."""

    id: str
    key: str | None
    data: int
    created: float
    state: TaskState = TaskState.READY
    due: float = 0.0
    until: float = FOREVER
    """The end of its lease."""
    expires: float = FOREVER


class Keys(RuleBasedStateMachine):
    @initialize(partitions=st.sampled_from([1, 1, 3]))
    def create(self, partitions: int) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.queue = TaskQueue.create(self.db, "q", "fifottl", ttr=TTR_S, partitions=partitions)
        self.session = Session(self.db, ttr=LONG_S)
        self.tasks: dict[str, Known] = {}
        self.windows: dict[str, tuple[str, float]] = {}
        self.leases: dict[str, Task] = {}
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()

    # The model.

    def holder(self, key: str) -> tuple[str, Known | None] | None:
        """The id of the task that has the key, and the task itself if it is there."""
        if key in self.windows:
            id_, until = self.windows[key]
            return (id_, self.tasks.get(id_)) if self.clock.now() < until else None
        return next(((task.id, task) for task in self.tasks.values() if self.has(task, key)), None)

    def has(self, task: Known, key: str) -> bool:
        return task.key == key and (SCOPES[key] != "queued" or task.state in WAITING)

    def come_back(self, task: Known, state: TaskState = TaskState.READY) -> None:
        if task.key == "a" and task.state not in WAITING and self.holder("a"):
            task.key = None
        task.state, task.until = state, FOREVER
        self.leases.pop(task.id, None)

    def gone(self, id_: str) -> None:
        del self.tasks[id_]
        self.leases.pop(id_, None)

    def pick(self, pick: int, *states: TaskState) -> Known | None:
        found = [task for task in self.tasks.values() if task.state in states]
        return found[pick % len(found)] if found else None

    # Puts.

    @rule(
        key=keys,
        conflict=st.sampled_from(["skip", "replace", "debounce"]),
        delay=st.sampled_from([0, 0, 1.0, 3.0]),
        ttl=st.sampled_from([None, None, 2.0, 6.0]),
        inside=st.booleans(),
    )
    def put(self, key: str, conflict: str, delay: float, ttl: float | None, inside: bool) -> None:
        self.number += 1
        now, data = self.clock.now(), self.number
        ttl = None if key == "a" else ttl
        options = {"unique": key, "scope": SCOPES[key], "on_conflict": conflict, "delay": delay, "ttl": ttl}
        if conflict == "debounce":
            options["debounce_max"] = LATEST_S
        holder = self.holder(key)
        task = holder[1] if holder else None
        if holder and conflict != "skip" and (task is None or task.state not in WAITING):
            with pytest.raises(UniqueTaskBusy):
                self.queue.put(self.db, data, **options)
            return
        body = transactional(lambda tr: self.queue.put(tr, data, **options), parameter="tr")
        got = body(self.db) if inside else self.queue.put(self.db, data, **options)
        assert got.existed == bool(holder)
        if holder is None:
            task = self.tasks[got.id] = Known(got.id, key, data, now)
            self.wait(task, now + delay)
            if key == "c":
                self.windows[key] = (got.id, now + WINDOW_S)
        elif task and conflict != "skip":
            task.data = data
            due = task.due if task.state == TaskState.DELAYED else now
            self.wait(task, min(now + delay, task.created + LATEST_S) if conflict == "debounce" else due)
        if task and (holder is None or conflict != "skip"):
            task.expires = max(now, task.due) + (FOREVER if ttl is None else ttl)
        assert got.id == (holder[0] if holder else got.id)
        expected = (TaskState.DONE, None) if task is None else (task.state, task.data)
        assert (got.state, got.data) == expected

    def wait(self, task: Known, due: float) -> None:
        task.due = due
        task.state = TaskState.DELAYED if due > self.clock.now() else TaskState.READY

    # Verbs and time.

    @rule()
    def take(self) -> None:
        got = self.queue.take(self.db, 0, session=self.session)
        if got is None:
            assert not self.pick(0, TaskState.READY)
            return
        task = self.tasks[got.id]
        assert (task.state, task.data) == (TaskState.READY, got.data)
        task.state, task.until = TaskState.TAKEN, min(self.clock.now() + TTR_S, task.expires)
        self.leases[got.id] = got

    @rule(pick=picks, verb=st.sampled_from(["ack", "release", "delayed", "give_back", "bury"]))
    def end(self, pick: int, verb: str) -> None:
        if not self.leases:  # no precondition: partitions are chosen by chance
            return
        lease = [*self.leases.values()][pick % len(self.leases)]
        task = self.tasks[lease.id]
        if verb == "delayed":
            self.queue.release(self.db, lease, delay=1.0)
            self.come_back(task, TaskState.DELAYED)
            task.due, task.expires = self.clock.now() + 1.0, task.expires + 1.0
            return
        getattr(self.queue, verb)(self.db, lease)
        if verb == "ack":
            self.gone(task.id)
        elif verb == "bury":
            task.state, task.until = TaskState.BURIED, FOREVER
            del self.leases[task.id]
        else:
            self.come_back(task)

    @rule(pick=picks, verb=st.sampled_from(["delete", "cancel", "bury"]))
    def manage(self, pick: int, verb: str) -> None:
        task = self.pick(pick, TaskState.READY, TaskState.DELAYED, TaskState.BURIED)
        if task is None:
            return
        getattr(self.queue, verb)(self.db, task.id)
        if verb == "bury":
            task.state = TaskState.BURIED
        else:
            self.gone(task.id)

    @rule()
    def kick(self) -> None:
        buried = [task for task in self.tasks.values() if task.state == TaskState.BURIED]
        if len(buried) == 1:  # of several, the order of their places decides which of them has its key
            assert self.queue.kick(self.db, 1) == 1
            self.come_back(buried[0])

    @rule()
    def truncate(self) -> None:
        self.queue.truncate(self.db)
        self.tasks, self.windows, self.leases = {}, {}, {}

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.5]), is_swept=st.booleans())
    def advance(self, seconds: float, is_swept: bool) -> None:
        """Only a sweep gives a task with the scope "queued" its key back."""
        self.clock.advance(seconds)
        now = self.clock.now()
        lapsed = [task for task in self.tasks.values() if task.until <= now]
        if is_swept or any(task.key == "a" for task in lapsed):
            keeper(self.db).tick()
        for task in sorted(lapsed, key=lambda task: (task.until, task.id)):
            self.come_back(task)
        for task in [*self.tasks.values()]:
            if task.state == TaskState.DELAYED and task.due <= now:
                task.state = TaskState.READY
            if task.state in (TaskState.READY, TaskState.BURIED) and task.expires <= now:
                self.gone(task.id)

    @invariant()
    def entries_and_tasks_agree(self) -> None:
        if hasattr(self, "db"):
            assert fdbqueue.verify(self.db).findings == ()


Keys.TestCase.settings = settings(
    max_examples=500 if SLOW else 40, stateful_step_count=30, deadline=None, print_blob=True
)
TestKeys = Keys.TestCase


def test_a_debounced_task_lives_for_its_ttl_after_its_delay(bench: Callable[..., Bench]) -> None:
    b = bench("fifottl")
    for number in range(2):
        b.put(number, unique=1, on_conflict="debounce", debounce_max=60, delay=5, ttl=2)
    b.clock.advance(6)
    assert b.taken_data() == [1]
