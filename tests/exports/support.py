"""Queues of every kind with something of everything, exports of them, and what an export says."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Limit, Queue, SimpleElementQueue, TaskQueue
from fdbqueue.core.partitions import BELL
from fdbqueue.core.registry import SIMPLE as ELEMENTS
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.operate.exports.exporting import Export
from fdbqueue.operate.exports.file import Counts, FinishedFile
from fdbqueue.operate.exports.importing import Import
from fdbqueue.tasks.stored.records import LINE
from tests.restoring.support import rows_below

KINDS: dict[str, dict[str, Any]] = {
    "fifo": {"limits": ["slots"]},
    "fifottl": {"task_limits": ["starts"]},
    "limfifottl": {"capacity": 1_000, "partitions": 2},
    "utube": {"key_concurrency": 2},
    "utubettl": {"partitions": 3},
    "fair": {"weights": {1: 3}},
    "bag": {"partitions": 2},
}
WITH_KEYS, WITH_DELAYS = ("utube", "utubettl", "fair"), ("fifottl", "limfifottl", "utubettl", "fair", "bag")
FOR_WAITERS = tuple(layer.pack((column,)) for column in (LINE, BELL))
LARGE = "x" * 100_000
TASKS = 24


def set_limits(db: Database, root: Any = DEFAULT_ROOT) -> None:
    Limit.set(db, "slots", slots=5, root=root)
    Limit.set(db, "starts", rate=50, per=1.5, burst=7, per_key=True, root=root)


def filled(db: Database, kind: str, root: Any = DEFAULT_ROOT, *, leases: bool = True) -> TaskQueue:
    """A paused queue of that name and kind, with tasks in all states, and all that lies beside tasks."""
    queue = TaskQueue.create(db, kind, kind, retain_s=1_000, root=root, **KINDS[kind])
    for number in range(TASKS):
        options: dict[str, Any] = {"key": number % 4} if kind in WITH_KEYS else {}
        if kind in WITH_DELAYS and number % 5 == 0:
            options["delay"] = 1_000 + number
        if kind == "fifottl":
            options |= {"pri": number % 3, "limits": {"starts": number % 2} if number % 2 else None}
        if number % 6 == 1:
            scope = ("unfinished", "queued", 1_000)[number // 6 % 3]
            options |= {"unique": f"unique {number}", "scope": scope}
        data = {"number": number, "text": LARGE if number == 9 else "small"}
        queue.put(db, data, result_ttl=1_000, headers={"from": "a test"}, **options)
    handled(db, queue, leases=leases)
    queue.pause(db)
    return queue


def handled(db: Database, queue: TaskQueue, *, leases: bool) -> None:
    for number in range(8 if leases else 5):
        task = queue.take(db, 0)
        assert task is not None
        if number == 0:
            queue.ack(db, task, result={"text": LARGE * 2})
        elif number == 1:
            queue.step(db, task, "first", lambda: "done")
            queue.release(db, task, failure=fdbqueue.Failure("Flaky", "once"))
        elif number == 2:
            queue.bury(db, task, failure=fdbqueue.Failure("Broken", "for good"))
        elif number in (3, 4):
            queue.ack(db, task)
        if number == 5:
            queue.cancel(db, task)


def plain(db: Database, root: Any = DEFAULT_ROOT, partitions: int = 2) -> Queue:
    queue = Queue.named(db, "plain", partitions=partitions, root=root)
    for number in range(15):
        queue.enqueue(db, LARGE if number == 7 else number)
    for _ in range(3):
        queue.dequeue(db)
    return queue


def elements(db: Database, root: Any = DEFAULT_ROOT) -> SimpleElementQueue:
    registry = Registry(root)
    definition = registry.find_or_create(db, "elements", ELEMENTS, {})
    queue = SimpleElementQueue(registry.contents(definition), root=root, guard=registry.guard(definition))
    names = [queue.add(db, LARGE if number == 3 else f"element {number}") for number in range(6)]
    queue.lock(db, names[0])
    queue.lock(db, names[1])
    queue.remove(db, names[1])
    return queue


def export(
    db: Database,
    path: Path,
    *names: str,
    root: Any = DEFAULT_ROOT,
    in_use: bool = False,
    leave_out: bool = False,
) -> dict[str, Counts]:
    """Export queues. Return the counts of each."""
    steps = Export(db, Registry(root), names, in_use=in_use, leave_out=leave_out).run(path)
    return {step.name: dict(step.counts) for step in steps if step.is_done}


def imported(db: Database, path: Path, *names: str, root: Any = DEFAULT_ROOT) -> dict[str, Counts]:
    with FinishedFile(path) as file:
        steps = list(Import(db, Registry(root), file, names).run())
    return {step.name: step.counts for step in steps if step.is_done}


def told(path: Path) -> list[dict[str, Any]]:
    """The lines of an export, without all that tells one export of the same queues from another."""
    lines = [json.loads(line.split(b" ", 1)[1]) for line in path.read_bytes().splitlines()]
    return [_alike(line) for line in lines if line["line"] != "mark"]


def _alike(line: dict[str, Any]) -> dict[str, Any]:
    if line["line"] == "done":  # only the first export knows of leases
        counts = {
            name: count for name, count in line["counts"].items() if name not in ("leases", "cancelled")
        }
        return {**line, "counts": counts}
    return {**line, "id": None} if line["line"] in ("export", "queue") else line


def stored(db: Database, name: str, root: Any = DEFAULT_ROOT) -> dict[bytes, bytes]:
    """The keys of a queue, without the prefix, its waiting lines and its bells."""
    registry = Registry(root)
    prefix = registry.contents(registry.find(db, name)).key()
    rows = ((key.removeprefix(prefix), value) for key, value in rows_below(db, prefix))
    return {key: value for key, value in rows if not key.startswith(FOR_WAITERS)}


@pytest.fixture
def target() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def root_of(space: Subspace) -> Subspace:
    return space
