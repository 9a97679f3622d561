"""TaskQueue: tasks with leases. docs/tasks.md shows the life cycle on one page.

Given a *transaction*, a call composes: it happens if and only if that transaction commits. An ack in the
transaction of the work's own writes makes the effect exactly-once. Given a *database*, a call is retried
until it has happened exactly once (calls/once.py), and it may wait. Puts, takes and acks of several threads
share transactions (calls/combine.py, acks.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fdbqueue.calls.asides import KeepsAside
from fdbqueue.limiting.names import checked_limits, require_limits
from fdbqueue.partitions.plan import checked_partitions, first_plan
from fdbqueue.records.keys import id_bytes
from fdbqueue.registry.definition import Definition
from fdbqueue.registry.registry import Registry, checked_name
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import DatabaseOrTransaction
from fdbqueue.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.cancelling import cancel
from fdbqueue.tasks.creating import created, opened_or_created, owned, usable
from fdbqueue.tasks.grants import TaskConsumer, TaskProducer
from fdbqueue.tasks.kinds import (
    Settings,
    kind_named,
    packed_weights,
    settings_for,
)
from fdbqueue.tasks.looks import Looks
from fdbqueue.tasks.managing import Managing
from fdbqueue.tasks.putting import Putting
from fdbqueue.tasks.results import forget_one
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.taking import Taking


class TaskQueue(Looks, Managing, Taking, Putting, KeepsAside):
    """A named queue of tasks. A value: threads may share it.

    Every method takes a database or a transaction first, ours or the binding's. Verbs on a task take a Task
    or its id. A Task acts under the lease it was taken with, an id in the name of `session`, by default this
    process's own.
    Raises: NotADatabase for any other first argument; QueueDropped after the queue was dropped.
    """

    @classmethod
    def create(
        cls,
        db: DatabaseOrTransaction,
        name: str,
        kind: str = "fifo",
        *,
        ttl: float | None = None,
        ttr: float | None = None,
        pri: int = 0,
        capacity: int | None = None,
        key_concurrency: int = 1,
        weights: Mapping[Any, int] | None = None,
        codec: str = "json",
        type: Any = None,
        if_not_exists: bool = False,
        temporary: bool = False,
        retain_s: float | None = None,
        partitions: int = 1,
        limits: Iterable[str] | None = None,
        task_limits: Iterable[str] | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue.

        `ttl`, `ttr` (seconds, None for ever) and `pri` are the defaults of its tasks. `key_concurrency`:
        number of tasks of a task key that may be taken at a time. `weights`: quotas of task keys in each
        round, 1 for all others. `codec`: "json", "bytes", "msgpack", or a name given to `register_codec`.
        `type`: type of the data of this handle, None for the codec's own types; it is not stored.

        `retain_s`: time for which ended tasks are kept, without their data, for `ended_task` and
        `ended_tasks`; of each partition at most limits.RETAINED_MAX, the latest. None keeps none.
        `partitions`: number of partitions, at most limits.PARTITIONS_MAX, that share the load of the queue
        (docs/partitions.md). Tasks of one task key are in one of them; the order of others holds within one.
        `limits`: names of limits under which all tasks are taken; `task_limits`: of others, which tasks may
        name (docs/limits.md).

        `temporary`: the tasks belong to this process's session and go with it. With `if_not_exists`, a queue
        of this name is opened, whatever its kind and options. But a temporary queue of a session that has
        ended is replaced. Given a transaction, a session counts as alive until a process has ended it.
        Reads: as Registry.create.
        Writes: as Registry.create.
        Raises: QueueExists, also with `if_not_exists` for a temporary queue of another live session;
        UnknownKind, UnsupportedOption, UnknownCodec, InvalidArgument, SubspaceInUse, LimitNotFound,
        LimitUnreadable.
        """
        registry = Registry(root)
        packed, plan = packed_weights(weights), first_plan(checked_partitions(partitions))
        named, spans = checked_limits(limits, task_limits), (ttl, ttr, pri, capacity, key_concurrency)
        given = Settings(*spans, packed, codec, None, retain_s, plan, *named)
        known = kind_named(kind)
        settings = settings_for(known, given)
        # All that a handle refuses: afterwards the queue would be there.
        shape_of(registry, Definition(checked_name(name), 0, known.name, settings.to_options()), type)
        if if_not_exists and (there := usable(db, registry, name)) is not None:
            return cls(db, registry, there, type)
        require_limits(db, root, [*named[0], *named[1]])
        if temporary:
            settings = owned(db, registry, settings)
        create = opened_or_created if if_not_exists else created
        return cls(db, registry, create(db, registry, name, known.name, settings), type)

    @classmethod
    def open(
        cls, db: DatabaseOrTransaction, name: str, *, type: Any = None, root: Any = DEFAULT_ROOT
    ) -> "TaskQueue":
        """The queue of that name, with data of that `type`.

        If this process has not registered the codec of the queue, puts, takes and reads of data raise
        UnknownCodec, and change nothing.
        Reads: the definition.
        Raises: QueueNotFound, UnknownKind, InvalidArgument for the type.
        """
        registry = Registry(root)
        return cls(db, registry, registry.find(db, name), type)

    # Verbs of every session.

    def cancel(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """End the task, whatever its state. A taken one is marked, and ends with its lease.

        The handler of a worker learns of it at the next heartbeat (`HeldTask.cancelled`), other holders from
        `renew`, `touch` and `peek`. After the mark, an ack still counts as an ack. Any other end of the lease
        ends the task as cancelled: `release`, `bury`, the end of its time, the death of its holder. No
        attempt begins after this call.
        Reads: the task.
        Writes: clears the task; of a taken task, the mark.
        Conflicts: a change of the task.
        Raises: TaskNotFound.
        """
        id_ = id_bytes(task.id if isinstance(task, Task) else task)
        return self._once(tr, "cancel", lambda change: cancel(change, id_), task)

    def delete(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """Remove the task.

        Reads: the task.
        Writes: clears the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound; NotTaken for a Task under a lease that is over.
        """
        target = self._target(tr, task, None)
        return self._end(tr, task, "delete", lambda change: verbs.delete(change, target))

    def forget_result(self, tr: DatabaseOrTransaction, task: Task | str) -> bool:
        """Remove the stored result of a task before its `result_ttl` is over. False if there is none.

        A task that has not ended keeps its `result_ttl`: its end stores a result.
        Reads: the end of the task.
        Writes: clears it, and the result.
        Conflicts: the end of the task; the end of its result.
        Raises: InvalidArgument.
        Round trips: 1.
        """
        id_ = id_bytes(task.id if isinstance(task, Task) else task)
        return self._once(tr, "forget_result", lambda change: forget_one(change, id_))

    # Halves of the queue.

    def producer(self) -> TaskProducer:
        """A handle that only puts: `put` and `put_many`."""
        return TaskProducer._half_of(self)

    def consumer(self) -> TaskConsumer:
        """A handle that only takes, and ends the leases of its tasks."""
        return TaskConsumer._half_of(self)
