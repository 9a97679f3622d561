"""TaskQueue: tasks with leases. docs/tasks.md shows the life cycle on one page.

Given a *transaction*, a call composes: it happens if and only if that transaction commits. An ack in the
transaction of the work's own writes makes the effect exactly-once. Given a *database*, a call is retried
until it has happened exactly once (core/once.py), and it may wait. Puts, takes and acks of several threads
share transactions (core/calls.py, tasks/calls.py).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_function, checked_whole
from fdbqueue.core.database import Grant, at_pace, is_transaction, run
from fdbqueue.core.partitions import checked_partitions
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.tasks import verbs
from fdbqueue.tasks.creating import asked_for, created, opened_or_created
from fdbqueue.tasks.handle import Putting, Taking
from fdbqueue.tasks.looks import Looks
from fdbqueue.tasks.options import Backoff, delay_us
from fdbqueue.tasks.results import encoder, forget_one
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.records import id_of

if TYPE_CHECKING:
    from fdbqueue.core.partitions import Repartition
    from fdbqueue.tasks.altering import Alteration
    from fdbqueue.tasks.selected import ChangedTasks


class Leaving(Taking):
    """The verbs of a consumer that leave a task to something else than a process."""

    __slots__ = ()

    def detach(
        self,
        tr: DatabaseOrTransaction,
        task: Task,
        ttr: float | None = None,
        *,
        process_id: int | None = None,
    ) -> str:
        """Lease a held task for `ttr` seconds from now to no process, and return the text of the lease.

        Whichever process has the text acts under the lease, by `leased`; a second call lengthens it. When its
        time is over, the task comes back, as from a dead worker. Without `ttr`, it is the ttr of the task, or
        limits.DETACHED_TTR_S if it has none. `process_id`: of the process that `holder` tells; this one.
        Reads: the task, the heartbeat of its session.
        Writes: the task, its session.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        held = late.detached.detached(self, tr, task, ttr, process_id)
        return late.detached.text_of(held.id, held.token)

    def leased(self, tr: DatabaseOrTransaction, token: str) -> Task:
        """The task under the lease that `detach` has returned as a text.

        Reads: the task, serialisably.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over, or belongs to another queue; InvalidArgument.
        """
        target = late.detached.target_in(token)
        return self._see(tr, partial(late.detached.leased, target=target), target.id)

    def hand_off(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        ttl: float,
        *,
        for_: str | None = None,
        session: AnySession | None = None,
    ) -> Task:
        """Let a held task wait up to `ttl` seconds for `complete` or `fail`, which any process may call.

        It stays taken, and keeps its task key, limits, groups and unique key. Its lease belongs to no
        session: an ack by the old one raises NotTaken. Without a call in time, the attempt has failed, and
        the task is ready again. `for_`: a text for people, at most limits.HANDED_TO_BYTES_MAX bytes, which
        `explain` tells. A task that was cancelled meanwhile ends.
        Reads: the task.
        Writes: the task; its holders in limits.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        Round trips: 1.
        """
        handed, target = late.handing.checked_handed(ttl, for_), self._target(tr, task, session)
        return self._end(tr, "hand_off", lambda change: late.handing.hand_off(change, target, handed), task)


class TaskProducer(Grant, Putting):
    """A handle that puts tasks, and does nothing else. `TaskQueue.producer` makes it."""

    __slots__ = ()


class TaskConsumer(Grant, Leaving):
    """A handle that takes tasks and ends their leases. `TaskQueue.consumer` makes it."""

    __slots__ = ()


