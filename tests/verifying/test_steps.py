"""The steps of tasks are verified against the records that count them, and mended."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from msgspec.structs import replace

from fdbqueue import Database, Flaw, TaskQueue, verify
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.options import kind_names
from fdbqueue.tasks.steps import Step, to_bytes
from fdbqueue.tasks.stored.records import TaskKeys, id_bytes, id_text, record_of, record_to_bytes

LONGER, UNREADABLE = to_bytes(Step(b"a longer result")), b"\xc1"
STATES = (TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)


@dataclass
class Place:
    """A queue with one task, which has done the steps "a" and "b"."""

    db: Database
    root: Subspace
    queue: TaskQueue
    id: bytes

    @property
    def keys(self) -> TaskKeys:
        return self.queue._shape.partition(self.id[1]).keys

    def verify(self, mend: bool = False) -> Any:
        return verify(self.db, "q", root=self.root, mend=mend)

    def step(self, name: str) -> bytes:
        return self.keys.step(self.id, name)


def made(db: Database, space: Subspace, kind: str, state: TaskState, partitions: int = 1) -> Place:
    queue = TaskQueue.create(db, "q", kind, partitions=partitions, root=space)
    queue.put(db, "x")
    task = queue.take(db, 0)
    assert task is not None
    for name in "ab":
        queue.step(db, task, name, lambda: "result")
    match state:
        case TaskState.READY:
            queue.release(db, task)
        case TaskState.DELAYED:
            queue.release(db, task, delay=1e6)
        case TaskState.BURIED:
            queue.bury(db, task)
    return Place(db, space, queue, id_bytes(task.id))


PLANTS: dict[str, tuple[Callable[[Place], object], Flaw, list[str]]] = {
    "a step too many": (lambda at: at.db.set(at.step("c"), LONGER), Flaw.COUNTER, ["a", "b", "c"]),
    "a step too few": (lambda at: at.db.clear(at.step("a")), Flaw.COUNTER, ["b"]),
    "a longer step": (lambda at: at.db.set(at.step("a"), LONGER), Flaw.COUNTER, ["a", "b"]),
    "an unreadable step": (lambda at: at.db.set(at.step("a"), UNREADABLE), Flaw.VALUE, ["b"]),
}


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_task_counts_its_steps_again(
    db: Database, space: Subspace, name: str, state: TaskState, partitions: int
) -> None:
    plant, flaw, names = PLANTS[name]
    at = made(db, space, "fifottl", state, partitions)
    assert at.verify().findings == ()
    plant(at)
    assert flaw in {finding.flaw for finding in at.verify().findings}
    mends_all(at, names)


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("state", [TaskState.READY, TaskState.TAKEN])
def test_a_task_of_an_earlier_release_keeps_its_steps(
    db: Database, space: Subspace, kind: str, state: TaskState
) -> None:
    """Its record has lost the count, and no step that is done may run again."""
    at = made(db, space, kind, state)
    key = at.keys.task(at.id)
    record = replace(record_of(bytes(db[key])), extra=None)
    db[key] = record_to_bytes(record)
    if state is TaskState.READY:
        db[at.queue._shape.discipline.filed(record)] = record_to_bytes(record)
    assert Flaw.COUNTER in {finding.flaw for finding in at.verify().findings}
    mends_all(at, ["a", "b"])


def mends_all(at: Place, names: list[str]) -> None:
    assert at.verify(mend=True).sound
    assert at.verify().findings == ()
    task = at.queue.peek(at.db, id_text(at.id))
    assert (at.queue.steps(at.db, task), task.steps) == (names, len(names))
    at.queue.delete(at.db, task.id)
    under = at.keys.all_steps
    assert list(at.db.get_range(under.start, under.stop)) == []
