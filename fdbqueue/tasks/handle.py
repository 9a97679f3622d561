"""The handle of a task queue: its names, and how its verbs reach a transaction.

Puts into a task queue are the base of a producer. Takes from it, and the verbs of a consumer about the tasks
that it holds, are the base of a consumer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fdb.subspace_impl import Subspace
from msgspec.structs import replace

from fdbqueue import tasks as late
from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    checked_batch,
    checked_batch_count,
    checked_count,
    checked_fraction,
    checked_function,
    checked_instance,
    checked_items,
    checked_overtake,
    checked_payload,
    checked_stop,
    checked_take_timeout,
    checked_text,
    checked_wait,
    require_finished,
    require_verb_batch,
    too_much,
    writable,
)
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.codec import AbsentCodec, encoded_each
from fdbqueue.core.database import Database, Handle, as_database, at_pace, is_database, is_transaction, run
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.core.observing import Call
from fdbqueue.core.once import run_in
from fdbqueue.core.partitions import GROUP_BYTES
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, AnySession, DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session, own_session_of
from fdbqueue.core.task import Failure, Renewed, Task, TaskState
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.options import OF_ONE_TASK, Backoff, Draft, about_unique, as_given, delay_us, increment_us
from fdbqueue.tasks.results import encoder
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.records import extra_to_bytes, id_bytes, id_of
from fdbqueue.tasks.verbs import Target

if TYPE_CHECKING:
    from fdbqueue.tasks.acks import Acks
    from fdbqueue.tasks.attempts import Asked, InForce
    from fdbqueue.tasks.group_settling import AnyGroup


T = TypeVar("T")
InAll = Callable[[Sequence[Change]], T]


class TaskHandle(Handle):
    """Names and options of a task queue, and the ways of its verbs into a transaction."""

    __slots__ = ("_aside", "_ask_exists", "_database", "_receipts", "_shape")

    def __init__(
        self, target: DatabaseOrTransaction, registry: Registry, definition: Definition, type: Any = None
    ) -> None:
        """Use `TaskQueue.create` or `TaskQueue.open`.

        Raises: UnknownKind, InvalidArgument for the type.
        """
        checked_instance("registry", registry, Registry)
        self._shape = shape_of(registry, checked_instance("definition", definition, Definition), type)
        self._aside, self._ask_exists = self._shape.aside, self._shape.exists
        self._receipts = self._shape.root
        # Sessions and callbacks belong to a database, and a transaction carries none.
        self._database = as_database(target.db if is_transaction(target) else target)
        # No thread for a caller's transaction: its database may be closed without a sign to this process.
        if not is_transaction(target):
            keeper_of(self._database, self._shape.root).start()

    @property
    def name(self) -> str:
        return self._shape.name

    @property
    def kind(self) -> str:
        return self._shape.kind.name

    def _shown(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, **self._database._shown()}

    @property
    def contents(self) -> Subspace:
        """The subspace that holds everything of the queue."""
        return self._shape.registry.contents(self._shape.definition)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the queue, as this process has met them last."""
        # All handles of a process share the definition that it has met last.
        current = calls_of(self._database, self._shape).shape.current
        return as_given((self._shape if current is None else current).definition.options)

    def require_codec(self) -> None:
        """Raises: UnknownCodec if this process has not registered the codec of the queue."""
        self._shape.codec.require()

    def _on(self, db: Database) -> Self:
        """The same handle for calls within transactions of another database object."""
        twin = self._twin()
        twin._database = db
        return twin

    def _once(
        self,
        target: DatabaseOrTransaction,
        name: str,
        body: Callable[[Change], T],
        task: Task | str = "",
        may_be_lost: Callable[[T], bool] | None = None,
    ) -> T:
        """Run the verb `name`, about the queue or about `task`. `may_be_lost(answer)`: as in `run_once`."""
        within = partial(self._calls(target).parts.within, verb=body, id_=id_of(task) if task else None)
        call = partial(run_in, target, self._receipts, within, may_be_lost=may_be_lost)
        return self._told(target, name, call, task) if observing.observers else call()

    def _once_in_all(
        self,
        target: DatabaseOrTransaction,
        name: str,
        body: InAll[T],
        wrote: Callable[[T], bool] | None = None,
    ) -> T:
        """Run the verb `name` about all partitions. `wrote(answer)`: as in `run_once`."""
        within = partial(self._calls(target).parts.all_within, verb=body)
        call = partial(run_in, target, self._receipts, within, wrote=wrote)
        return self._told(target, name, call) if observing.observers else call()

    def _end(
        self, target: DatabaseOrTransaction, name: str, body: Callable[[Change], Task], task: Task | str
    ) -> Task:
        """As `_once`, for a verb that ends the lease of the task."""
        if isinstance(task, Task):
            task._note_end(None, within=False)  # a verb that raises has ended nothing
        ended = self._once(target, name, body, task)
        if isinstance(task, Task):
            name = "bury" if ended.state == TaskState.BURIED else name
            task._note_end(name, is_transaction(target))
        return ended

    def _see(self, target: DatabaseOrTransaction, body: Callable[[Change], T], id_: bytes | None = None) -> T:
        """Look at the task `id_`, or at the queue."""
        parts = self._calls(target).parts
        return run(target, lambda tr: parts.look(writable(tr), body, id_))

    def _see_all(self, target: DatabaseOrTransaction, body: InAll[T], *, sweeps: bool = False) -> T:
        """Look at all partitions. `sweeps`: a call given a database sweeps a batch behind its answer."""
        parts = self._calls(target).parts
        found = run(target, lambda tr: parts.look_at_all(writable(tr), body))
        if sweeps and not is_transaction(target):
            late.looking.sweep_a_batch(as_database(target), parts)
        return found

    def _calls(self, target: DatabaseOrTransaction) -> TaskCalls:
        database = self._database if target is self._database else self._of(target)
        found: TaskCalls | None = database.known(self._shape.service)
        return calls_of(database, self._shape) if found is None else found

    def _told(
        self, target: DatabaseOrTransaction, name: str, call: Callable[[], T], task: Task | str = ""
    ) -> T:
        with self._observed(target, name, task=task) as observed:
            answer = call()
            if isinstance(answer, Task):
                observed.tasks = [answer]
            return answer

    def _observed(
        self, target: DatabaseOrTransaction, name: str, *, task: Task | str = "", **facts: Any
    ) -> Call:
        runtime, id_ = self._of(target).runtime, task.id if isinstance(task, Task) else task
        return Call(runtime, name, self.name, id_, within=is_transaction(target), **facts)

    def _of(self, target: DatabaseOrTransaction) -> Database:
        if not is_transaction(target):
            return as_database(target)
        # A plan, a session and a callback belong to one database. Several may share the engine of `target`:
        # among them that of the handle comes first.
        return self._database if target.db == self._database.engine else as_database(target.db)

    def _own_session(self, target: DatabaseOrTransaction) -> Session:
        return own_session_of(self._of(target), self._shape.root).get()

    def _target(self, tr: DatabaseOrTransaction, task: Task | str, session: AnySession | None) -> Target:
        """The task of a verb. Without a lease, its payload may have been edited since."""
        if isinstance(task, Task) and task.token:
            return Target(id_bytes(task.id), task.token, data=task.data)
        if session is None:
            return Target(id_of(task), session=own_session_of(self._of(tr), self._shape.root).id())
        return Target(id_of(task), session=checked_instance("session", session, Session).id)


