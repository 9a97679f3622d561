"""TaskQueue: tasks with leases. The life cycle is on one page in docs/tasks.md.

Given a *transaction* a call composes: it happens if and only if that transaction commits. Acking beside the
work's own writes makes the effect exactly-once. Given a *database* it is retried until it has happened
exactly once (calls/once.py), it may wait, and puts, takes and acks of several threads share transactions
(calls/combine.py, acks.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.arguments import (
    checked_batch,
    checked_batch_count,
    checked_count,
    checked_instance,
    checked_items,
    checked_payload,
    checked_stop,
    checked_take_timeout,
    checked_wait,
    writable,
)
from fdbqueue.aside import KeepsAside
from fdbqueue.codec import encoded_each
from fdbqueue.database import Database, as_database, is_transaction, run
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.errors import (
    QueueBusy,
    TooMuchForOneTransaction,
    UnknownSession,
    UnsupportedOption,
)
from fdbqueue.page import Page, checked_limit
from fdbqueue.records.keys import id_bytes
from fdbqueue.records.statistics import Statistics
from fdbqueue.registry.registry import Definition, Registry, checked_name
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnyDatabase, DatabaseOrTransaction
from fdbqueue.sessions.keeper import keeper_of
from fdbqueue.sessions.own import own_session_of
from fdbqueue.sessions.session import Session
from fdbqueue.task import Failure, Task, TaskState
from fdbqueue.tasks import listing, looking, verbs
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.creating import created, opened_or_created, owned, usable
from fdbqueue.tasks.dropping import Occupants, cleared, occupants
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.excusing import excuse
from fdbqueue.tasks.key_statistics import KeyStatistics, checked_keys
from fdbqueue.tasks.kinds import (
    Draft,
    Settings,
    as_given,
    delay_us,
    increment_us,
    kind_named,
    packed_weights,
    settings_for,
)
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")


class TaskQueue(KeepsAside):
    """A named queue of tasks. A value: it may be shared by threads.

    Every method takes a database or a transaction first, ours or the binding's; raises NotADatabase for
    anything else, QueueDropped after the queue was dropped. Verbs on a task take a Task or its id: a Task
    acts under the lease it was taken with, an id in the name of `session`, by default this process's own.
    """

    def __init__(
        self, target: DatabaseOrTransaction, registry: Registry, definition: Definition, type: Any = None
    ) -> None:
        """Use `TaskQueue.create` or `TaskQueue.open`. Raises UnknownKind, InvalidArgument for the type."""
        checked_instance("registry", registry, Registry)
        self._shape = shape_of(registry, checked_instance("definition", definition, Definition), type)
        self._aside, self._ask_exists = self._shape.aside, self._shape.guard
        # What a caller's transaction cannot carry: sessions, callbacks.
        self._database = as_database(target.db if is_transaction(target) else target)
        if not is_transaction(target):  # whose database may be used for nothing else, and is closed unnoticed
            keeper_of(self._database, self._shape.root).start()

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
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue. `ttl`, `ttr` (seconds, None for ever) and `pri` are what its tasks have by
        default. `key_concurrency`: so many tasks of a key are taken at a time. `weights`: the share of each
        round of some keys, 1 for all others. `codec`: "json", "bytes", "msgpack", or one of `register_codec`.
        `type`: that of the data which this handle puts and takes, None for the codec's own; it is not stored.

        `temporary`: its tasks belong to this process's session and go with it. `if_not_exists`: a queue of
        this name, whatever its kind and options, is opened; but a temporary queue whose session has gone is
        replaced by a fresh one, and that of another session that lives raises QueueExists. Given a
        transaction, a session lives until a process has ended it.

        Raises QueueExists, UnknownKind, UnsupportedOption, UnknownCodec, InvalidArgument, SubspaceInUse.
        Reads and writes what Registry.create does.
        """
        registry = Registry(root)
        given = Settings(ttl, ttr, pri, capacity, key_concurrency, packed_weights(weights), codec)
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
        """The queue of that name; its data are of that `type`. Reads its definition.

        Raises QueueNotFound, UnknownKind, InvalidArgument for the type. If this process has not registered
        the codec of the queue, puts, takes and reads of data raise UnknownCodec, and change nothing.
        """
        registry = Registry(root)
        return cls(db, registry, registry.find(db, name), type)

    @property
    def name(self) -> str:
        return self._shape.name

    @property
    def kind(self) -> str:
        return self._shape.kind.name

    @property
    def contents(self) -> Subspace:
        """Where it keeps what it holds."""
        return self._shape.registry.contents(self._shape.definition)

    @property
    def options(self) -> Mapping[str, Any]:
        """What it was created with."""
        return as_given(self._shape.definition.options)

    def require_codec(self) -> None:
        """Raises UnknownCodec if this process has not registered the codec of the queue."""
        self._shape.codec.require()

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
        timeout: float = 0,
        stop: Stop | None = None,
    ) -> Task:
        """Add a task; it lives `ttl` seconds beyond its `delay`, each lease of it lasts `ttr`. In a fair
        queue it counts as `cost` tasks of its key.

        Reads the last task by snapshot; writes the task, its payload, index and timer keys and the counters;
        conflicts with nothing, save in a queue with a capacity with other puts, in a queue with keys with
        what empties or fills that key. Given a database, waits up to `timeout` seconds for room, and ends
        overdue sessions before it raises QueueFull; given a transaction, answers by the stored state.
        Raises: QueueFull with the (first) `item` that has no room and the `current_size`, UnsupportedOption,
        InvalidArgument, PayloadTooLarge, TypeError for what the codec cannot carry; UnknownSession in a
        temporary queue whose session is over; WaitStopped, and nothing has been put, as soon as `stop`, an
        event, is set.
        """
        options = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "key": key, "cost": cost}
        return self._put(tr, [self._draft(data, options)], timeout, stop)[0]

    def put_many(
        self,
        tr: DatabaseOrTransaction,
        data: Iterable[Any],
        *,
        timeout: float = 0,
        stop: Stop | None = None,
        **options: Any,
    ) -> list[Task]:
        """Add tasks with the same `options`, in order, all or none.

        Like `put`; raises TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if they are
        more than one, limits.BATCH_BYTES_MAX bytes.
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
        session: Session | None = None,
        stop: Stop | None = None,
    ) -> Task | None:
        """Take the next task: for its ttr it is this session's, and nobody else gets it.

        Given a transaction: one attempt, by the stored state: tasks of a dead session that no process has
        ended yet are still taken. Reads the first ready tasks and timers by snapshot, moves the task;
        conflicts with any change of it, an answer of None with whatever makes a task ready. Given a database:
        waits up to `timeout` seconds (None: for ever; zero or less: not at all) in a fair line, and ends
        overdue sessions before it answers None. Raises: UnknownSession, PayloadUnreadable; WaitStopped as
        soon as `stop`, an event, is set: the call has left the line, and a task that came for it is ready
        again.
        """
        found = self.take_many(tr, 1, timeout, session=session, stop=stop)
        return found[0] if found else None

    def take_many(
        self,
        tr: DatabaseOrTransaction,
        n: int,
        timeout: float | None = 0,
        *,
        session: Session | None = None,
        stop: Stop | None = None,
    ) -> list[Task]:
        """Take the next tasks, up to `n`; waits for the first of them as `take` does.

        Fewer, too, if they are more than limits.BATCH_BYTES_MAX bytes, or if the line gives limits.SERVE_MAX.
        """
        checked_batch_count("n", n)
        timeout_s = checked_take_timeout(timeout)
        if session is not None:
            checked_instance("session", session, Session)
        checked_stop(stop, tr)
        self.require_codec()
        monotonic = self._of(tr).runtime.monotonic
        until = monotonic() + timeout_s
        while True:
            try:
                holder = self._own_session(tr) if session is None else session
                return list(self._take(tr, n, timeout_s, holder, stop))
            except UnknownSession:
                if session is not None or is_transaction(tr):
                    raise
                timeout_s = max(0.0, until - monotonic())

    def end_waits(self, db: AnyDatabase, *, session: Session | None = None) -> None:
        """Takes of this session that wait, in other threads of this process, return with what there is."""
        if session is not None:
            checked_instance("session", session, Session)
        self._calls(db).takes(self._own_session(db) if session is None else session).end_waits()

    # Verbs of the holder.

    def ack(self, tr: DatabaseOrTransaction, task: Task | str, *, session: Session | None = None) -> Task:
        """The task is done and gone. Raises NotTaken: the lease is over, or somebody else's; nothing changes.

        Reads the task serialisably and clears it; conflicts with any change of it. Beside the work's own
        writes, in the caller's transaction, this makes the effect exactly-once.
        """
        calls, target = self._calls(tr), self._target(tr, task, session)
        note_end(task, None)
        if is_transaction(tr):
            acked = calls.within(writable(tr), lambda change: verbs.ack(change, target))
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
        session: Session | None = None,
    ) -> Task:
        """Give the task back, to its old place; with a `delay`, so many seconds from now, by which it lives
        longer. With a `failure` the attempt counts as failed, that is written down with the task, and a
        `delay` is possible in queues of every kind.

        Raises NotTaken, UnsupportedOption. Reads and moves the task; conflicts with any change of it.
        """
        later_us = delay_us(delay)
        if failure is not None:
            checked_instance("failure", failure, Failure)
        elif later_us:
            self._shape.kind.require("delay")
        verb, target = "release" if failure is None else "retry", self._target(tr, task, session)
        return self._end(tr, task, verb, lambda change: verbs.release(change, target, later_us, failure))

    def defer(
        self, tr: DatabaseOrTransaction, task: Task | str, delay: float, *, session: Session | None = None
    ) -> Task:
        """Give the task back, for others to have in `delay` seconds: `release` for queues of every kind.

        Raises NotTaken, InvalidArgument. Reads and moves the task; conflicts with any change of it.
        """
        later_us, target = delay_us(delay), self._target(tr, task, session)
        return self._end(tr, task, "release", lambda change: verbs.release(change, target, later_us, None))

    def give_back(self, tr: DatabaseOrTransaction, task: Task, delay: float = 0) -> Task:
        """`defer` for a worker whose handler has not decided about the task: no attempt has ended.

        Raises NotTaken, InvalidArgument. Reads and moves the task; conflicts with any change of it.
        """
        later_us, target = delay_us(delay), self._target(tr, task, None)
        return self._once(tr, lambda change: verbs.give_back(change, target, later_us))

    def touch(
        self, tr: DatabaseOrTransaction, task: Task | str, increment: float, *, session: Session | None = None
    ) -> Task:
        """Hold the task, and let it live, for `increment` seconds longer; later leases of it too.

        Raises InvalidArgument (a ValueError) for an increment that is not positive, NotTaken,
        UnsupportedOption. Reads and writes the task; conflicts with any change of it.
        """
        longer_us = increment_us(increment)
        target = self._target(tr, task, session)
        return self._once(tr, lambda change: verbs.touch(change, target, longer_us))

    def renew(self, tr: DatabaseOrTransaction, tasks: Sequence[Task]) -> dict[str, float | None]:
        """Hold tasks for their whole ttr from now; until when, by id, those that are still held, in order:
        seconds since the epoch, None for ever.

        Unlike `touch` it leaves their ttr and ttl as they are, counts nothing, and is for queues of every
        kind. Raises TooMuchForOneTransaction for more than limits.VERB_BATCH. Reads the tasks and writes
        those that are held; conflicts with any change of them.
        """
        few = checked_items("tasks", tasks)
        checked_verb_batch(len(few))
        targets = [self._target(tr, task, None) for task in few]
        return run(tr, lambda tr: self._calls(tr).within(writable(tr), partial(verbs.renew, targets=targets)))

    def exhaust(self, tr: DatabaseOrTransaction, task: Task, failures_max: int) -> bool:
        """Bury the task if so many of its attempts have failed, as the queue knows it now; whether they have.

        Raises NotTaken. Reads the task, and its failures by snapshot; moves it; conflicts with any change of
        it.
        """
        checked_count("failures_max", failures_max)
        target = self._target(tr, task, None)
        return self._once(tr, lambda change: verbs.exhaust(change, target, failures_max))

    def excuse(self, tr: DatabaseOrTransaction, task: Task) -> bool:
        """The lease of a taken task has ended, or is to end, only because the database was away: that does
        not count as a failed attempt. Whether there was anything to do; twice is once.

        What is still taken is released; what has been counted is taken back, whatever has become of the task,
        and a lease that somebody else has on it stays. What was buried for it (`exhaust`) is ready again.
        Reads the task, and its failures by snapshot; writes both; conflicts with any change of the task.
        """
        target, attempt = self._target(tr, checked_instance("task", task, Task), None), task.attempts
        return self._once(tr, lambda change: excuse(change, target.id, target.token, attempt))

    # Verbs of anybody.

    def bury(self, tr: DatabaseOrTransaction, task: Task | str, *, failure: Failure | None = None) -> Task:
        """Put the task aside until it is kicked. With a `failure` the attempt counts as failed, and that is
        written down with the task. Raises TaskNotFound, NotTaken for a Task whose lease is over.

        Reads and moves the task; conflicts with any change of it.
        """
        if failure is not None:
            checked_instance("failure", failure, Failure)
        target = self._target(tr, task, None)
        return self._end(tr, task, "bury", lambda change: verbs.bury(change, target, failure))

    def delete(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """Remove the task. Raises, reads and conflicts like `bury`; clears the task."""
        target = self._target(tr, task, None)
        return self._end(tr, task, "delete", lambda change: verbs.delete(change, target))

    def peek(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """The task as it is now. Raises TaskNotFound. Reads it serialisably; conflicts with its changes."""
        target = self._target(tr, task, None)
        source = self._calls(tr).source
        return run(tr, lambda tr: source.look(tr, partial(verbs.peek, target=target)))

    def kick(self, tr: DatabaseOrTransaction, count: int = 1) -> int:
        """Make the first `count` buried tasks ready again; how many there were.

        Given a database: in transactions of at most limits.VERB_BATCH; each task is kicked or not. Given a
        transaction: raises TooMuchForOneTransaction beyond that. Reads and moves the tasks; conflicts with
        any change of them.
        """
        checked_count("count", count)
        kicked = 0
        if is_transaction(tr) and count > limits.VERB_BATCH:
            self._see(tr, partial(verbs.require_few, under=self._shape.keys.buried))
        while kicked < count:
            batch = min(count - kicked, limits.VERB_BATCH)
            more, looked = self._once(tr, partial(verbs.kick, count=batch))
            kicked += more
            if looked < batch:
                break
        return kicked

    def release_all(self, tr: DatabaseOrTransaction) -> None:
        """Release every taken task, whoever holds it.

        Given a database: in transactions of at most limits.VERB_BATCH. Given a transaction: raises
        TooMuchForOneTransaction beyond that. Reads and moves the tasks; conflicts with any change of them.
        """
        taken = self._shape.keys.taken
        if is_transaction(tr):
            self._see(tr, partial(verbs.require_few, under=taken))
        while self.release_some(tr):
            pass

    def release_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Release up to `count` taken tasks, at most limits.VERB_BATCH; how many there were.

        Reads and moves the tasks; conflicts with any change of them.
        """
        few, taken = min(checked_count("count", count), limits.VERB_BATCH), self._shape.keys.taken
        return self._once(tr, lambda change: verbs.release_taken(change, taken, few))

    def truncate(self, tr: DatabaseOrTransaction) -> None:
        """Remove every task. One range clear; conflicts with every call on a task that is there."""
        self._once(tr, verbs.truncate)

    def truncate_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Remove the first `count` tasks that came, at most limits.VERB_BATCH; how many there were.

        For millions, on an engine where clearing costs as much as it removes: repeated until it says 0, this
        is a `truncate` in bounded transactions. Reads the tasks by snapshot and clears them; conflicts with
        any change of them.
        """
        few = min(checked_count("count", count), limits.VERB_BATCH)
        return self._once(tr, partial(verbs.remove_first, count=few))

    def busy(self, tr: DatabaseOrTransaction) -> str:
        """Why the queue cannot be dropped: a call waits for tasks, or a session holds one. Empty if it can.

        Given a database, ends overdue sessions before it gives a reason. Given a transaction, answers by the
        stored state: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably.
        Writes: removes dead requests and ends leases that are over, where a full batch is nothing else.
        Conflicts: a call that joins the line, a take.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH of these.
        """
        calls = self._calls(tr)
        while True:
            found = run(tr, lambda tr: calls.within(writable(tr), self._occupants))
            if found.reason and not self._ended_overdue(tr):
                return found.reason
            if not found.reason and found.are_all:
                return ""
            require_more_transactions(tr)

    def drop(self, tr: DatabaseOrTransaction) -> None:
        """Remove the queue and all that is in it.

        Given a database, ends overdue sessions before it refuses. Given a transaction, answers by the stored
        state: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably. Writes: clears the definition and the contents.
        Conflicts: every call on the queue.
        Raises: QueueBusy if a call waits for tasks or a session holds one. TooMuchForOneTransaction, in a
        transaction, if more than limits.VERB_BATCH requests are dead, or leases over and not yet swept.
        """
        while not self._dropped(tr):
            require_more_transactions(tr)

    # Pausing.

    def pause(self, tr: DatabaseOrTransaction) -> None:
        """From now on nothing is taken, until `resume`: takes find nothing, or wait. Tasks may be put, and
        those that are held ended. Twice is once.

        Writes a flag that every take reads; conflicts with takes.
        """
        self._once(tr, verbs.pause)

    def resume(self, tr: DatabaseOrTransaction) -> None:
        """Let tasks be taken again; whoever waits is told. Clears the flag; conflicts with takes."""
        self._once(tr, verbs.resume)

    def paused(self, tr: DatabaseOrTransaction) -> bool:
        """Whether the queue is paused. Reads the flag; conflicts with `pause` and `resume`."""
        source = self._calls(tr).source
        return run(tr, lambda tr: source.look(tr, verbs.is_paused))

    # Looking.

    def failures(self, tr: DatabaseOrTransaction, task: Task | str) -> list[Failure]:
        """What is written down of the attempts that failed, the last limits.FAILURES_KEPT, the oldest first.

        Raises TaskNotFound. Reads the task, and the failures by snapshot; conflicts with any change of it.
        """
        id_ = id_bytes(task.id if isinstance(task, Task) else task)
        return self._see(tr, lambda change: verbs.failures_of(change, id_))

    def statistics(self, tr: DatabaseOrTransaction) -> Statistics:
        """What there is, what has been done, and how tasks have ended: {"tasks", "calls", "ends"}, exact.

        Tasks are counted in the state that is stored. One that is due and was not swept yet counts as
        `delayed`, and as `due`: those are counted among the first limits.DUE_COUNTED_MAX timers that have run
        out. Reads by snapshot, and conflicts with nothing; given a database, also sweeps a batch.
        """
        return self._look(tr, looking.statistics_in)

    def key_statistics(self, tr: DatabaseOrTransaction, limit: int) -> list[KeyStatistics]:
        """The keys of which most tasks are waiting, up to `limit` and limits.KEYS_LOOKED_AT_MAX, busiest
        first; how many tasks of each there are in each state, and its first that waits: in a micro-queue with
        priorities that is the one whose turn is next, elsewhere the oldest.

        The numbers are exact, as of what is stored. Which keys are found is exact, too, while no more than
        limits.KEYS_LOOKED_AT_MAX have any tasks. Beyond, those with 64 and more waiting are found by the
        magnitude of their number; with too many of those as well, a key that is left out has less than four
        times as many waiting as any that is told. Where fewer are found than `limit`, some others follow.
        Reads by snapshot, and conflicts with nothing; given a database, also sweeps a batch. Raises
        UnsupportedOption for a kind without keys, InvalidArgument.
        """
        checked_keys(limit)
        discipline = self._shape.discipline
        if not isinstance(discipline, Keyed):
            raise UnsupportedOption(kind=self.kind, option="statistics by key")
        return self._look(tr, lambda change: looking.key_statistics_in(change, discipline, limit))

    def tasks(
        self, tr: DatabaseOrTransaction, state: TaskState | str, limit: int, *, after: str | None = None
    ) -> Page[Task]:
        """A page of the tasks in that state, in order: up to `limit`, limits.BATCH_ITEMS_MAX and
        limits.BATCH_BYTES_MAX bytes of data, or one that is larger. Its `next` is the `after` of the page
        that follows, None at the end: a page may be shorter than `limit`, even empty, and not the last.

        Tasks are listed in the state that they have now, swept or not. Those that are due, but were not swept
        yet, may follow all that are ready. A task that changes its place between two pages may be listed
        twice or not at all; every other task once. Reads by snapshot, and conflicts with nothing; given a
        database, also sweeps a batch after the first page. Raises InvalidArgument.
        """
        most, wanted = checked_limit(limit), listing.checked_state(state)
        place = listing.place_after(wanted, after)
        # A sweep between two pages would move tasks to places that have been passed.
        look = self._look if after is None else self._see
        return look(tr, lambda change: listing.page(change, wanted, most, place))

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """Have `callback(task, event)` called for every change this process makes; the previous one.

        After the commit, in a thread of its own; what it raises is logged. None removes it. Raises
        InvalidArgument, DeferredBody.
        """
        return calls_of(self._database, self._shape).callbacks.install(callback, self._shape.codec)

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
        calls = self._calls(target)
        if is_transaction(target):
            return calls.put_within(writable(target), drafts)
        return calls.put(drafts, timeout_s, stop)

    def _take(
        self, target: DatabaseOrTransaction, count: int, timeout_s: float, session: Session, stop: Stop | None
    ) -> Sequence[Task]:
        calls = self._calls(target)
        if is_transaction(target):
            return calls.take_within(writable(target), count, session)
        return calls.take(session, count, timeout_s, stop)

    def _once(self, target: DatabaseOrTransaction, body: Callable[[Change], T]) -> T:
        calls = self._calls(target)
        return calls.within(writable(target), body) if is_transaction(target) else calls.once(body)

    def _end(
        self, target: DatabaseOrTransaction, task: Task | str, verb: str, body: Callable[[Change], Task]
    ) -> Task:
        """Run a verb that ends a lease."""
        note_end(task, None)  # a verb that raises has ended nothing
        ended = self._once(target, body)
        note_end(task, verb)
        return ended

    def _look(self, target: DatabaseOrTransaction, body: Callable[[Change], T]) -> T:
        """Look, and given a database sweep a batch afterwards: the answer tells what the process found."""
        found = self._see(target, body)
        if not is_transaction(target):
            looking.sweep_a_batch(as_database(target), self._calls(target).source)
        return found

    def _see(self, target: DatabaseOrTransaction, body: Callable[[Change], T]) -> T:
        source = self._calls(target).source
        return run(target, lambda tr: source.look(writable(tr), body))

    def _calls(self, target: DatabaseOrTransaction) -> TaskCalls:
        return calls_of(self._of(target), self._shape)

    def _of(self, target: DatabaseOrTransaction) -> Database:
        return self._database if is_transaction(target) else as_database(target)

    def _own_session(self, target: DatabaseOrTransaction) -> Session:
        return own_session_of(self._of(target), self._shape.root).get()

    def _target(self, tr: DatabaseOrTransaction, task: Task | str, session: Session | None) -> Target:
        if isinstance(task, Task):
            holder = b"" if task.token else self._holder(tr, session)
            return Target(id_bytes(task.id), task.token, holder, task.data)
        return Target(id_bytes(task), None, self._holder(tr, session))

    def _holder(self, tr: DatabaseOrTransaction, session: Session | None) -> bytes:
        if session is not None:
            return checked_instance("session", session, Session).id
        return own_session_of(self._of(tr), self._shape.root).id()

    def _occupants(self, change: Change) -> Occupants:
        return cleared(change, self._calls(change.tr).source.line)

    def _drop(self, change: Change) -> bool:
        """False if there may be more requests or leases: look again in another transaction."""
        found = self._occupants(change)
        if found.reason:
            raise QueueBusy(name=self.name, reason=found.reason)
        if found.are_all:
            self._shape.registry.drop(change.tr, self.name)
        return found.are_all

    def _dropped(self, target: DatabaseOrTransaction) -> bool:
        """False if it is to be tried again in another transaction. Raises QueueBusy."""
        try:
            return self._once(target, self._drop)
        except QueueBusy:
            if not self._ended_overdue(target):
                raise
            return False

    def _ended_overdue(self, target: DatabaseOrTransaction) -> bool:
        """True if a call that would answer "busy" should try again; never within a transaction."""
        if is_transaction(target):
            return False
        source = self._calls(target).source
        judge = partial(occupants, line=source.line)
        keeper = keeper_of(self._of(target), self._shape.root)
        return keeper.ended_overdue(lambda tr: lambda: not source.look(tr, judge).reason)


def require_more_transactions(target: DatabaseOrTransaction) -> None:
    """Raises TooMuchForOneTransaction if `target` is one."""
    if is_transaction(target):
        checked_verb_batch(limits.VERB_BATCH + 1)


def note_end(task: Task | str, verb: str | None) -> None:
    if isinstance(task, Task):
        task._note_end(verb)


def checked_verb_batch(count: int) -> None:
    """Raises TooMuchForOneTransaction."""
    if count > limits.VERB_BATCH:
        raise TooMuchForOneTransaction(
            count=count, size_bytes=0, count_max=limits.VERB_BATCH, size_bytes_max=limits.BATCH_BYTES_MAX
        )
