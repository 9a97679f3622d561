"""A queue with buried tasks, on every engine."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, DeadLetters, Failure, TaskQueue
from tests.tasks.support import StillClock


class Grave:
    """A queue, its dead letters, and a way to bury tasks."""

    def __init__(self, db: Database, root: Any, kind: str = "fifottl", **options: Any) -> None:
        self.db = db
        self.root = root
        self.queue = TaskQueue.create(db, "grave", kind, root=root, **options)
        self.letters = DeadLetters.open(db, "grave", root=root)

    def bury(
        self, error: str | None = "ValueError", message: str = "odd", data: Any = None, **put: Any
    ) -> str:
        """Put a task, and bury it with a failure of that class, or without one."""
        id_ = self.queue.put(self.db, data, **put).id
        failure = None if error is None else Failure(error, message, "Traceback ...")
        self.queue.bury(self.db, id_, failure=failure)
        return id_

    def bury_each(self, *errors: str) -> list[str]:
        return [self.bury(error) for error in errors]

    def counted(self) -> dict[str | None, int]:
        return {found.error: found.tasks for found in self.letters.classes(self.db)}

    def listed(self, **matching: Any) -> list[str]:
        return [letter.task.id for letter in self.letters.tasks(self.db, 1000, **matching)]

    def tasks(self, state: str) -> int:
        return self.queue.statistics(self.db)["tasks"][state]


@pytest.fixture
def grave(db: Database, space: Subspace) -> Grave:
    return Grave(db, space)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still(clock: StillClock) -> Iterator[Grave]:
    """The same on a clock that is set by hand."""
    with fdbqueue.open("memory:", runtime=clock) as db:
        yield Grave(db, Subspace(("still",)))