class TaskQueue(Looks, Leaving, Putting, KeepsAside):
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
        charge: Literal["cost", "time"] | None = None,
        codec: str | None = None,
        type: Any = None,
        if_not_exists: bool | Literal["any"] = False,
        temporary: bool = False,
        retain_s: float | None = None,
        chronicle: bool | None = None,
        partitions: int | None = None,
        limits: Iterable[str] | None = None,
        task_limits: Iterable[str] | None = None,
        attempts: float | None = None,
        backoff: Backoff | None = None,
        result_ttl: float | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue; without a `kind`, of the first one with the options given: fifottl for a `ttr`.

        `ttl`, `ttr` (seconds, else for ever) and `pri` (0) are defaults of its tasks. `key_concurrency`:
        taken tasks of a key at a time, 1 by default. `weights`: quotas of keys in each round, 1 for others.
        `charge`: a task costs its "cost" (the default) or its run "time". `codec`: "json" (the default),
        "bytes", "msgpack", or a name given to `register_codec`. `type`: that of data of this handle, None for
        the codec's own; it is not stored. `retain_s`: time for which ended tasks are kept, without data.
        `chronicle`: keep its figures (docs/metrics.md). `partitions`: number of parts, 1 by default
        (docs/partitions.md). `limits`: names of limits of all tasks; `task_limits`: of those that tasks may
        name (docs/limits.md). `attempts`: failures that bury a task, inf for none; `backoff`: pauses after
        the others. Both go before those of workers. `result_ttl`: that of puts without one.

        With `if_not_exists`, a queue of this name is opened. Its kind and options must be those that are
        given here; all that is None may differ. With "any", kind and options may be any.

        `temporary`: the tasks belong to this process's session and go with it. With `if_not_exists`, that of
        an ended session is replaced. Given a transaction, a session is alive until a process has ended it.
        Reads: as Registry.create.
        Writes: as Registry.create.
        Raises: QueueExists, also with `if_not_exists` for other options, and for a temporary queue of another
        live session; UnknownKind, UnsupportedOption, UnknownCodec, InvalidArgument, SubspaceInUse,
        LimitNotFound, LimitUnreadable.
        """
        registry = Registry(root)
        of_tasks = {"ttl": ttl, "ttr": ttr, "pri": pri, "codec": codec, "retain_s": retain_s}
        of_keys = {"key_concurrency": key_concurrency, "weights": weights, "partitions": partitions}
        bounds = {"capacity": capacity, "limits": limits, "task_limits": task_limits, "charge": charge}
        again = {"attempts": attempts, "backoff": backoff, "result_ttl": result_ttl, "chronicle": chronicle}
        asked = asked_for(name, kind, {**of_tasks, **of_keys, **bounds, **again}, temporary, if_not_exists)
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
        """End the task, whatever its state. A taken one is marked, and ends with its lease, unless it was
        handed off.

        The handler of a worker learns of it at the next heartbeat (`HeldTask.cancelled`), other holders from
        `renew`, `touch` and `peek`. After the mark, an ack still counts as an ack. Any other end of the lease
        ends the task as cancelled: `release`, `bury`, the end of its time, the death of its holder. No
        attempt begins after this call.
        Reads: the task.
        Writes: clears the task; of a taken task, the mark.
        Conflicts: a change of the task.
        Raises: TaskNotFound.
        """
        id_ = id_of(task)
        return self._once(tr, "cancel", lambda change: verbs.cancel(change, id_), task)

    def complete(self, tr: DatabaseOrTransaction, task: Task | str, result: Any = None) -> Task:
        """Ack a task that was handed off, from any process: this is the end of its work. `result` is as in
        `ack`.

        Reads: the task.
        Writes: clears the task; its result.
        Conflicts: a change of the task.
        Raises: NotHandedOff for any other task, also when its time is over; TaskNotFound; PayloadTooLarge, or
        TypeError for a result that the codec cannot carry.
        Round trips: 1.
        """
        id_, encode = id_of(task), encoder(self._shape.result_codec, result)
        return self._once(tr, "complete", lambda change: late.handing.complete(change, id_, encode), task)

    def fail(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        reason: str | Failure,
        *,
        delay: float | None = None,
    ) -> Task:
        """Fail the attempt of a task that was handed off, from any process: `release` with a failure.

        Reads: the task.
        Writes: moves the task; the failure.
        Conflicts: a change of the task.
        Raises: NotHandedOff for any other task, also when its time is over; TaskNotFound, InvalidArgument.
        Round trips: 1.
        """
        id_, failure = id_of(task), late.handing.checked_reason(reason)
        later_us = None if delay is None else delay_us(delay)
        random = 0.0 if delay is not None else self._of(tr).runtime.random()
        body = partial(late.handing.fail, id_=id_, failure=failure, delay_us=later_us, random=random)
        return self._once(tr, "fail", body, task)

    def delete(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """Remove the task.

        Reads: the task.
        Writes: clears the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound; NotTaken for a Task under a lease that is over.
        """
        target = self._target(tr, task, None)
        return self._end(tr, "delete", lambda change: verbs.delete(change, target), task)

    def forget_result(self, tr: DatabaseOrTransaction, task: Task | str) -> bool:
        """Remove the stored result of a task before its `result_ttl` is over. False if there is none.

        A task that has not ended keeps its `result_ttl`: its end stores a result.
        Reads: the end of the task.
        Writes: clears it, and the result.
        Conflicts: the end of the task; the end of its result.
        Raises: InvalidArgument.
        Round trips: 1.
        """
        id_ = id_of(task)
        return self._once(tr, "forget_result", lambda change: forget_one(change, id_))

    # Verbs about many tasks, and about the queue itself.

    def kick(self, tr: DatabaseOrTransaction, count: int = 1) -> int:
        """Make the first `count` buried tasks ready again. Return their number. 0 changes nothing.

        Given a database, the call uses transactions of at most limits.VERB_BATCH tasks, and may stop between
        two.
        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH tasks.
        """
        checked_whole("count", count, 0)
        kicked = 0
        if is_transaction(tr) and count > limits.VERB_BATCH:
            self._see_all(tr, partial(verbs.require_few, under=attrgetter("buried")))
        while kicked < count:
            batch = min(count - kicked, limits.VERB_BATCH)
            body = partial(verbs.kick_in_all, count=batch)
            more, looked = self._once_in_all(tr, "kick", body, wrote=itemgetter(0))
            kicked += more
            if looked < batch:
                break
            tr = at_pace(tr, "background")
        return kicked

    def change(
        self,
        tr: DatabaseOrTransaction,
        where: Mapping[str, Any],
        set: Mapping[str, Any] | None = None,
        *,
        do: Literal["kick", "bury", "cancel", "delete"] | None = None,
        dry_run: bool = False,
        after: str | None = None,
        look: int | None = None,
        progress: "Callable[[ChangedTasks], object] | None" = None,
    ) -> "ChangedTasks":
        """Give waiting tasks new options, move them, or apply a verb to them: all that match each filter.

        Taken tasks are left alone. `where`: "state" (ready, delayed, buried), "key", "headers.NAME",
        "older_than" (seconds since the put), "class" (of failure), "data.PATH" (the value there in the data);
        {} is every waiting task. `set`: "pri", "delay", "limits" as of a put; or "queue", the name of another
        queue, where the tasks get new ids, and buried ones are ready. `do`: a verb in place of new options.

        Given a database, the call uses bounded transactions, and calls `progress` after each of them. A task
        changes once, or not at all if it is taken meanwhile. One that is put meanwhile may match or not. The
        call looks at up to `look` tasks: with a filter of data limits.SEARCHED_TASKS by default, else all.
        The `after` of the answer is that of the call that goes on. A `dry_run` changes nothing.
        Reads: the tasks by snapshot, with a filter of data their payloads; those that match serialisably.
        Writes: as the verbs about one task; into another queue, as a put.
        Conflicts: a change of the tasks that match.
        Raises: InvalidArgument, UnsupportedOption; QueueNotFound, QueueKindMismatch and QueueFull for the
        other queue. In a transaction, TooMuchForOneTransaction if more tasks remain than it may look at, or
        change.
        """
        selection = late.selected.selection_of(self._shape, where, set, do)
        so_far, most = late.selected.begin(after), late.selected.look_of(selection, look)
        told = None if progress is None else checked_function("progress", progress)
        return late.selected.changed(self, tr, selection, so_far, most, told, dry_run=dry_run)

    def release_all(self, tr: DatabaseOrTransaction) -> None:
        """Release every taken task, whatever its holder.

        Given a database, the call uses transactions of at most limits.VERB_BATCH tasks.
        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH tasks.
        """
        if is_transaction(tr):
            self._see_all(tr, partial(verbs.require_few, under=attrgetter("taken")))
        for _ in verbs.in_batches(partial(self.release_some, tr)):
            pass

    def release_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Release up to `count` taken tasks, at most limits.VERB_BATCH. Return their number.

        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        """
        few = min(checked_count("count", count), limits.VERB_BATCH)
        return self._once_in_all(tr, "release_all", partial(verbs.release_taken_in_all, count=few), bool)

    def truncate(self, tr: DatabaseOrTransaction) -> None:
        """Remove every task.

        Writes: one range clear. Given a database, gives back the slots of keys of limits; otherwise sweeps
        do.
        Conflicts: every call on a task of the queue.
        """
        tr = at_pace(tr, "background")
        self._once_in_all(tr, "truncate", verbs.truncate_in_all)
        verbs.free_keys(tr, self._shape)

    def truncate_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Remove the oldest `count` tasks, at most limits.VERB_BATCH. Return their number.

        The call is for millions of tasks, on an engine where a clear costs as much as it removes. Repeated
        until it returns 0, it is a `truncate` in bounded transactions.
        Reads: the tasks, by snapshot.
        Writes: clears the tasks.
        Conflicts: a change of the tasks.
        """
        few = min(checked_count("count", count), limits.VERB_BATCH)
        body = partial(verbs.remove_first_in_all, count=few)
        return self._once_in_all(at_pace(tr, "background"), "truncate", body, bool)

    def pause(self, tr: DatabaseOrTransaction) -> None:
        """Let no task be taken until `resume`: takes find nothing, or wait. Other verbs work as before.

        Writes: a flag that every take reads.
        Conflicts: takes.
        """
        self._once_in_all(tr, "pause", verbs.pause_in_all)

    def resume(self, tr: DatabaseOrTransaction) -> None:
        """Let tasks be taken again, and wake waiting takes.

        Writes: clears the flag.
        Conflicts: takes.
        """
        self._once_in_all(tr, "resume", verbs.resume_in_all)

    def repartition(self, tr: DatabaseOrTransaction, partitions: int) -> "Repartition":
        """Change the number of partitions, while the queue is used. Each task key stays in order.

        New tasks go to the new partitions at once. Those of a task key wait there until its ready and taken
        tasks in the old partition are gone. Partitions that close get nothing new, and are drained by takes.
        Any process that uses the queue finishes the change. Given a database, this call goes as far as it can
        without waiting; repeat it to go on. Given a transaction, it only begins, and a later call on the
        queue in that transaction raises RepartitionNotCommitted.
        Reads: the definition; task keys by snapshot.
        Writes: the definition.
        Conflicts: every call on the queue.
        Raises: RepartitionUnderWay for another number while a change is under way; InvalidArgument;
        UnsupportedOption for a kind with task keys that is not of this package.
        """
        return late.repartition.repartition(
            self._calls(tr).parts, tr, checked_partitions(partitions), self._of(tr).runtime.monotonic
        )

    def alter(
        self,
        /,
        tr: DatabaseOrTransaction,
        *,
        ttl: float | EllipsisType | None = ...,
        ttr: float | EllipsisType | None = ...,
        pri: int | EllipsisType | None = ...,
        capacity: int | EllipsisType | None = ...,
        key_concurrency: int | EllipsisType | None = ...,
        weights: Mapping[Any, int] | EllipsisType | None = ...,
        retain_s: float | EllipsisType | None = ...,
        chronicle: bool | EllipsisType | None = ...,
        attempts: float | EllipsisType | None = ...,
        backoff: Backoff | EllipsisType | None = ...,
        result_ttl: float | EllipsisType | None = ...,
        **lasting: Any,
    ) -> "Alteration":
        """Change these options of `create`, while the queue is used; None removes one. Return the change.

        Calls of all processes that begin later go by the new values, and calls under way are repeated. `ttl`,
        `ttr`, `pri` and `result_ttl` concern tasks that are put from then on. With a smaller `capacity` or
        `key_concurrency`, nothing is lost: puts find no room, and takes leave a key alone, until enough tasks
        have ended. A larger one lets them go on at once. `attempts` and `backoff` concern failures from then
        on. Without `retain_s`, the ended tasks go, and without `chronicle` its points. Any process that uses
        the queue finishes the change; this call does it, given a database. Given a transaction, a later call
        on the queue in that transaction raises AlterNotCommitted.
        Reads: the definition, the last changes; task keys by snapshot.
        Writes: the definition, the change.
        Conflicts: every call on the queue.
        Raises: InvalidArgument; UnsupportedOption for an option that the kind does not have, or that stays.
        """
        given = {"ttl": ttl, "ttr": ttr, "pri": pri, "capacity": capacity, "weights": weights, **lasting}
        given |= {"key_concurrency": key_concurrency, "retain_s": retain_s, "chronicle": chronicle}
        given |= {"attempts": attempts, "backoff": backoff, "result_ttl": result_ttl}
        wanted = {name: value for name, value in given.items() if value is not ...}
        asked, runtime = late.altering.checked(self._shape.kind, wanted), self._of(tr).runtime
        by = f"{runtime.host_name()}:{runtime.process_id()}"
        altered = self._once(tr, "alter", lambda change: late.altering.alter(change, asked, by))
        if not is_transaction(tr):
            altering, paced = late.altering.Altering(self._calls(tr).parts), at_pace(tr, "upkeep")
            while run(paced, altering.step):
                pass
        return altered

    def alterations(self, tr: DatabaseOrTransaction) -> "list[Alteration]":
        """The last changes of options, the latest first; at most limits.ALTERATIONS_MAX.

        Reads: one key, by snapshot.
        Conflicts: none.
        Round trips: 1.
        """
        return self._see(tr, late.altering.alterations)

    def busy(self, tr: DatabaseOrTransaction) -> str:
        """The reason why the queue cannot be dropped: a call waits for tasks, or a session holds one. Empty
        if there is none.

        Given a database, the call ends overdue sessions before it gives a reason. Given a transaction, the
        stored state decides: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably.
        Writes: removes dead requests and ends leases that are over, if a full batch has nothing else.
        Conflicts: a call that joins the line, a take.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH of these.
        """
        return late.creating.Dropping(self._calls(tr).parts, tr, self._of(tr)).busy()

    def drop(self, tr: DatabaseOrTransaction) -> None:
        """Remove the queue and everything in it.

        Given a database, the call ends overdue sessions before it refuses. Given a transaction, the stored
        state decides: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably.
        Writes: clears the definition and the contents; slots of keys as `truncate`.
        Conflicts: every call on the queue.
        Raises: QueueBusy if a call waits for tasks or a session holds one; in a transaction,
        TooMuchForOneTransaction if more than limits.VERB_BATCH requests are dead, or leases over and not
        swept.
        """
        tr = at_pace(tr, "background")
        dropping = late.creating.Dropping(self._calls(tr).parts, tr, self._of(tr))
        dropping.drop(partial(self._once_in_all, tr, "drop", dropping.attempt))

    # Halves of the queue.

    def producer(self) -> TaskProducer:
        """A handle that only puts: `put` and `put_many`."""
        return TaskProducer._half_of(self)

    def consumer(self) -> TaskConsumer:
        """A handle that only takes, and ends the leases of its tasks."""
        return TaskConsumer._half_of(self)
