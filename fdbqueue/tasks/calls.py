"""The services of one process for one task queue of one database: combined puts and acks, takes for each
session, callbacks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, repeat
from operator import attrgetter, itemgetter
from typing import TypeVar

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.calls import Combiner, Waiter
from fdbqueue.core.database import Database, Service, run
from fdbqueue.core.errors import (
    BatchOverCapacity,
    FdbQueueError,
    QueueFull,
    UnknownSession,
    UnsupportedOption,
)
from fdbqueue.core.line.taking import Taker, Takes
from fdbqueue.core.line.wide import WIDE, Homes, TakesOfParts
from fdbqueue.core.once import run_once, writes
from fdbqueue.core.partitions import Current, PartitionGone, Plan
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.core.sessions.session import OwnSession, Session, own_session_of
from fdbqueue.core.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.acks import Acks
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.feature import Answers, Stage, stages_of
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.parts import Parts, WideTasks
from fdbqueue.tasks.puts import Put, tasks_of
from fdbqueue.tasks.records.extra import extra_to_bytes
from fdbqueue.tasks.records.keys import Extra, id_bytes
from fdbqueue.tasks.records.statistics import count_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import TaskSource
from fdbqueue.tasks.swept import Swept
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")

_payload, _key, _draft = attrgetter("payload"), attrgetter("key"), itemgetter(0)
_goes_alone = attrgetter("goes_alone")
SWEPT = ("fdbqueue.tasks.groups.settling:Settling",)
"""Sweeps of the root beside those of its queues: the first round of the keeper imports them."""


def calls_of(database: Database, shape: Shape) -> "TaskCalls":
    found: TaskCalls | None = database.known(shape.service)
    return _first_calls(database, shape) if found is None else found


def _first_calls(database: Database, shape: Shape) -> "TaskCalls":
    # Services are made one at a time, and each before its users.
    keeper, own = keeper_of(database, shape.root), own_session_of(database, shape.root)
    care = database.service(shape.service[:-1], lambda owner: Care(owner, shape, keeper))
    return database.service(shape.service, lambda owner: TaskCalls(owner, shape, care, own))


class Care(Service):
    """The services that handles of all types share in a process: the present plan, callbacks and sweeping."""

    def __init__(self, database: Database, shape: Shape, keeper: Keeper) -> None:
        self.callbacks = Callbacks(database)
        self.keeper = keeper
        # A handle may have calls on several databases, and each has a plan of its own.
        self.current = None if shape.current is None else Current(shape.registry, shape.definition)
        parts = Parts(shape.following(self.current), database, self.callbacks)
        self._swept = Swept(parts, database.runtime)
        keeper.look_after(self._swept)  # for as long as this lives
        for name in SWEPT:
            keeper.sweep_root(name)

    def is_needed(self) -> bool:
        return self.callbacks.callback is not None


def require_alone(shape: Shape) -> None:
    """Raises: UnsupportedOption if the queue has partitions."""
    if shape.plan is not None:
        raise UnsupportedOption(kind=shape.kind.name, option="a PersistentQueue with partitions")


class TaskCalls(Service):
    """The services of handles of one type."""

    def __init__(self, database: Database, shape: Shape, care: Care, own_session: OwnSession) -> None:
        self.callbacks = care.callbacks
        self._care = care  # the queue of a call that waits is swept
        self.shape = shape.following(care.current)
        assert self.shape.current is not None  # the queue is registered
        self._current = self.shape.current
        self._own_session = own_session
        self.parts = Parts(self.shape, database, care.callbacks)
        self.source = self.parts.zero
        self._database = database
        self._runtime = database.runtime
        self.acks = Acks(database, self.parts, care.callbacks)
        self._puts_in = defaultdict[tuple[Stage, ...], Combiner](
            partial(writes, database, shape.root, self._put_all)
        )
        self._puts = self._puts_in[()]
        self._puts_alone = writes(database, shape.root, self._put_all_alone)
        self._turns = count(0 if self.parts.plan is None else self._first_turn())
        self._takes = TakesOfParts[Session](database.runtime, self.parts, self._new_takes)
        self._keeper = care.keeper
        self._homes = Homes(database, shape.root)
        self.steps: set[tuple[bytes, bytes | None, bytes, str]] = set()
        """The steps that this process runs now."""
        self.steps_lock = database.runtime.lock()

    def alone(self, tr: Transaction, verb: Callable[[Change], T]) -> T:
        """Run a verb of a face that knows no partitions.

        Raises: UnsupportedOption if the queue has some.
        """
        require_alone(self.shape)
        return self.source.within(tr, verb)

    def _new_params(self, session: Session) -> bytes:
        """A new lease, as `params_of`."""
        return session.id + self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES) + session.run_id

    # Putting.

    def _first_turn(self) -> int:
        """A random one: many processes may put one task each, and all of them would use partition 0."""
        return int.from_bytes(self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES))

    def put(self, drafts: Sequence[Draft], timeout_s: float, stop: Stop | None = None) -> list[Task]:
        """Raises: QueueFull if there is no room at the end of `timeout_s`; WaitStopped once `stop` is set."""
        with Waiter(self._database.waiters, (stop,)) as waiter:  # as Database.waiter, with fewer calls
            if self.shape.settings.capacity:
                return self._put_when_room(drafts, self._runtime.monotonic() + timeout_s, waiter)
            keys_bytes = limits.TASK_KEY_COPIES * sum(map(len, map(_key, drafts)))
            size_bytes = sum(map(len, map(_payload, drafts))) + keys_bytes
            if drafts[0].extra is not None:  # all drafts of a call have the same options
                return self._put_in_stages(drafts, drafts[0].extra, size_bytes)
            items = list(zip(drafts, repeat(next(self._turns))))  # the other one has no end
            return list(self._puts.call(items, len(items), size_bytes).answer)

    def put_alone(self, draft: Draft, stop: Stop | None) -> None:
        """Put a task for a face that knows no partitions.

        Raises: UnsupportedOption if the queue has some; WaitStopped once `stop` is set.
        """
        with self._database.waiter(stop):
            self._puts_alone.call([draft], 1, len(draft.payload))

    def _put_in_stages(self, drafts: Sequence[Draft], extra: Extra, size_bytes: int) -> list[Task]:
        """Combine with the puts that have the same stages, if any."""
        stages = stages_of(drafts[:1])
        if any(map(_goes_alone, stages)):
            return self._tasks(drafts, self._put_if_room(drafts))
        size_bytes += limits.EXTRA_COPIES * len(drafts) * len(extra_to_bytes(extra))
        for stage in stages:
            size_bytes += stage.size_bytes(drafts)
        items = list(zip(drafts, repeat(next(self._turns))))
        put = partial(self._puts_in[stages].call, items, len(items), size_bytes)
        while not (tasks := tasks_of(put().answer)):
            pass  # it was postponed: the oldest put of a transaction never is
        return tasks

    def _put_when_room(self, drafts: Sequence[Draft], until: float, waiter: Waiter) -> list[Task]:
        capacity = self.shape.settings.capacity or 0
        room = late.room.Room(self._database, self.parts.holding, count_of, lambda: capacity, len(drafts))
        return self._tasks(drafts, room.put(partial(self._put_if_room, drafts), until, waiter))

    def put_within(self, tr: Transaction, drafts: Sequence[Draft]) -> list[Task]:
        """Raises: QueueFull."""
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        return self._tasks(drafts, self._put_in(tr, drafts, random, next(self._turns)))

    def _tasks(self, drafts: Sequence[Draft], answers: Answers) -> list[Task]:
        """Raises: QueueFull, or the error that an answer is."""
        if not isinstance(answers, NoRoom):
            return tasks_of(answers)
        capacity, wanted, name = self.shape.settings.capacity or 0, len(drafts), self.shape.name
        told = {"name": name, "item": drafts[0].data, "current_size": answers.size, "capacity": capacity}
        raise (BatchOverCapacity if wanted > capacity else QueueFull)(**told, wanted=wanted)

    def _put_in(self, tr: Transaction, drafts: Sequence[Draft], random: bytes, turn: int) -> Answers:
        return Put(self.parts, tr, self._current.plan, random, turn).run(drafts)

    def _put_all(self, tr: Transaction, items: list[tuple[Draft, int]], random: bytes) -> Sequence[Task]:
        put = Put(self.parts, tr, self._current.plan, random, items[0][1])  # as _put_in, with one call less
        tasks = put.run(list(map(_draft, items)))
        return () if isinstance(tasks, NoRoom) else tasks

    def _put_all_alone(self, tr: Transaction, items: list[Draft], random: bytes) -> Sequence[Task]:
        # In the transaction: another process may have stored a plan that only the guard meets.
        require_alone(self.shape)
        tasks = Put(self.parts, tr, None, random).run(items)
        return () if isinstance(tasks, NoRoom) else tasks

    def _put_if_room(self, drafts: Sequence[Draft]) -> Answers:
        """Put in a transaction of its own, once. Not combined: one caller's task may fit, or be let in, where
        another's batch is not.
        """
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        put = partial(self._put_in, drafts=drafts, random=random, turn=next(self._turns))
        return run_once(self._database, self.shape.root, put)

    # Taking.

    def take(
        self, session: Session | None, count: int, timeout_s: float, stop: Stop | None = None
    ) -> Sequence[Task]:
        """Take up to `count` tasks; wait up to `timeout_s` for the first, zero or less not at all.

        `session` is None for this process's own. Overdue sessions are ended before the answer is empty.
        """
        until = self._runtime.monotonic() + timeout_s
        while True:
            plan, holder = self._current.plan, self._own_session.session if session is None else session
            try:
                if holder is None or (session is None and holder.lost):
                    holder = self._own_session.get()
                found = () if plan is None else self._take_at_home(plan, holder, count, stop)
                if not found:
                    wanted = (holder, 0 if plan is None else WIDE)
                    takes = self._takes.known.get(wanted) or self._takes.of(*wanted)
                    found = takes.wait(timeout_s, count, stop) if timeout_s > 0 else takes.take(count, stop)
                if not found:
                    source = self.source if plan is None else self.parts.wide
                    found = self._take_again(source, takes, count, until, stop)
            except UnknownSession:
                if session is not None:
                    raise
            else:
                if found or (plan is None) == (self._current.plan is None):
                    return found
            timeout_s = max(0.0, until - self._runtime.monotonic())  # the session died, or partitions came

    def _take_at_home(self, plan: Plan, session: Session, count: int, stop: Stop | None) -> Sequence[Task]:
        number = self._next_home(plan, session)
        with suppress(PartitionGone):  # since it was chosen
            return self._takes.of(session, number).take(count, stop)
        return ()

    def _next_home(self, plan: Plan, session: Session) -> int:
        return self._homes.next(plan.serving, plan.serving, session.id)

    def _take_again(
        self, source: TaskSource | WideTasks, takes: Takes, count: int, until: float, stop: Stop | None
    ) -> Sequence[Task]:
        """Take after overdue sessions have been ended."""
        take = partial(takes.take, count, stop)
        found = self._keeper.try_again(lambda: take() or None, source.ask_available, until) or ()
        if not found and source.has_passed():
            run(self._database, source.require_none_passed)
        return found

    def end_waits(self, session: Session) -> None:
        """End the waits of a session's takes."""
        for number in (0, WIDE):
            self._takes.of(session, number).end_waits()

    def _new_takes(self, session: Session, number: int, has_ended: Callable[[], bool]) -> Takes:
        ask = session.ask  # before it is kept: a wrong type would break the takes of all sessions
        found = self.parts.wide if number == WIDE else self.parts.part(number)
        source = self._source_of_taker(found)
        return Takes(
            self._database,
            self.shape.root,
            source.line,
            source.taker(ask).take_in_turn,
            partial(self._new_params, session),
            self._undo_take,
            is_named=session.name is not None,
            lost=partial(self._start_elsewhere, source),
            has_ended=has_ended,
        )

    def _undo_take(self, tasks: Sequence[Task]) -> None:
        """Undo a take that has no caller any more. Best effort: if it fails, the leases end by time."""
        targets = [Target(id_bytes(task.id), task.token) for task in tasks]

        def body(tr: Transaction) -> None:
            if all(self.parts.each(tr, targets, verbs.undo_take)):
                may_be_lost(tr)

        with suppress(FdbQueueError, *engine_errors()):
            run(self._database, body, timeout_s=limits.CLOSE_TIMEOUT_S)

    def take_within(self, tr: Transaction, count: int, session: Session) -> Sequence[Task]:
        """Take in a transaction of the caller: from the home first, then from all partitions."""
        params, now_us, plan = self._new_params(session), self._runtime.now_us(), self.parts.plan
        if plan is None:
            return self._taker(self.source, session).take(tr, count, params, now_us).values
        home = self._taker(self.parts.part(self._next_home(plan, session)), session)
        found: Sequence[Task] = ()
        with suppress(PartitionGone):
            found = home.take(tr, count, params, now_us, is_last=False).values
        return found or self._taker(self.parts.wide, session).take(tr, count, params, now_us).values

    def _taker(self, source: TaskSource | WideTasks, session: Session) -> Taker:
        return self._source_of_taker(source).taker(session.ask)

    def _source_of_taker(self, source: TaskSource | WideTasks) -> TaskSource | WideTasks:
        """`source`; in a bag, one whose takes begin at a place of their own."""
        if isinstance(source, WideTasks) or not self.shape.takes_anywhere:
            return source
        shape = source.shape.starting_at(self._new_place())
        return TaskSource(shape, self._runtime, self.callbacks, source.passed)

    def _start_elsewhere(self, source: TaskSource | WideTasks) -> None:
        """After a lost race: in a bag, the next take begins at another place."""
        if isinstance(source, TaskSource) and source.shape.takes_anywhere:
            source.shape.start_at(self._new_place())

    def _new_place(self) -> bytes:
        return self._runtime.random_bytes(late.disciplines.bag.PLACE_BYTES)
