"""Queues of every kind with tasks in every state, and the keys that a corruption changes."""

from dataclasses import dataclass
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import (
    Database,
    Failure,
    FairQueue,
    Queue,
    Session,
    SimpleElementQueue,
    TaskQueue,
    Verification,
    verify,
)
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.key_counts import KeyCounts
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_bytes, record_of

LARGE = "x" * 100_000
KEY = key_bytes("key")


@dataclass
class Place:
    """A root with one queue of tasks, one plain queue, one of elements and one fair queue."""

    db: Database
    root: Subspace
    tasks: TaskQueue
    session: Session

    @property
    def keys(self) -> TaskKeys:
        return TaskKeys(self.tasks.contents)

    @property
    def shared(self) -> SharedKeys:
        return SharedKeys(self.tasks.contents)

    @property
    def root_keys(self) -> RootKeys:
        return RootKeys(self.root)

    @property
    def line(self) -> LineKeys:
        return LineKeys(self.keys.line)

    @property
    def counts(self) -> KeyCounts:
        return KeyCounts(self.keys.beside)

    @property
    def plain(self) -> Queue:
        return Queue(self.root["plain"], root=self.root)

    @property
    def plain_keys(self) -> QueueKeys:
        return QueueKeys(self.root["plain"])

    @property
    def fair(self) -> FairQueue:
        return FairQueue(self.root["fair"], key=lambda item: item[:1], root=self.root)

    @property
    def elements(self) -> SimpleElementQueue:
        return SimpleElementQueue.named(self.db, "elements", root=self.root)

    @property
    def element_keys(self) -> ElementKeys:
        return self.elements.store.keys

    def record(self, state: TaskState, large: bool = False) -> Record:
        """The first task in this state; with `large`, the one with a large payload."""
        rows = self.db.get_range(self.keys.tasks.start, self.keys.tasks.stop)
        found = (record_of(row.value) for row in rows)
        return next(one for one in found if one.state == state and (one.size_bytes > 10_000) == large)

    def entry(self, record: Record) -> bytes:
        """The key of the state of a task."""
        return {
            TaskState.READY: lambda: self.tasks._shape.discipline.filed(record),
            TaskState.TAKEN: lambda: self.keys.taken_by(record.session, record.id),
            TaskState.DELAYED: lambda: self.keys.delayed_at(record.id),
            TaskState.BURIED: lambda: self.keys.buried_at(self.tasks._shape.discipline.place(record)),
        }[TaskState(record.state)]()

    def verify(self, mend: bool = False) -> Verification:
        return verify(self.db, root=self.root, mend=mend)


def place(db: Database, root: Subspace, kind: str = "fifottl") -> Place:
    tasks = TaskQueue.create(db, "tasks", kind, root=root, retain_s=600)
    session = Session(db, ttr=600, root=root)
    keyed: dict[str, Any] = {"key": "key"} if kind in ("utubettl", "fair") else {}
    for result_ttl, result in ((500, "small"), (600, LARGE)):
        tasks.put(db, "done", result_ttl=result_ttl, **keyed)
        tasks.ack(db, tasks.take(db, 0, session=session), result=result)
    for data in ("buried", "failed", "held", LARGE, "ready", "last"):
        tasks.put(db, data, ttl=1_000, **keyed)
    tasks.put(db, "later", delay=900, **keyed)
    tasks.bury(db, tasks.take(db, 0, session=session), failure=Failure("Odd", "it is odd"))
    tasks.release(db, tasks.take(db, 0, session=session), delay=800)
    tasks.take(db, 0, session=session)
    tasks.delete(db, tasks.put(db, "ended", **keyed).id)
    SimpleElementQueue.named(db, "elements", root=root)
    return Place(db, root, tasks, session)


def missing_id() -> bytes:
    """The id of a task that never was."""
    return id_bytes("0" * 31 + "1")
