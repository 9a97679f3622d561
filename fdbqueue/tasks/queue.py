"""TaskQueue: tasks with leases. docs/tasks.md shows the life cycle on one page.

Given a *transaction*, a call composes: it happens if and only if that transaction commits. An ack in the
transaction of the work's own writes makes the effect exactly-once. Given a *database*, a call is retried
until it has happened exactly once (calls/once.py), and it may wait. Puts, takes and acks of several threads
share transactions (calls/combine.py, acks.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fdbqueue import tasks as late
from fdbqueue.core.calls.asides import KeepsAside
from fdbqueue.core.handle import Grant
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.creating import asked_for, created, opened_or_created
from fdbqueue.tasks.looks import Looks
from fdbqueue.tasks.managing import Managing
from fdbqueue.tasks.putting import Putting
from fdbqueue.tasks.records.keys import id_bytes
from fdbqueue.tasks.results import forget_one
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.taking import Taking


class TaskProducer(Grant, Putting):
    """A handle that puts tasks, and does nothing else. `TaskQueue.producer` makes it."""

    __slots__ = ()


class TaskConsumer(Grant, Taking):
    """A handle that takes tasks and ends their leases. `TaskQueue.consumer` makes it."""

    __slots__ = ()


class TaskQueue(Looks, Managing, Taking, Putting, KeepsAside):
    """A named queue of tasks. A value: threads may share it.

    Every method takes a database or a transaction first, ours or the binding's. Verbs on a task take a Task
    or its id. A Task acts under the lease it was taken with, an id in the name of `session`, by default this
    process's own.
    Raises: NotADatabase for any other first argument; QueueDropped after the queue was dropped.
    """

    __slots__ = ()

    @classmethod
    def create(
        cls,
        db: DatabaseOrTransaction,
        name: str,
        kind: str | None = None,
        *,
        ttl: float | None = None,
        ttr: float | None = None,
        pri: int | None = None,
        capacity: int | None = None,
        key_concurrency: int | None = None,
        weights: Mapping[Any, int] | None = None,
        codec: str | None = None,
        type: Any = None,
        if_not_exists: bool | Literal["any"] = False,
        temporary: bool = False,
        retain_s: float | None = None,
        partitions: int | None = None,
        limits: Iterable[str] | None = None,
        task_limits: Iterable[str] | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue; without a `kind`, of the first one with the options given: fifottl for a `ttr`.

        `ttl`, `ttr` (seconds, by default for ever) and `pri` (0) are the defaults of its tasks.
        `key_concurrency`: number of tasks of a task key that may be taken at a time, 1 by default. `weights`:
        quotas of task keys in each round, 1 for all others. `codec`: "json" (the default), "bytes",
        "msgpack", or a name given to `register_codec`. `type`: type of the data of this handle, None for the
        codec's own types; it is not stored. `retain_s`: time for which ended tasks are kept (`ended_tasks`),
        without their data; None keeps none. `partitions`: number of parts, 1 by default, that share the load
        of the queue (docs/partitions.md). `limits`: names of limits under which all tasks are taken;
        `task_limits`: of others, which tasks may name (docs/limits.md).

        With `if_not_exists`, a queue of this name is opened. Its kind and options must be those that are
        given here; all that is None may differ. With "any", kind and options may be any.

        `temporary`: the tasks belong to this process's session and go with it. With `if_not_exists`, a
        temporary queue of a session that has ended is replaced. Given a transaction, a session counts as
        alive until a process has ended it.
        Reads: as Registry.create.
        Writes: as Registry.create.
        Raises: QueueExists, also with `if_not_exists` for other options, and for a temporary queue of another
        live session; UnknownKind, UnsupportedOption, UnknownCodec, InvalidArgument, SubspaceInUse,
        LimitNotFound, LimitUnreadable.
        """
        registry = Registry(root)
        of_tasks = {"ttl": ttl, "ttr": ttr, "pri": pri, "codec": codec, "retain_s": retain_s}
        of_keys = {"key_concurrency": key_concurrency, "weights": weights, "partitions": partitions}
        bounds = {"capacity": capacity, "limits": limits, "task_limits": task_limits}
        asked = asked_for(name, kind, {**of_tasks, **of_keys, **bounds}, temporary, if_not_exists)
        # All that a handle refuses: afterwards the queue would be there.
        shape_of(registry, Definition(asked.name, 0, asked.kind, asked.settings.to_options()), type)
        create = opened_or_created if if_not_exists else created
        return cls(db, registry, create(db, registry, asked), type)

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
        return self._once(tr, "cancel", lambda change: late.excusing.cancel(change, id_), task)

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
