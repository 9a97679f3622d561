"""A database with an example of everything; its contents can be compared and restored."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import FdbQueueError, Subspace
from fdbqueue.core import codec
from fdbqueue.core.root_keys import BEAT_DUE, DEFAULT_ROOT, HEARTBEAT, RECEIPT
from fdbqueue.tasks import options

SCHEMA = {"body": "string", "header": "table?", "blob": "binary?"}
KEYED = ("fair", "utubettl")
_ASIDE = tuple(DEFAULT_ROOT[column].key() for column in (RECEIPT, HEARTBEAT, BEAT_DUE))
_REGISTERED: tuple[dict[str, Any], ...] = (options._kinds, codec._registered)

Image = dict[bytes, bytes]


class World:
    """Everything that a call can be made on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"embedded:{folder}/shared"
        with fdbqueue.open(self.url) as shared:
            fdbqueue.TaskQueue.create(shared, "fair", "fair")
        self.db = db = fdbqueue.open("memory:", session_ttr_s=math.inf)
        self.other_db = fdbqueue.open("memory:", session_ttr_s=math.inf)
        self.closed_db = fdbqueue.open("memory:")
        self.closed_db.close()
        self.session = fdbqueue.Session(db)
        self.spare = fdbqueue.Session(db)
        self.other_session = fdbqueue.Session(self.other_db)
        self.ended_session = fdbqueue.Session(db)
        self.ended_session.end()
        for limit in ("api", "spare limit"):
            fdbqueue.Limit.set(db, limit, slots=5)
        fdbqueue.Limit.set(db, "tenants", slots=5, per_key=True)
        self.handed: dict[str, fdbqueue.Task] = {}
        self.tasks = {kind: self._tasks(kind) for kind in ("fair", "utubettl", "limfifottl", "bag", "fifo")}
        self.held = {kind: queue.take(db, 0) for kind, queue in self.tasks.items()}
        self.letters = fdbqueue.DeadLetters.open(db, "fair")
        self.buried = self.letters.tasks(db, 1)[0].task
        self.letters.begin_redrive(db, rate_per_s=1_000)
        for kind, task in self.held.items():  # no wait for its progress lasts
            self.tasks[kind].progress(db, task, 0.25)
        self.schedule = fdbqueue.Schedule.create(db, "nightly", every=86_400, queue="fair")
        self.group = fdbqueue.Group.create(db)
        self.ended_group = fdbqueue.Group.create(db)
        self.ended_group.close(db)
        self.ended_group.wait(db, 60)
        self.plain = fdbqueue.Queue.named(db, "plain")
        self.plain.enqueue_many(db, [1, 2, 3])
        self.fair = fdbqueue.FairQueue(Subspace(("fuzz", "fair")), key=lambda item: item)
        for item in (1, 2, "a"):
            self.fair.put(db, item)
        self.pieces = fdbqueue.ElementQueue.named(db, "pieces", SCHEMA)
        self.simple = fdbqueue.SimpleElementQueue.named(db, "simple")
        self.names = [self.simple.add(db, b"x") for _ in range(3)]
        self.piece_names = [self.pieces.add(db, {"body": "x"}) for _ in range(3)]
        self.lock = self.simple.acquire(db, self.names[0])
        self.piece_lock = self.pieces.acquire(db, self.piece_names[0])
        fdbqueue.PersistentQueue(db, "persistent").close()
        self._open_persistent()
        self.other_simple = fdbqueue.SimpleElementQueue.named(db, "other simple")
        self.cancelled = self.db.create_transaction()
        self.cancelled.cancel()
        self._registered = [dict(registered) for registered in _REGISTERED]
        self.image = self.look()

    def _tasks(self, kind: str) -> fdbqueue.TaskQueue:
        options: dict[str, Any] = {"capacity": 1000} if kind == "limfifottl" else {}
        if kind == "bag":
            options["limits"] = ["api"]
        queue = fdbqueue.TaskQueue.create(self.db, kind, kind, retain_s=1_000, **options)
        for number in range(4):
            queue.put(self.db, number, key=number if kind in KEYED else None)
        if kind != "fifo":
            queue.put(self.db, "later", delay=10_000, key="k" if kind in KEYED else None)
        task, handed = queue.take_many(self.db, 2)
        queue.bury(self.db, task)
        self.handed[kind] = queue.hand_off(self.db, handed, 10_000)
        return queue

    def _open_persistent(self) -> None:
        """A persistent queue and a proxy of it, each with an item that is not acked."""
        if hasattr(self, "persistent"):
            self.persistent.close()
        tasks = fdbqueue.TaskQueue.open(self.db, "persistent")
        tasks.truncate(self.db)
        self.persistent = fdbqueue.PersistentQueue(self.db, "persistent")
        for item in (1, 2, 3, 4):
            self.persistent.put(item)
        self.persistent_item = self.persistent.get(timeout=0)
        self.proxy = self.persistent.connect()
        self.fetched = self.proxy.get(timeout=0)
        self.image = self.look()

    def file(self) -> Path:
        path = self.folder / "file"
        path.write_bytes(b"x")
        return path

    def refresh(self) -> None:
        """Make anew whatever a call has ended or spoilt in this process."""
        self.proxy.maxsize = self.persistent.maxsize = 0
        for registered, before in zip(_REGISTERED, self._registered, strict=True):
            registered.clear()
            registered.update(before)
        for queue in self.tasks.values():
            queue.on_task_change(None)
        if [_unacked(kept) for kept in (self.persistent, self.proxy)] != [[1], [2]]:
            self._open_persistent()
        for name in ("spare", "session"):
            if getattr(self, name).lost:
                setattr(self, name, fdbqueue.Session(self.db))
                self.image = self.look()

    def forget(self, result: Any) -> None:
        """Close the objects that a call has opened."""
        if isinstance(result, fdbqueue.Database) and result.engine is not self.db.engine:
            if result not in (self.other_db, self.closed_db):
                result.close()
        elif isinstance(result, fdbqueue.Session) and result is not self.session:
            result.end()
        elif isinstance(result, fdbqueue.Proxy):
            result.close()

    def look(self) -> Image:
        return look(self.db)

    def restore(self, wanted: Image) -> None:
        restore(self.db, wanted)

    def close(self) -> None:
        self.db.close()
        self.other_db.close()


