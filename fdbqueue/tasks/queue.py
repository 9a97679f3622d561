"""TaskQueue: tasks with leases. The life cycle is on one page in docs/tasks.md.

Given a *transaction* a call composes: it happens if and only if that transaction commits. Acking beside the
work's own writes makes the effect exactly-once. Given a *database* it is retried until it has happened
exactly once (receipts.py), it may wait, and puts, takes and acks of several threads share transactions
(line/combine.py, acks.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.arguments import checked_batch, checked_count, writable
from fdbqueue.database import Database, as_database, is_transaction, run
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.errors import (
    InvalidArgument,
    PayloadTooLarge,
    QueueBusy,
    QueueExists,
    QueueNotFound,
    TooMuchForOneTransaction,
    UnknownSession,
    UnsupportedOption,
)
from fdbqueue.registry import Definition, Registry, exists_already
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import Transaction
from fdbqueue.session import Session, keeper_of
from fdbqueue.task import Failure, Task, TaskState
from fdbqueue.tasks import listing, verbs
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.excusing import excuse
from fdbqueue.tasks.key_statistics import KeyStatistics, busiest_keys, checked_keys
from fdbqueue.tasks.keys import id_bytes
from fdbqueue.tasks.kinds import (
    Draft,
    Settings,
    as_given,
    delay_us,
    is_kind,
    is_number,
    kind_named,
    packed_weights,
    settings_for,
    span_us,
)
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.statistics import statistics_of
from fdbqueue.tasks.tasks_of import require_one_page
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")
Statistics = dict[str, dict[str, int]]


class TaskQueue:
    """A named queue of tasks. A value: it may be shared by threads.

    Every method takes a database or a transaction first, ours or the binding's; raises NotADatabase for
    anything else, QueueDropped after the queue was dropped. Verbs on a task take a Task or its id: a Task
    acts under the lease it was taken with, an id in the name of `session`, by default this process's own.
    """

    def __init__(self, target: Any, registry: Registry, definition: Definition) -> None:
        """Use `TaskQueue.create` or `TaskQueue.open`. Raises UnknownKind."""
        self._shape = Shape(registry, definition)
        # What a caller's transaction cannot carry: sessions, callbacks.
        self._database = as_database(target.db if is_transaction(target) else target)

    @classmethod
    def create(
        cls,
        db: Any,
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
        if_not_exists: bool = False,
        temporary: bool = False,
        root: Any = DEFAULT_ROOT,
    ) -> "TaskQueue":
        """Register a queue. `ttl`, `ttr` (seconds, None for ever) and `pri` are what its tasks have by
        default. `key_concurrency`: so many tasks of a key are taken at a time. `weights`: the share of each
        round of some keys, 1 for all others.

        `temporary`: what is in it belongs to this process's session and goes with it. `if_not_exists`: a
        queue of this name, whatever its kind and options, is opened. Raises QueueExists, UnknownKind,
        UnsupportedOption, UnknownCodec, InvalidArgument. Reads and writes what Registry.create does.
        """
        registry = Registry(root)
        if if_not_exists:
            with suppress(QueueNotFound):
                return cls.open(db, name, root=root)
        packed = packed_weights(weights)
        given = Settings(ttl, ttr, pri, capacity or None, key_concurrency, packed, codec)
        settings = settings_for(kind_named(kind), given)
        if temporary:
            database = as_database(db.db if is_transaction(db) else db)
            settings = owned(settings, keeper_of(database, registry.keys).own())
        try:
            return cls(db, registry, registry.create(db, name, kind, settings.to_options()))
        except QueueExists as there:
            if not if_not_exists:
                options, asked = as_given(there.options), as_given(there.asked)
                raise exists_already(name, there.kind, options, kind, asked) from None
            return cls.open(db, name, root=root)

    @classmethod
    def open(cls, db: Any, name: str, *, root: Any = DEFAULT_ROOT) -> "TaskQueue":
        """The queue of that name. Raises QueueNotFound, UnknownKind. Reads its definition."""
        registry = Registry(root)
        return cls(db, registry, registry.find(db, name))

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

    # Putting and taking.

    def put(
        self,
        tr: Any,
        data: Any,
        *,
        ttl: float | None = None,
        ttr: float | None = None,
        pri: int | None = None,
        delay: float = 0,
        key: Any = None,
        cost: int | None = None,
        timeout: float = 0,
    ) -> Task:
        """Add a task; it lives `ttl` seconds beyond its `delay`, each lease of it lasts `ttr`. In a fair
        queue it counts as `cost` tasks of its key.

        Reads the last task by snapshot; writes the task, its payload, index and timer keys and the counters;
        conflicts with nothing, save in a queue with a capacity with other puts, in a queue with keys with
        what empties or fills that key. Given a database, waits up to
        `timeout` seconds for room. Raises QueueFull with the (first) `item` that has no room and the
        `current_size`, UnsupportedOption, InvalidArgument, PayloadTooLarge,
        TypeError for what the codec cannot carry; UnknownSession in a temporary queue whose session is over.
        """
        options = {"ttl": ttl, "ttr": ttr, "pri": pri, "delay": delay, "key": key, "cost": cost}
        return self._put(tr, [self._draft(data, options)], timeout)[0]

    def put_many(self, tr: Any, data: Iterable[Any], *, timeout: float = 0, **options: Any) -> list[Task]:
        """Add tasks with the same `options`, in order, all or none.

        Like `put`; raises TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX tasks or, if they are
        more than one, limits.BATCH_BYTES_MAX bytes.
        """
        drafts = [self._draft(item, options) for item in data]
        checked_batch([draft.payload for draft in drafts])
        return self._put(tr, drafts, timeout) if drafts else []

    def take(self, tr: Any, timeout: float | None = None, *, session: Session | None = None) -> Task | None:
        """Take the next task: for its ttr it is this session's, and nobody else gets it.

        Given a transaction: one attempt; reads the first ready tasks and timers by snapshot, moves the task;
        conflicts with any change of it, an answer of None with whatever makes a task ready. Given a database:
        waits up to `timeout` seconds (None: for ever; zero or less: not at all) in a fair line. Raises
        UnknownSession, PayloadUnreadable.
        """
        found = self.take_many(tr, 1, timeout, session=session)
        return found[0] if found else None

    def take_many(
        self, tr: Any, n: int, timeout: float | None = 0, *, session: Session | None = None
    ) -> list[Task]:
        """Take the next tasks, up to `n`; waits for the first of them as `take` does.

        Fewer, too, if they are more than limits.BATCH_BYTES_MAX bytes, or if the line gives limits.SERVE_MAX.
        """
        checked_count(n)
        if timeout is not None and not is_number(timeout):
            raise InvalidArgument(name="timeout", wanted="seconds, or None for ever", got=timeout)
        if not n:
            return []
        try:
            return list(self._take(tr, n, timeout, session or self._own_session(tr)))
        except UnknownSession:
            if session is not None or is_transaction(tr):
                raise
            return list(self._take(tr, n, timeout, self._own_session(tr)))

    def end_waits(self, db: Any, *, session: Session | None = None) -> None:
        """Takes of this session that wait, in other threads of this process, return with what there is."""
        self._calls(db).takes(session or self._own_session(db)).end_waits()

    # Verbs of the holder.

    def ack(self, tr: Any, task: Task | str, *, session: Session | None = None) -> Task:
        """The task is done and gone. Raises NotTaken: the lease is over, or somebody else's; nothing changes.

        Reads the task serialisably and clears it; conflicts with any change of it. Beside the work's own
        writes, in the caller's transaction, this makes the effect exactly-once.
        """
        calls, target = self._calls(tr), self._target(tr, task, session)
        if is_transaction(tr):
            return calls.within(writable(tr), lambda change: verbs.ack(change, target))
        return calls.acks.ack(target)

    def release(
        self,
        tr: Any,
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
        if later_us and failure is None:
            self._shape.kind.require("delay")
        target = self._target(tr, task, session)
        return self._once(tr, lambda change: verbs.release(change, target, later_us, failure))

    def defer(self, tr: Any, task: Task | str, delay: float, *, session: Session | None = None) -> Task:
        """Give the task back, for others to have in `delay` seconds: `release` for queues of every kind.

        Raises NotTaken, InvalidArgument. Reads and moves the task; conflicts with any change of it.
        """
        later_us, target = delay_us(delay), self._target(tr, task, session)
        return self._once(tr, lambda change: verbs.release(change, target, later_us, None))

    def touch(self, tr: Any, task: Task | str, increment: float, *, session: Session | None = None) -> Task:
        """Hold the task, and let it live, for `increment` seconds longer; later leases of it too.

        Raises InvalidArgument (a ValueError) for an increment that is not positive, NotTaken,
        UnsupportedOption. Reads and writes the task; conflicts with any change of it.
        """
        if not is_number(increment) or increment <= 0:
            raise InvalidArgument(name="increment", wanted="a positive number of seconds", got=increment)
        target = self._target(tr, task, session)
        return self._once(tr, lambda change: verbs.touch(change, target, span_us("increment", increment)))

    def renew(self, tr: Any, tasks: Sequence[Task]) -> dict[str, float | None]:
        """Hold tasks for their whole ttr from now; until when, by id, those that are still held, in order:
        seconds since the epoch, None for ever.

        Unlike `touch` it leaves their ttr and ttl as they are, counts nothing, and is for queues of every
        kind. Raises TooMuchForOneTransaction for more than limits.VERB_BATCH. Reads the tasks and writes
        those that are held; conflicts with any change of them.
        """
        targets = [self._target(tr, task, None) for task in tasks]
        checked_verb_batch(len(targets))
        return run(tr, lambda tr: self._calls(tr).within(writable(tr), partial(verbs.renew, targets=targets)))

    def exhaust(self, tr: Any, task: Task, failures_max: int) -> bool:
        """Bury the task if so many of its attempts have failed, as the queue knows it now; whether they have.

        Raises NotTaken. Reads the task, and its failures by snapshot; moves it; conflicts with any change of
        it.
        """
        target = self._target(tr, task, None)
        return self._once(tr, lambda change: verbs.exhaust(change, target, failures_max))

    def excuse(self, tr: Any, task: Task) -> bool:
        """The lease of a taken task has ended, or is to end, only because the database was away: that does
        not count as a failed attempt. Whether there was anything to do; twice is once.

        What is still taken is released; what has been counted is taken back, whatever has become of the task,
        and a lease that somebody else has on it stays. What was buried for it (`exhaust`) is ready again.
        Reads the task, and its failures by snapshot; writes both; conflicts with any change of the task.
        """
        target, attempt = self._target(tr, task, None), task.attempts
        return self._once(tr, lambda change: excuse(change, target.id, target.token, attempt))

    # Verbs of anybody.

    def bury(self, tr: Any, task: Task | str, *, failure: Failure | None = None) -> Task:
        """Put the task aside until it is kicked. With a `failure` the attempt counts as failed, and that is
        written down with the task. Raises TaskNotFound, NotTaken for a Task whose lease is over.

        Reads and moves the task; conflicts with any change of it.
        """
        target = self._target(tr, task, None)
        return self._once(tr, lambda change: verbs.bury(change, target, failure))

    def delete(self, tr: Any, task: Task | str) -> Task:
        """Remove the task. Raises, reads and conflicts like `bury`; clears the task."""
        target = self._target(tr, task, None)
        return self._once(tr, lambda change: verbs.delete(change, target))

    def peek(self, tr: Any, task: Task | str) -> Task:
        """The task as it is now. Raises TaskNotFound. Reads it serialisably; conflicts with its changes."""
        target = self._target(tr, task, None)
        return run(tr, lambda tr: verbs.peek(self._change(tr), target))

    def kick(self, tr: Any, count: int = 1) -> int:
        """Make the first `count` buried tasks ready again; how many there were.

        Given a database: in transactions of at most limits.VERB_BATCH; each task is kicked or not. Given a
        transaction: raises TooMuchForOneTransaction beyond that. Reads and moves the tasks; conflicts with
        any change of them.
        """
        checked_count_of_any(count)
        kicked = 0
        if is_transaction(tr) and count > limits.VERB_BATCH:
            verbs.require_few(self._change(tr), self._shape.keys.buried)
        while kicked < count:
            batch = min(count - kicked, limits.VERB_BATCH)
            more, looked = self._once(tr, partial(verbs.kick, count=batch))
            kicked += more
            if looked < batch:
                break
        return kicked

    def release_all(self, tr: Any) -> None:
        """Release every taken task, whoever holds it.

        Given a database: in transactions of at most limits.VERB_BATCH. Given a transaction: raises
        TooMuchForOneTransaction beyond that. Reads and moves the tasks; conflicts with any change of them.
        """
        taken = self._shape.keys.taken
        if is_transaction(tr):
            verbs.require_few(self._change(tr), taken)
        while self.release_some(tr):
            pass

    def release_some(self, tr: Any, count: int = limits.VERB_BATCH) -> int:
        """Release up to `count` taken tasks, at most limits.VERB_BATCH; how many there were.

        Reads and moves the tasks; conflicts with any change of them.
        """
        few, taken = min(checked_count_of_any(count), limits.VERB_BATCH), self._shape.keys.taken
        return self._once(tr, lambda change: verbs.release_taken(change, taken, few))

    def truncate(self, tr: Any) -> None:
        """Remove every task. One range clear; conflicts with every call on a task that is there."""
        self._once(tr, verbs.truncate)

    def truncate_some(self, tr: Any, count: int = limits.VERB_BATCH) -> int:
        """Remove the first `count` tasks that came, at most limits.VERB_BATCH; how many there were.

        For millions, on an engine where clearing costs as much as it removes: repeated until it says 0, this
        is a `truncate` in bounded transactions. Reads the tasks by snapshot and clears them; conflicts with
        any change of them.
        """
        few = min(checked_count_of_any(count), limits.VERB_BATCH)
        return self._once(tr, partial(verbs.remove_first, count=few))

    def busy(self, tr: Any) -> str:
        """Why the queue cannot be dropped: somebody waits for tasks, or holds one. Nothing, if it can.

        Reads the line and the taken tasks, serialisably; conflicts with whoever joins the line or takes.
        """
        return run(tr, lambda tr: self._busy(self._change(tr)))

    def drop(self, tr: Any) -> None:
        """Remove the queue and all that is in it. Raises QueueBusy if somebody waits for tasks or holds one.

        Reads the line and the taken tasks serialisably; clears the definition and the contents; conflicts
        with every call on the queue.
        """
        self._once(tr, self._drop)

    # Pausing.

    def pause(self, tr: Any) -> None:
        """From now on nothing is taken, until `resume`: takes find nothing, or wait. Tasks may be put, and
        those that are held ended. Twice is once.

        Writes a flag that every take reads; conflicts with takes.
        """
        self._once(tr, verbs.pause)

    def resume(self, tr: Any) -> None:
        """Let tasks be taken again; whoever waits is told. Clears the flag; conflicts with takes."""
        self._once(tr, verbs.resume)

    def paused(self, tr: Any) -> bool:
        """Whether the queue is paused. Reads the flag; conflicts with `pause` and `resume`."""
        return run(tr, lambda tr: verbs.is_paused(self._change(tr)))

    # Looking.

    def failures(self, tr: Any, task: Task | str) -> list[Failure]:
        """What is written down of the attempts that failed, the last limits.FAILURES_KEPT, the oldest first.

        Raises TaskNotFound. Reads the task, and the failures by snapshot; conflicts with any change of it.
        """
        id_ = id_bytes(task.id if isinstance(task, Task) else task)
        return run(tr, lambda tr: verbs.failures_of(self._change(tr), id_))

    def statistics(self, tr: Any) -> Statistics:
        """What there is and what has been done: {"tasks": {...}, "calls": {...}}, exact.

        Reads two keys by snapshot; conflicts with nothing. Tasks are counted in the state that is stored: one
        whose time has just come may not have been swept yet.
        """
        return run(tr, partial(statistics_in, self._shape))

    def key_statistics(self, tr: Any, limit: int) -> list[KeyStatistics]:
        """The keys of which most tasks are waiting, up to `limit` and limits.KEYS_LOOKED_AT_MAX, busiest
        first; how many tasks of each there are in each state, and its first that waits: in a micro-queue with
        priorities that is the one whose turn is next, elsewhere the oldest.

        The numbers are exact, as of what is stored. Which keys are found is exact, too, while no more than
        limits.KEYS_LOOKED_AT_MAX have any tasks. Beyond, those with 64 and more waiting are found by the
        magnitude of their number; with too many of those as well, a key that is left out has less than four
        times as many waiting as any that is told. Where fewer are found than `limit`, some others follow.
        Reads by snapshot; conflicts with nothing. Raises UnsupportedOption for a kind without keys,
        InvalidArgument.
        """
        checked_keys(limit)
        discipline = self._shape.discipline
        if not isinstance(discipline, Keyed):
            raise UnsupportedOption(kind=self.kind, option="statistics by key")
        now_us = round(self._of(tr).runtime.now() * 1_000_000)
        return run(tr, partial(key_statistics_in, self._shape, discipline, limit, now_us))

    def tasks(self, tr: Any, state: TaskState | str, limit: int) -> list[Task]:
        """The first tasks in that state, up to `limit`, in order. Reads by snapshot, without conflicts.

        Given a database: above limits.BATCH_BYTES_MAX bytes of data in several transactions, and a task that
        has left the state before its data is read is left out. Given a transaction: raises
        TooMuchForOneTransaction for more bytes, unless they are one task's. Raises it, too, for a `limit`
        above limits.BATCH_ITEMS_MAX.
        """
        checked_count(limit)
        wanted = checked_state(state)

        def look(body: Callable[[Change], T]) -> T:
            return run(tr, lambda tr: body(self._change(tr)))

        pages, tasks = look(lambda change: listing.first_page(change, wanted, limit))
        if is_transaction(tr):
            require_one_page(pages)
        for page in pages[1:]:
            tasks += look(partial(listing.next_page, state=wanted, records=page))
        return tasks

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """Have `callback(task, event)` called for every change this process makes; the previous one.

        After the commit, in a thread of its own; what it raises is logged. None removes it.
        """
        return calls_of(self._database, self._shape).callbacks.install(callback)

    # How it is done.

    def _draft(self, data: Any, options: Mapping[str, Any]) -> Draft:
        payload = self._shape.codec.encode(data)
        if len(payload) > limits.PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
        return self._shape.draft(data, payload, options)

    def _put(self, target: Any, drafts: Sequence[Draft], timeout: float) -> list[Task]:
        if not is_number(timeout) or (timeout > 0 and is_transaction(target)):
            wanted = "seconds, and 0 in a transaction, which cannot wait"
            raise InvalidArgument(name="timeout", wanted=wanted, got=timeout)
        if timeout:
            self._shape.kind.require("capacity")
        calls = self._calls(target)
        if is_transaction(target):
            return calls.put_within(writable(target), drafts)
        return calls.put(drafts, timeout)

    def _take(self, target: Any, count: int, timeout: float | None, session: Session) -> Sequence[Task]:
        calls = self._calls(target)
        if is_transaction(target):
            return calls.take_within(writable(target), count, session)
        if timeout is not None and timeout <= 0:
            return calls.takes(session).take(count)
        timeout_s = limits.SPAN_MAX_S if timeout is None else min(timeout, limits.SPAN_MAX_S)
        return calls.takes(session).wait(timeout_s, count)

    def _once(self, target: Any, body: Callable[[Change], T]) -> T:
        calls = self._calls(target)
        return calls.within(writable(target), body) if is_transaction(target) else calls.once(body)

    def _change(self, tr: Transaction) -> Change:
        return self._calls(tr).source.change(tr)

    def _calls(self, target: Any) -> TaskCalls:
        return calls_of(self._of(target), self._shape)

    def _of(self, target: Any) -> Database:
        return self._database if is_transaction(target) else as_database(target)

    def _own_session(self, target: Any) -> Session:
        return keeper_of(self._of(target), self._shape.root).own()

    def _target(self, tr: Any, task: Task | str, session: Session | None) -> Target:
        if isinstance(task, Task):
            holder = b"" if task.token else self._holder(tr, session)
            return Target(id_bytes(task.id), task.token, holder, task.data)
        return Target(id_bytes(task), None, self._holder(tr, session))

    def _holder(self, tr: Any, session: Session | None) -> bytes:
        keeper = keeper_of(self._of(tr), self._shape.root)
        return keeper.own_id() if session is None else session.id

    def _busy(self, change: Change) -> str:
        return listing.busy(change, self._calls(change.tr).source.line)

    def _drop(self, change: Change) -> None:
        busy = self._busy(change)
        if busy:
            raise QueueBusy(name=self.name, reason=busy)
        self._shape.registry.drop(change.tr, self.name)


def checked_verb_batch(count: int) -> None:
    """Raises TooMuchForOneTransaction."""
    if count > limits.VERB_BATCH:
        raise TooMuchForOneTransaction(
            count=count, size_bytes=0, count_max=limits.VERB_BATCH, size_bytes_max=limits.BATCH_BYTES_MAX
        )


def owned(settings: Settings, session: Session) -> Settings:
    return Settings(**{**settings.to_options(), "temporary": session.id.hex()})


def list_queues(db: Any, *, root: Any = DEFAULT_ROOT) -> list[str]:
    """The names of all queues under the root, in order. Reads by snapshot; conflicts with nothing."""
    return [definition.name for definition in _definitions(db, Registry(root))]


def statistics(db: Any, *, root: Any = DEFAULT_ROOT) -> dict[str, Statistics]:
    """The statistics of every task queue under the root. Reads by snapshot; conflicts with nothing."""
    registry = Registry(root)
    shapes = [Shape(registry, found) for found in _definitions(db, registry) if is_kind(found.kind)]
    return {shape.name: run(db, partial(statistics_in, shape)) for shape in shapes}


def _definitions(db: Any, registry: Registry) -> list[Definition]:
    found: list[Definition] = []
    while more := registry.names(db, found[-1].name if found else ""):
        found += more
    return found


def statistics_in(shape: Shape, tr: Any) -> Statistics:
    check = shape.guard(tr)
    live, calls = tr.snapshot.get(shape.keys.live), tr.snapshot.get(shape.keys.calls)
    check()
    return statistics_of(live.value, calls.value)


def key_statistics_in(
    shape: Shape, discipline: Keyed, limit: int, now_us: int, tr: Any
) -> list[KeyStatistics]:
    check = shape.guard(tr)
    found = busiest_keys(tr, discipline, limit, now_us)
    check()
    return found


def checked_state(state: TaskState | str) -> TaskState:
    """Raises InvalidArgument."""
    try:
        return TaskState(state)
    except ValueError:
        wanted = "a TaskState, or its letter"
        raise InvalidArgument(name="state", wanted=wanted, got=state) from None


def checked_count_of_any(count: int) -> int:
    """Raises InvalidArgument."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InvalidArgument(name="count", wanted="a whole number, zero or more", got=count)
    return count
