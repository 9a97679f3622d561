"""A directory of data as a release leaves it: `python -m tests.releases.frozen FILE` packs it.

FILE is tests/releases/RELEASE.tar.xz. It is made once, at the tag of a release whose layout is new, and never
changed. Each later release has to go on with it: the queues of all kinds, tasks in each state, and leases of
a worker that has died.
"""

import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import (
    Database,
    ElementQueue,
    Failure,
    FairQueue,
    Group,
    Limit,
    PersistentQueue,
    Queue,
    Schedule,
    Session,
    Subspace,
    TaskQueue,
)

KINDS: dict[str, dict[str, Any]] = {
    "fifo": {"retain_s": 600},
    "fifottl": {"limits": ["slots"], "task_limits": ["rate"]},
    "limfifottl": {"capacity": 100},
    "utube": {},
    "utubettl": {"partitions": 2},
    "fair": {"weights": {"a": 3}},
    "bag": {"codec": "msgpack"},
}
KEYED = ("utube", "utubettl", "fair")
LATER_S = 50 * 365 * 86_400
"""The delay of a task that is still delayed when a later release opens the directory."""

LARGE = "x" * 150_000
READY = ["first", "second", LARGE, "held"]
"""The data of the tasks that a later release can take, in their order of puts."""

ITEMS = ["one", {"two": 2}, LARGE]


def key_of(item: Any) -> str:
    """The key of an item in the fair queue."""
    return str(item)[:3]


def fill(db: Database) -> None:
    Limit.set(db, "slots", slots=3)
    Limit.set(db, "rate", rate=1_000, per=1, per_key=True)
    # The archive is packed before it is closed: to each later release, its process has died.
    session = Session(db, ttr=1)
    for kind, options in KINDS.items():
        _fill_tasks(db, TaskQueue.create(db, kind, kind, **options), session)
    group = Group.create(db, then=(TaskQueue.open(db, "fifo"), "then"))
    TaskQueue.open(db, "limfifottl").put(db, "member", group=group)
    Schedule.create(db, "never", every=LATER_S, queue="fifo", data="tick")
    _fill_items(db)


def _fill_tasks(db: Database, queue: TaskQueue, session: Session) -> None:
    kind = queue.name
    key: dict[str, Any] = {"key": "a"} if kind in KEYED else {}
    queue.put(db, "done", **key)
    queue.ack(db, _taken(db, queue, session))
    queue.put(db, "buried", headers={"why": "to see"}, **key)
    queue.bury(db, _taken(db, queue, session), failure=Failure("Odd", "it is odd"))
    queue.put(db, "held", **key)
    _taken(db, queue, session)  # its worker has died
    for number, data in enumerate(READY[:3]):
        own: dict[str, Any] = {"key": f"k{number}"} if kind in KEYED else {}
        queue.put(db, data, unique=f"{kind}{number}", **own)
    if kind != "fifo" and kind != "utube":
        queue.put(db, "later", delay=LATER_S, **key)


def _taken(db: Database, queue: TaskQueue, session: Session) -> fdbqueue.Task:
    task = queue.take(db, 0, session=session)
    assert task is not None
    return task


def _fill_items(db: Database) -> None:
    queues: list[Callable[[Any], object]] = [
        lambda item: Queue.named(db, "items").enqueue(db, item),
        lambda item: Queue.named(db, "partitions", partitions=2).enqueue(db, item),
        lambda item: FairQueue(Subspace(("frozen", "fair")), key=key_of).put(db, item),
    ]
    for put in queues:
        for item in ITEMS:
            put(item)
    with PersistentQueue(db, "persistent") as persistent:
        for item in ITEMS:
            persistent.put(item)
    elements = ElementQueue.named(db, "elements", {"body": "string", "header": "table?"})
    elements.add(db, {"body": "hello", "header": {"to": "ada"}})


def main(archive: str) -> None:
    with tempfile.TemporaryDirectory() as folder, fdbqueue.open(f"embedded:{folder}/data") as db:
        fill(db)
        # Before the database is closed, as a process leaves it that is killed.
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(Path(folder) / "data", "data")


if __name__ == "__main__":
    main(sys.argv[1])