def look(db: fdbqueue.Database) -> Image:
    """All that is stored, but for heartbeats and receipts."""
    found = db.get_range(b"", b"\xff")
    return {entry.key: entry.value for entry in found if not entry.key.startswith(_ASIDE)}


def restore(db: fdbqueue.Database, wanted: Image) -> None:
    there = look(db)

    @fdbqueue.transactional
    def write(tr: Any) -> None:
        for key in there.keys() - wanted.keys():
            tr.clear(key)
        for key, value in wanted.items():
            if there.get(key) != value:
                tr.set(key, value)

    write(db)


def _unacked(kept: fdbqueue.Proxy) -> list[Any]:
    try:
        return kept.unacked
    except FdbQueueError:  # a call has closed it
        return []


HOSTILE_HERE: dict[str, Callable[[World], Any]] = {
    "closed database": lambda world: world.closed_db,
    "another database": lambda world: world.other_db,
    "the database": lambda world: world.db,
    "the engine": lambda world: world.db.engine,
    "snapshot": lambda world: world.db.create_transaction().snapshot,
    "transaction": lambda world: world.db.create_transaction(),
    "cancelled transaction": lambda world: world.cancelled,
    "subspace": lambda _: Subspace(("x",)),
    "long subspace": lambda _: Subspace(("x" * 20_000,)),
    "session": lambda world: world.session,
    "ended session": lambda world: world.ended_session,
    "another's session": lambda world: world.other_session,
    "a queue": lambda world: world.tasks["fair"],
    "another queue's task": lambda world: world.held["fifo"],
    "hooks": lambda _: fdbqueue.Hooks(),
}