class Putting(TaskHandle):
    """The verbs of a producer."""

    __slots__ = ()

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
        result_ttl: float | None = None,
        unique: Any = None,
        scope: str | float = "unfinished",
        on_conflict: str = "skip",
        debounce_max: float | None = None,
        group: "AnyGroup | str | None" = None,
        limits: Iterable[str] | Mapping[str, Any] | None = None,
        after: Task | str | None = None,
        attempts: float | None = None,
        backoff: Backoff | None = None,
        timeout: float = 0,
        stop: Stop | None = None,
    ) -> Task:
        """Add a task. It lives `ttl` seconds after its `delay`, and each of its leases lasts `ttr` seconds.

        In a fair queue it counts as `cost` tasks of its task key. `headers`: texts by name beside the data,
        at most limits.HEADERS_BYTES_MAX bytes together. `result_ttl`: seconds for which the result of its ack
        is kept, for `result`; None keeps none. `group`: an open group, or its id, that counts the task.
        `limits`: names out of the `task_limits` of the queue; a mapping gives one of them its key
        (docs/limits.md). `after`: a task of this queue; this one waits for its end (docs/groups.md).
        `attempts` (inf for no bound) and `backoff` go before those of its queue (docs/workers.md).

        If another task has the value `unique`, none is made. With `on_conflict` "skip" the call returns that
        task. "replace" gives it this data, headers, limits, ttr and ttl, at its place. "debounce" also makes
        it due after `delay`, but never later than `debounce_max` seconds after its put. A task has its
        unique key in its `scope`: "queued", as long as it waits; "unfinished", until it is gone; or for that
        number of seconds (docs/unique.md). `Task.existed` tells if the task was there before.
        Given a database, the call waits up to `timeout` seconds for room, and ends overdue sessions before it
        raises QueueFull. Given a transaction, the stored state decides. A set `stop` raises WaitStopped.
        Reads: the last task and the counters by snapshot; in a keyed queue, how the task key stands; the
        entry of the unique key, and its task by snapshot, or serialisably to change it; the group, `after`.
        Writes: the task, its payload, index, timer, and counters; entries of the unique key and the member.
        Conflicts: none. With a capacity: other puts near the bound. With task keys: a change that empties or
        fills the task key. With a unique key: another put with it, and the end of the scope of its task.
        With a group: its close or cancel, and a truncate. With `after`: a change of that task.
        Raises: QueueFull with `item`, the first item without room, and `current_size`; UnsupportedOption,
        InvalidArgument, PayloadTooLarge, GroupNotFound, GroupClosed; UniqueTaskBusy if a taken or buried
        task has the unique key and `on_conflict` is not "skip"; TypeError for data that the codec cannot
        carry; UnknownSession in a temporary queue of an ended session; WaitStopped.
        """
        options: dict[str, Any] = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "limits": limits}
        options |= {"key": key, "cost": cost, "headers": headers, "result_ttl": result_ttl, "group": group}
        options |= {"attempts": attempts, "backoff": backoff}
        if unique is not None or (scope, on_conflict, debounce_max) != ("unfinished", "skip", None):
            options |= about_unique(unique, scope=scope, on_conflict=on_conflict, debounce_max=debounce_max)
        if after is not None:
            options |= {"after": after, "waits": self._database.runtime.random_bytes(GROUP_BYTES)}
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

        Raises: QueueFull with `wanted`, the number of the tasks. BatchOverCapacity for more tasks than the
        capacity of the queue, without a wait.
        TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if there are several, more
        than limits.BATCH_BYTES_MAX bytes, or limits.PUT_BYTES_MAX bytes with task keys and headers.
        """
        for name in OF_ONE_TASK.intersection(options):
            if options[name] is not None:
                wanted = "None: it is for one task, so put each by itself"
                raise InvalidArgument(name=name, wanted=wanted, got=options[name])
        items = checked_items("data", data)
        payloads = checked_batch([*map(checked_payload, encoded_each(self._shape.codec, items))])
        drafts = [self._shape.draft(*pair, options) for pair in zip(items, payloads, strict=True)]
        if not drafts:
            return []
        _require_fits(drafts)
        return self._put(tr, drafts, timeout, stop)

    def _draft(self, data: Any, options: Mapping[str, Any]) -> Draft:
        return self._shape.draft(data, checked_payload(self._shape.codec.encode(data)), options)

    def _put(
        self, target: DatabaseOrTransaction, drafts: Sequence[Draft], timeout: float, stop: Stop | None
    ) -> list[Task]:
        timeout_s = checked_wait(timeout, target)
        if stop is not None:
            checked_stop(stop, target)
        if timeout_s and not self._shape.kind.supports("capacity"):
            raise UnsupportedOption(kind=self.kind, option="a timeout of a put: it is never full")
        calls = self._calls(target)
        if target is not self._database and is_transaction(target):
            put = partial(calls.put_within, writable(target))
        else:
            put = partial(calls.put, timeout_s=timeout_s, stop=stop)
        if not observing.observers:
            return put(drafts)
        waits = timeout_s > 0
        with self._observed(target, "put", count=len(drafts), waits=waits, stores_trace=True) as call:
            tasks = put([replace(draft, trace=call.trace) for draft in drafts] if call.trace else drafts)
            call.tasks = tasks
            return tasks


def _require_fits(drafts: Sequence[Draft]) -> None:
    """Refuse tasks with equal options, with all that is written for them, before the database does it."""
    first = drafts[0]
    if len(drafts) > 1 and (first.key or first.extra is not None):
        trace_bytes = limits.TRACE_BYTES_MAX if observing.observers else 0
        record_bytes = len(extra_to_bytes(first.extra)) + trace_bytes
        key_bytes = sum(map(len, first.extra.limit_keys.values())) if first.extra is not None else 0
        beside = (
            limits.TASK_BYTES + 2 * key_bytes + limits.BUSY_KEY_COPIES * len(first.key) + 2 * record_bytes
        )
        size_bytes = sum(len(draft.payload) for draft in drafts) + len(drafts) * beside
        if size_bytes > limits.PUT_BYTES_MAX:
            raise too_much(len(drafts), size_bytes, limits.PUT_BYTES_MAX)


def has_come_back(task: Task) -> bool:
    """True if a verb has made the task ready or delayed: it was not cancelled meanwhile. Then a power cut
    may undo the verb: the lease ends with its session, as that of a process that dies.
    """
    return task.state != TaskState.DONE


class Taking(TaskHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def take(
        self,
        tr: DatabaseOrTransaction,
        timeout: float | None = None,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
        overtake: int = 0,
    ) -> Task | None:
        """Take the next task: for its ttr it is leased to this session, and to no other.

        Given a transaction: one attempt, by the stored state. A dead session that no process has ended yet
        still holds its tasks. Given a database: waits up to `timeout` seconds in the line. None waits for
        ever, zero or less does not wait. Overdue sessions are ended before the answer is None. When `stop`,
        an event, is set, the call leaves the line and raises WaitStopped; a task that came for it is ready
        again. After a race with another taker, it leaves up to `overtake` older ready tasks behind
        (docs/workers.md).
        Reads: the first ready tasks and timers by snapshot, the task serialisably.
        Writes: moves the task.
        Conflicts: a change of the task. An answer of None in a transaction: a change that makes a task ready.
        Raises: UnknownSession, PayloadUnreadable, WaitStopped; TooMuchToSweep given a transaction that cannot
        tell whether a task is ready; UnsupportedOption for `overtake` in a queue with task keys or task
        limits, and in a bag.
        """
        found = self._taken(tr, 1, timeout, session, stop, overtake)
        return found[0] if found else None

    def take_many(
        self,
        tr: DatabaseOrTransaction,
        n: int,
        timeout: float | None = 0,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
        overtake: int = 0,
        fill: float = 0,
    ) -> list[Task]:
        """Take the next tasks, up to `n`. The call waits for the first of them as `take` does.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX. With `fill`, further takes follow the first one for that number of seconds, which is
        below the ttr. A `stop` that is set meanwhile ends them, and the call returns the tasks so far.
        Raises: as `take`; InvalidArgument for a `fill` given a transaction.
        """
        fill_s = late.filling.checked_fill(fill, tr) if type(fill) is not int or fill else 0.0
        found = list(self._taken(tr, checked_batch_count("n", n), timeout, session, stop, overtake))
        if found and fill_s:
            take = partial(self._taken, tr, timeout=0, session=session, stop=None, overtake=overtake)
            late.filling.fill_for(self._of(tr), found, n, fill_s, stop, take, self._calls(tr)._undo_take)
        return found

    def end_waits(self, db: AnyDatabase, *, session: AnySession | None = None) -> None:
        """End the waits of this session's takes in other threads of this process: they return their tasks so
        far.
        """
        given = None if session is None else checked_instance("session", session, Session)
        self._calls(db).end_waits(given or self._own_session(db))

    def ack(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        *,
        session: AnySession | None = None,
        result: Any = None,
    ) -> Task:
        """Remove a task that is done. In the transaction of the work's own writes the effect is exactly-once.

        The `result` of a task that was put with a `result_ttl` is stored, encoded by the codec of the queue;
        of any other task, it is ignored.
        Reads: the task, serialisably.
        Writes: clears the task; its result.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over or belongs to another holder, PayloadTooLarge, or TypeError for
        a result that the codec cannot carry; then nothing changes.
        """
        target = self._target(tr, task, session)
        within = tr is not self._database and is_transaction(tr)
        if not isinstance(task, Task) or task.result_ttl is not None or within:
            # Acks that combine are bounded in their number, and not in the bytes of results.
            body = partial(verbs.ack, target=target, result=encoder(self._shape.result_codec, result))
            return self._end(tr, "ack", body, task)
        task._note_end(None, within=False)
        ack = partial(self._calls(tr).acks.ack, target)
        acked = self._told(tr, "ack", ack, task) if observing.observers else ack()
        task._note_end("ack", within=False)
        return acked

    def _tell_taken(self, db: AnyDatabase, tasks: Sequence[Task]) -> None:
        """Tell observers of tasks that acks have taken along."""
        with self._observed(db, "take", count=len(tasks), waits=False) as call:
            call.tasks = tasks

    def _acked_by(self, db: AnyDatabase, task: Task, acks: "Acks", result: Any) -> Task:
        """As `ack`, by the acks of a worker. Apart from it: one more call would be on the way of each ack."""
        if task.result_ttl is not None:
            return self.ack(db, task, result=result)
        task._note_end(None, within=False)
        ack = partial(acks.ack, self._target(db, task, None))
        acked = self._told(db, "ack", ack, task) if observing.observers else ack()
        task._note_end("ack", within=False)
        return acked

    def release(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        *,
        delay: float | None = None,
        failure: Failure | None = None,
        session: AnySession | None = None,
    ) -> Task:
        """Give the task back to its old place. With a `delay`, it is ready after that many seconds, and lives
        longer by them.

        With a `failure`, which is stored, the attempt has failed. Then each kind may have a `delay`, by
        default the `backoff` of the task or its queue, and the last of their `attempts` buries the task.
        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, UnsupportedOption.
        """
        later_us, target = None if delay is None else delay_us(delay), self._target(tr, task, session)
        if failure is None:
            if later_us:
                self._shape.kind.require("delay")
            release = partial(verbs.release, target=target, delay_us=later_us or 0)
            return self._end(tr, "release", release, task)
        checked_instance("failure", failure, Failure)
        random = 0.0 if delay is not None else self._of(tr).runtime.random()
        body = partial(verbs.retry, target=target, delay_us=later_us, failure=failure, random=random)
        return self._end(tr, "retry", body, task)

    def _rule(self, tr: Transaction, task: Task, worker: "Asked") -> "tuple[int, InForce]":
        """For a worker: the failures of a held task so far, and what is in force for it."""
        target = self._target(tr, task, None)
        return self._see(tr, partial(verbs.rule_for, target=target, worker=worker), target.id)

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
        return self._end(tr, "release", lambda change: verbs.release(change, target, later_us), task)

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
        return self._end(tr, "bury", lambda change: verbs.bury(change, target, failure), task)

    # Verbs of a worker about its attempt; programs that take tasks themselves may use them, too.

    def give_back(self, tr: DatabaseOrTransaction, task: Task, delay: float = 0) -> Task:
        """`defer` for a worker before its handler has decided about the task: no attempt has ended.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        later_us, target = delay_us(delay), self._target(tr, task, None)
        body = partial(verbs.give_back, target=target, delay_us=later_us)
        return self._once(tr, "give_back", body, task, may_be_lost=has_come_back)

    def renew(self, tr: DatabaseOrTransaction, tasks: Sequence[Task]) -> Renewed:
        """Lease tasks for their whole ttr from now. Return the new deadline of each task that is still held,
        by id, in order: seconds since the epoch, None for ever. `cancelled` of the answer has the ids of the
        cancelled ones.

        `touch` changes ttr and ttl and is counted; `renew` does neither, and is for queues of every kind.
        Reads: the tasks.
        Writes: the tasks that are held.
        Conflicts: a change of the tasks.
        Raises: TooMuchForOneTransaction for more than limits.VERB_BATCH tasks.
        """
        few = checked_items("tasks", tasks)
        require_verb_batch(len(few))
        targets = [self._target(tr, task, None) for task in few]
        return run(at_pace(tr, "liveness"), partial(self._renew, targets=targets, alone=is_database(tr)))

    def _renew(self, tr: Transaction, targets: Sequence[Target], alone: bool) -> Renewed:
        leases = self._calls(tr).parts.each(writable(tr), targets, verbs.renew)
        renewed = verbs.renewed_of(targets, leases)
        if alone and len(renewed) == len(targets):  # no record was unreadable, and mended
            may_be_lost(tr)
        return renewed

    def progress(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        fraction: float,
        *,
        session: AnySession | None = None,
    ) -> Task:
        """Store the progress of a held task, from 0 to 1. It goes with the lease. Not counted.

        Reads: the task.
        Writes: the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        checked, target = checked_fraction("fraction", fraction), self._target(tr, task, session)
        return self._once(
            tr, "progress", lambda change: late.steps.tell_progress(change, target, checked), task
        )

    def step(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        name: str,
        function: Callable[..., Any],
        *,
        session: AnySession | None = None,
    ) -> Any:
        """The result of a step of a held task: the stored one, or that of `function`, which is then stored.

        Given a database: `function()` runs outside any transaction. It runs again in a later attempt, if its
        result was not committed. Given a transaction: `function(tr)` runs in it, so its effect there is
        exactly-once, whatever the number of attempts. `name` has 1 to limits.STEP_NAME_BYTES_MAX bytes. The
        codec of the queue encodes the result, which has at most limits.STEP_BYTES_MAX bytes.
        Reads: the task and the step.
        Writes: the task, the step.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over; then nothing is stored. StepUnderWay if the same step runs
        already; TooManySteps, PayloadTooLarge, PayloadUnreadable; TypeError for a result that the codec
        cannot carry; InvalidArgument, DeferredBody; errors of the function.
        Round trips: 1, and 1 more for a step that is not done.
        """
        name = checked_text("name", name, limits.STEP_NAME_BYTES_MAX)
        checked_function("function", function)
        target, codec, within = self._target(tr, task, session), self._shape.result_codec, is_transaction(tr)
        with late.steps.only(self._calls(tr), target, name):
            found = self._see(tr, partial(late.steps.find, target=target, name=name), target.id)
            if found is not None:
                return None if found.payload is None else codec.decode(found.payload)
            result = require_finished("the step", function(tr) if within else function())
            encode = encoder(codec, result)
            self._once(tr, "step", lambda change: late.steps.store(change, target, name, encode), task)
            return result

    def exhaust(self, tr: DatabaseOrTransaction, task: Task, failures_max: int) -> bool:
        """Bury the task if at least `failures_max` of its attempts have failed. True if it was buried.

        Reads: the task; its failures by snapshot.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken.
        """
        checked_count("failures_max", failures_max)
        target = self._target(tr, task, None)
        return self._once(tr, "exhaust", lambda change: verbs.exhaust(change, target, failures_max), task)

    def excuse(self, tr: DatabaseOrTransaction, task: Task) -> bool:
        """Take back a failed attempt that was the database's fault: the lease ended while the database was
        away.

        Returns true if there was something to take back; a second call finds nothing. A task that is still
        taken is released. A failure that has been counted is taken back, whatever has happened to the task
        since; the lease of another holder stays. A task that was buried because of it (`exhaust`) is ready
        again.
        Reads: the task; its failures by snapshot.
        Writes: both.
        Conflicts: a change of the task.
        """
        target, attempt = self._target(tr, checked_instance("task", task, Task), None), task.attempts
        return self._once(
            tr, "excuse", lambda change: verbs.excuse(change, target.id, target.token, attempt), task
        )

    def _taken(
        self,
        tr: DatabaseOrTransaction,
        count: int,
        timeout: float | None,
        session: AnySession | None,
        stop: Stop | None,
        overtake: int,
    ) -> Sequence[Task]:
        timeout_s = checked_take_timeout(timeout)
        given = None if session is None else checked_instance("session", session, Session)
        if stop is not None:
            checked_stop(stop, tr)
        if isinstance(self._shape.codec, AbsentCodec):
            self._shape.codec.require()
        if type(overtake) is not int or overtake:
            overtake = checked_overtake(overtake, tr)
            self._shape.require_overtake(overtake)
        if tr is not self._database and is_transaction(tr):
            holder = given or self._own_session(tr)
            take = partial(self._calls(tr).take_within, writable(tr), count, holder)
        else:
            take = partial(self._calls(tr).take, given, count, timeout_s, stop, overtake)
        if not observing.observers:
            return take()
        with self._observed(tr, "take", count=0, waits=timeout_s > 0) as call:
            call.tasks = take()
            call.count = len(call.tasks)
            return call.tasks
