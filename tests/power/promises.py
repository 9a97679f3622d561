"""The work of a run, and its promises, which hold after a power cut.

Each worker commits *entries* of raw keys, and puts, takes and acks tasks. It notes each change before its
commit as begun, and after it as done. A change that may reach the disk later is done with the next one that
is durable: a power cut removes the last commits only.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fdbqueue
from fdbqueue import TaskState
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import journal
from fdbqueue.operate.verify.verify import verify


@dataclass(frozen=True)
class Shape:
    """`ahead_bytes`: the zeros behind a record. `can_allocate`: the file system has `fallocate`."""

    generation_bytes: int = limits.GENERATION_BYTES_MAX
    ahead_bytes: int = journal._ZEROS_BYTES
    can_allocate: bool = True

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this process open directories in this shape meanwhile."""
        before = limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES
        limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES = self.generation_bytes, self.ahead_bytes
        try:
            yield
        finally:
            limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES = before


SHAPES = {
    "preallocated": Shape(),
    "appended": Shape(ahead_bytes=0, can_allocate=False),
    "tiny": Shape(generation_bytes=2_000, ahead_bytes=1_000),
    "tiny-appended": Shape(generation_bytes=2_000, ahead_bytes=0, can_allocate=False),
}
"""With a tiny generation, a checkpoint follows every few commits."""


QUEUE = "work"
ENTRY, TWIN, COUNT = b"entry/", b"twin/", b"count"
ENDS = {"add": "remove", "put": "end"}
"""The verb that undoes another one."""
ONE = (1).to_bytes(8, "little")
LONG_BYTES = 9_000
"""A value of several pages."""

Tell = Callable[[str, str, str], None]
"""Notes (state, verb, name); the state is `begun` or `done`.

With `seen`, the names are all that are there, one a line; no other change is under way.
"""


def work(db: Any, name: str, steps: int, tell: Tell) -> None:
    """Make `steps` changes, one after the other."""
    worker = Worker(db, name, tell)
    for step in range(steps):
        worker.step(f"{name}.{step}")


class Worker:
    """Makes one change after the other; `change` says how one is made."""

    def __init__(self, db: Any, name: str, tell: Tell) -> None:
        self._db = db
        self._tell = tell
        self._rng = random.Random(name)
        self._queue = fdbqueue.TaskQueue.open(db, QUEUE)
        self._entries: list[str] = []
        self._late: list[str] = []

    def step(self, name: str) -> None:
        match self._rng.choice(("add", "add", "late", "remove", "put", "put", "end")):
            case "add":
                is_long = self._rng.random() < 0.2
                if self.change("add", name, partial(run, self._db, partial(add, name, is_long))):
                    self._entries.append(name)
            case "late":
                self._tell("begun", "add", name)
                run(self._db, partial(add_late, name))
                self._late.append(name)
            case "remove" if self._entries:
                gone = self._entries.pop(self._rng.randrange(len(self._entries)))
                self.change("remove", gone, partial(run, self._db, partial(remove, gone)))
            case "put":
                self.change("put", name, partial(self._queue.put, self._db, name))
            case _:
                self._end_one()

    def _end_one(self) -> None:
        task = self._queue.take(self._db, timeout=0)
        if task is not None:
            self.change("end", task.data, partial(self._queue.ack, self._db, task))

    def change(self, verb: str, name: str, act: Callable[[], object]) -> bool:
        """Make a change; true if it happened for sure."""
        self._tell("begun", verb, name)
        act()
        self._tell("done", verb, name)
        while self._late:
            self._tell("done", "add", self._late.pop())
        return True


def add(name: str, is_long: bool, tr: Any) -> None:
    value = name.encode() * (LONG_BYTES // len(name) if is_long else 1)
    tr[ENTRY + name.encode()] = value
    tr[TWIN + name.encode()] = value
    tr.add(COUNT, ONE)


def add_late(name: str, tr: Any) -> None:
    tr.options.set_durability_risky()
    add(name, False, tr)


def remove(name: str, tr: Any) -> None:
    del tr[ENTRY + name.encode()]
    tr.clear_range(TWIN + name.encode(), TWIN + name.encode() + b"\0")
    tr.add(COUNT, (-1).to_bytes(8, "little", signed=True))


@dataclass
class Expected:
    """The notes of a run up to one moment: by verb, the names that are begun and done."""

    begun: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    done: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def hear(self, state: str, verb: str, name: str) -> None:
        if state == "seen":
            self._see(verb, ENDS[verb], set(name.splitlines()))
        else:
            (self.begun if state == "begun" else self.done)[verb].add(name)

    def _see(self, made: str, ended: str, there: set[str]) -> None:
        """Settle the changes in doubt: some are there for good, the others must not come back."""
        self.done[made] |= there
        self.begun[ended] -= there
        self.done[ended] |= self.begun[made] - there

    def must(self, made: str, ended: str) -> set[str]:
        """The names that are there for sure."""
        return self.done[made] - self.begun[ended]

    def may(self, made: str, ended: str) -> set[str]:
        """The names that may be there."""
        return self.begun[made] - self.done[ended]


def broken(db: Any, expected: Expected) -> Iterator[str]:
    """Tell each promise that the database breaks."""
    try:
        entries = {row.key.removeprefix(ENTRY).decode(): row.value for row in db.get_range_startswith(ENTRY)}
        twins = {row.key.removeprefix(TWIN).decode(): row.value for row in db.get_range_startswith(TWIN)}
        count = int.from_bytes(db[COUNT] or b"", "little")
    except FDBError as error:
        yield f"the database cannot be read: {error}"
        return
    yield from _differences("entry", set(entries), expected, "add", "remove")
    if entries != twins:
        yield "a transaction is there in part"
    if count != len(entries):
        yield f"{count} entries were counted, {len(entries)} are there"
    if "made" in expected.done["queue"] and QUEUE not in fdbqueue.list_queues(db):
        yield "the queue is gone"
        return
    if QUEUE in fdbqueue.list_queues(db):
        yield from _differences("task", tasks(db), expected, "put", "end")
    for finding in verify(db).findings:
        yield f"verify: {finding}"


def _differences(what: str, there: set[str], expected: Expected, made: str, ended: str) -> Iterator[str]:
    for name in expected.must(made, ended) - there:
        yield f"{what} {name} is lost"
    for name in there - expected.may(made, ended):
        yield f"{what} {name} has come back"


def names(db: Any, prefix: bytes) -> set[str]:
    """The names of the entries below a prefix."""
    return {row.key.removeprefix(prefix).decode() for row in db.get_range_startswith(prefix)}


def tasks(db: Any) -> set[str]:
    """The data of all tasks, whatever their state: of one version, as a lease may end between two looks."""
    queue = fdbqueue.TaskQueue.open(db, QUEUE)
    return run(
        db,
        lambda tr: {name for state in (TaskState.READY, TaskState.TAKEN) for name in _in(queue, tr, state)},
    )


def _in(queue: fdbqueue.TaskQueue, tr: Any, state: TaskState) -> Iterator[str]:
    page = queue.tasks(tr, state, limit=100)
    yield from (task.data for task in page)
    while page.next is not None:
        page = queue.tasks(tr, state, limit=100, after=page.next)
        yield from (task.data for task in page)
