"""Schedules on a clock set by hand: they are fired when a test says so."""

from datetime import UTC, datetime
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import Database, Schedule, ScheduleStatus, Task, TaskQueue, fire_due, list_schedules, verify
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime
from tests.tasks.support import StillClock as StillClock

AHEAD_S = 10.0
"""Longer than a call on a busy cluster, and shorter than the periods of the schedules."""


class ScheduleBench:
    """A root with one task queue, and its schedules."""

    def __init__(self, db: Database, clock: StillClock, root: Subspace) -> None:
        self.db = db
        self.clock = clock
        self.root = root
        self.queue = self.queue_of("fifottl")

    def queue_of(self, kind: str, name: str = "reports", **options: Any) -> TaskQueue:
        return TaskQueue.create(self.db, name, kind, root=self.root, if_not_exists=True, **options)

    def create(self, expression: str | None = None, *, name: str = "nightly", **options: Any) -> Schedule:
        """A schedule of the bench: each hour, unless told otherwise."""
        if expression is None:
            options.setdefault("every", 3_600)
        options.setdefault("queue", "reports")
        return Schedule.create(self.db, name, expression, root=self.root, **options)

    def pass_after(self, seconds: float) -> int:
        """The number of tasks that a pass puts after that time."""
        self.clock.advance(seconds)
        return fire_due(self.db, root=self.root)

    def catch_up(self) -> None:
        """Set the clock to the real time: a transaction of the binding knows no other."""
        self.clock.advance(max(0.0, RealRuntime.now() + AHEAD_S - self.clock.now()))

    def tasks(self, state: str = "r", queue: TaskQueue | None = None) -> list[Task]:
        return list((queue or self.queue).tasks(self.db, state, 100))

    def data(self) -> list[Any]:
        return [task.data for task in self.tasks()]

    def due_times(self) -> list[str]:
        """The due times of the tasks of the queue, by their headers."""
        return [task.headers["scheduled-for"] for task in self.tasks()]

    def status(self, name: str = "nightly") -> ScheduleStatus:
        return Schedule.open(self.db, name, root=self.root).status(self.db)

    def names(self) -> list[str]:
        return [found.name for found in list_schedules(self.db, root=self.root)]

    def texts_of_verify(self) -> list[str]:
        return [finding.text for finding in verify(self.db, root=self.root).findings]

    @property
    def keys(self) -> RootKeys:
        return RootKeys(self.root)

    def at(self, seconds: float) -> str:
        """A time from now on, as the header of a task in UTC has it."""
        return datetime.fromtimestamp(self.clock.now() + seconds, UTC).isoformat()
