"""TaskQueue: tasks with leases. docs/tasks.md shows the life cycle on one page.

Given a *transaction*, a call composes: it happens if and only if that transaction commits. An ack in the
transaction of the work's own writes makes the effect exactly-once. Given a *database*, a call is retried
until it has happened exactly once (calls/once.py), and it may wait. Puts, takes and acks of several threads
share transactions (calls/combine.py, acks.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fdbqueue import observing
from fdbqueue.arguments import (
    checked_batch,
    checked_batch_count,
    checked_instance,
    checked_items,
    checked_payload,
    checked_stop,
    checked_take_timeout,
    checked_wait,
    writable,
)
from fdbqueue.codec import encoded_each
from fdbqueue.database import Database, as_database, is_transaction
from fdbqueue.errors import (
    UnknownSession,
    UnsupportedOption,
)
from fdbqueue.partitions.plan import checked_partitions, first_plan
from fdbqueue.records.keys import id_bytes
from fdbqueue.registry.registry import Definition, Registry, checked_name
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnyDatabase, AnySession, DatabaseOrTransaction
from fdbqueue.sessions.own import own_session_of
from fdbqueue.sessions.session import Session
from fdbqueue.task import Failure, Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.attempts import Attempts
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.cancelling import cancel
from fdbqueue.tasks.creating import created, opened_or_created, owned, usable
from fdbqueue.tasks.handle import note_end
from fdbqueue.tasks.kinds import (
    Draft,
    Settings,
    delay_us,
    increment_us,
    kind_named,
    packed_weights,
    settings_for,
)
from fdbqueue.tasks.looks import Looks
from fdbqueue.tasks.managing import Managing
from fdbqueue.tasks.shape import shape_of


class TaskQueue(Looks, Managing, Attempts):
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
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue.

        `ttl`, `ttr` (seconds, None for ever) and `pri` are the defaults of its tasks. `key_concurrency`:
        number of tasks of a task key that may be taken at a time. `weights`: quotas of task keys in each
        round, 1 for all others. `codec`: "json", "bytes", "msgpack", or a name given to `register_codec`.
        `type`: type of the data that this handle puts and takes, None for the codec's own types; it is not
        stored.

        `retain_s`: time for which ended tasks are kept, without their data, for `ended_task` and
        `ended_tasks`; at most limits.RETAINED_MAX, the latest. None keeps none, and costs nothing.

        `partitions`: number of partitions, at most limits.PARTITIONS_MAX, that share the load of the queue
        (docs/partitions.md). Tasks of one task key are in one of them; the order of others holds within one.

        `temporary`: the tasks belong to this process's session and go with it. With `if_not_exists`, a queue
        of this name is opened, whatever its kind and options. But a temporary queue of a session that has
        ended is replaced by a new one. Given a transaction, a session counts as alive until a process has
        ended it.
        Reads: as Registry.create.
        Writes: as Registry.create.
        Raises: QueueExists, also with `if_not_exists` for a temporary queue of another live session;
        UnknownKind, UnsupportedOption, UnknownCodec, InvalidArgument, SubspaceInUse.
        """
        registry = Registry(root)
        packed = packed_weights(weights)
        plan = first_plan(checked_partitions(partitions))
        given = Settings(
            ttl, ttr, pri, capacity, key_concurrency, packed, codec, retain_s=retain_s, partitions=plan
        )
        known = kind_named(kind)
        settings = settings_for(known, given)
        # All that a handle refuses: afterwards the queue would be there.
        shape_of(registry, Definition(checked_name(name), 0, known.name, settings.to_options()), type)
        if if_not_exists and (there := usable(db, registry, name)) is not None:
            return cls(db, registry, there, type)
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

    # Putting and taking.

    def put(
        self,
        tr: DatabaseOrTransaction,
        data: Any,
        *,
        ttl: float | None = None,
        ttr: float | None = None,
        pri: int | None = None,
        delay: float = 0,
        key: Any = None,
        cost: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 0,
        stop: Stop | None = None,
    ) -> Task:
        """Add a task. It lives `ttl` seconds after its `delay`, and each of its leases lasts `ttr` seconds.

        In a fair queue it counts as `cost` tasks of its task key. `headers` are texts by name that stay
        beside the data, at most limits.HEADERS_BYTES_MAX bytes together.

        Given a database, the call waits up to `timeout` seconds for room, and ends overdue sessions before it
        raises QueueFull. Given a transaction, the stored state decides. When `stop`, an event, is set, the
        call raises WaitStopped and has put nothing.
        Reads: the last task and the counters by snapshot; in a keyed queue, how the task key stands.
        Writes: the task, its payload, its index and timer keys, the counters.
        Conflicts: none. With a capacity: other puts near the bound. With task keys: a change that empties or
        fills the task key.
        Raises: QueueFull with `item`, the first item without room, and `current_size`; UnsupportedOption,
        InvalidArgument, PayloadTooLarge; TypeError for data that the codec cannot carry; UnknownSession in a
        temporary queue of an ended session; WaitStopped.
        """
        options = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "key": key, "cost": cost}
        if headers is not None:
            options["headers"] = headers
        return self._put(tr, [self._draft(data, options)], timeout, stop)[0]

    def put_many(
        self,
        /,
        tr: DatabaseOrTransaction,
        data: Iterable[Any],
        *,
        timeout: float = 0,
        stop: Stop | None = None,
        **options: Any,
    ) -> list[Task]:
        """Add tasks with the same `options`, in order, all or none. All else is as in `put`.

        Raises: TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if there are several,
        more than limits.BATCH_BYTES_MAX bytes.
        """
        items = checked_items("data", data)
        payloads = checked_batch([*map(checked_payload, encoded_each(self._shape.codec, items))])
        drafts = [self._shape.draft(*pair, options) for pair in zip(items, payloads, strict=True)]
        return self._put(tr, drafts, timeout, stop) if drafts else []

    def take(
        self,
        tr: DatabaseOrTransaction,
        timeout: float | None = None,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> Task | None:
        """Take the next task: for its ttr it is leased to this session, and to no other.

        Given a transaction: one attempt, by the stored state. A dead session that no process has ended yet
        still holds its tasks. Given a database: waits up to `timeout` seconds in the line. None waits for
        ever, zero or less does not wait. Overdue sessions are ended before the answer is None. When `stop`,
        an event, is set, the call leaves the line and raises WaitStopped; a task that came for it is ready
        again.
        Reads: the first ready tasks and timers by snapshot, the task serialisably.
        Writes: moves the task.
        Conflicts: a change of the task. An answer of None in a transaction: a change that makes a task ready.
        Raises: UnknownSession, PayloadUnreadable, WaitStopped.
        """
        found = self.take_many(tr, 1, timeout, session=session, stop=stop)
        return found[0] if found else None

    def take_many(
        self,
        tr: DatabaseOrTransaction,
        n: int,
        timeout: float | None = 0,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> list[Task]:
        """Take the next tasks, up to `n`. The call waits for the first of them as `take` does.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX.
        """
        checked_batch_count("n", n)
        timeout_s = checked_take_timeout(timeout)
        given = _checked(session)
        checked_stop(stop, tr)
        self.require_codec()
        if is_transaction(tr):
            holder = given or self._own_session(tr)
            calls = self._watched(tr, "take") if observing.observers else self._calls(tr)
            return list(calls.take_within(writable(tr), n, holder))
        return list(self._take(as_database(tr), n, timeout_s, given, stop))

    def end_waits(self, db: AnyDatabase, *, session: AnySession | None = None) -> None:
        """End the waits of this session's takes in other threads of this process: they return their tasks so
        far.
        """
        given = _checked(session)
        self._calls(db).end_waits(given or self._own_session(db))

    # Verbs of the holder.

    def ack(self, tr: DatabaseOrTransaction, task: Task | str, *, session: AnySession | None = None) -> Task:
        """Remove a task that is done. In the transaction of the work's own writes the effect is exactly-once.

        Reads: the task, serialisably.
        Writes: clears the task.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over or belongs to another holder; then nothing changes.
        """
        target = self._target(tr, task, session)
        calls = self._watched(tr, "ack", task) if observing.observers else self._calls(tr)
        note_end(task, None)
        if is_transaction(tr):
            acked = calls.within(writable(tr), lambda change: verbs.ack(change, target), target.id)
        else:
            acked = calls.acks.ack(target)
        note_end(task, "ack")
        return acked

    def release(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        *,
        delay: float = 0,
        failure: Failure | None = None,
        session: AnySession | None = None,
    ) -> Task:
        """Give the task back to its old place. With a `delay`, it is ready after that many seconds, and lives
        longer by them.

        With a `failure` the attempt counts as failed, the failure is stored with the task, and a `delay` is
        possible in queues of every kind.
        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, UnsupportedOption.
        """
        later_us = delay_us(delay)
        if failure is not None:
            checked_instance("failure", failure, Failure)
        elif later_us:
            self._shape.kind.require("delay")
        verb, target = "release" if failure is None else "retry", self._target(tr, task, session)
        return self._end(tr, task, verb, lambda change: verbs.release(change, target, later_us, failure))

    def defer(
        self, tr: DatabaseOrTransaction, task: Task | str, delay: float, *, session: AnySession | None = None
    ) -> Task:
        """Give the task back, ready in `delay` seconds. This is `release` for queues of every kind.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        later_us, target = delay_us(delay), self._target(tr, task, session)
        return self._end(tr, task, "release", lambda change: verbs.release(change, target, later_us, None))

    def touch(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        increment: float,
        *,
        session: AnySession | None = None,
    ) -> Task:
        """Lengthen the lease, the life and all later leases of the task by `increment` seconds.

        Reads: the task.
        Writes: the task.
        Conflicts: a change of the task.
        Raises: InvalidArgument (a ValueError) for an increment that is not positive; NotTaken,
        UnsupportedOption.
        """
        longer_us = increment_us(increment)
        target = self._target(tr, task, session)
        return self._once(tr, "touch", lambda change: verbs.touch(change, target, longer_us), task)

    # Verbs of every session.

    def bury(self, tr: DatabaseOrTransaction, task: Task | str, *, failure: Failure | None = None) -> Task:
        """Put the task aside until it is kicked. With a `failure` the attempt counts as failed, and the
        failure is stored with the task.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound; NotTaken for a Task under a lease that is over.
        """
        if failure is not None:
            checked_instance("failure", failure, Failure)
        target = self._target(tr, task, None)
        return self._end(tr, task, "bury", lambda change: verbs.bury(change, target, failure))

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

    # How it is done.

    def _draft(self, data: Any, options: Mapping[str, Any]) -> Draft:
        return self._shape.draft(data, checked_payload(self._shape.codec.encode(data)), options)

    def _put(
        self, target: DatabaseOrTransaction, drafts: Sequence[Draft], timeout: float, stop: Stop | None
    ) -> list[Task]:
        timeout_s = checked_wait(timeout, target)
        checked_stop(stop, target)
        if timeout_s and not self._shape.kind.supports("capacity"):
            raise UnsupportedOption(kind=self.kind, option="a timeout of a put: it is never full")
        calls = self._watched(target, "put") if observing.observers else self._calls(target)
        if is_transaction(target):
            return calls.put_within(writable(target), drafts)
        return calls.put(drafts, timeout_s, stop)

    def _take(
        self,
        database: Database,
        count: int,
        timeout_s: float,
        session: Session | None,
        stop: Stop | None,
        told: bool = False,
    ) -> Sequence[Task]:
        """Take for `session`, or for the own session; again if that one has died meanwhile.

        `told`: the observers have been told of this call.
        """
        if observing.observers and not told:
            take = partial(self._take, database, count, timeout_s, session, stop, told=True)
            return self._watched(database, "take").take(take, waits=timeout_s > 0)
        monotonic, own = database.runtime.monotonic, own_session_of(database, self._shape.root)
        until = monotonic() + timeout_s
        while True:
            try:
                holder = own.get() if session is None else session
                return calls_of(database, self._shape).take(holder, count, timeout_s, stop)
            except UnknownSession:
                if session is not None:
                    raise
                timeout_s = max(0.0, until - monotonic())


def _checked(session: AnySession | None) -> Session | None:
    """Raises WrongType."""
    return None if session is None else checked_instance("session", session, Session)
