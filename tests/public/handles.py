"""One object of each public class that stands for something in a database, blocking and awaited."""

from collections.abc import Iterator, Mapping
from typing import Any

import fdbqueue
from fdbqueue import aio
from fdbqueue.aio.hub import Hub

SPACE = fdbqueue.Subspace(("handles",))


def blocking_handles(db: fdbqueue.Database) -> Mapping[str, Any]:
    """Handles by the names of their classes. The queue `q` is of kind fifottl."""
    return {type(one).__name__: one for one in _made(db)}


def _made(db: fdbqueue.Database) -> Iterator[Any]:
    tasks = fdbqueue.TaskQueue.create(db, "q", "fifottl")
    plain, fair = fdbqueue.Queue.named(db, "plain"), fdbqueue.FairQueue(SPACE["fair"], key=str)
    kept = fdbqueue.PersistentQueue(db, "kept")
    elements = fdbqueue.SimpleElementQueue(SPACE["simple"])
    yield from (db, tasks, tasks.producer(), tasks.consumer(), fdbqueue.DeadLetters.open(db, "q"))
    yield from (plain, plain.producer(), plain.consumer(), fair, fair.producer(), fair.consumer())
    yield from (fdbqueue.QueueBy(db, fair), kept, kept.connect(), elements, fdbqueue.QueueSet(elements))
    yield from (fdbqueue.ElementQueue(SPACE["elements"], {"a": "string"}), fdbqueue.NullQueue())
    yield from (fdbqueue.Session(db, "s"), fdbqueue.Schedule.create(db, "s", every=60, queue="q"))
    yield from (fdbqueue.Worker(db, "q", print), fdbqueue.Overview())


def awaited_handles(db: aio.Database) -> Mapping[str, Any]:
    """Faces over blocking handles, by the names of their classes."""
    hub: Hub = db.hub
    found = blocking_handles(db.blocking)
    faces = {name: getattr(aio, name) for name in found if hasattr(aio, name) and name != "Worker"}
    return {name: face.over(found[name], hub) for name, face in faces.items()} | {"Database": db}
