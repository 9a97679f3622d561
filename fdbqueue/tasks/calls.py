"""The services of one process for one task queue of one database: combined puts and acks, takes for each
session, callbacks.

Puts: the put of one transaction, through the stages of features, into the partitions of a queue.
A feature may answer for a task in place of its put, or write beside it. It has a stage (feature.py), which
goes on with the stages behind it. The last one is the put itself, the same for every queue.

A task with a task key goes to the partition of that key. The others of a transaction go to one open
partition, the next in the turn of the process; so tasks that are put together stay together, in order. A
queue without partitions is its own only part.

Swept: what the keeper sweeps of a queue: tasks, the keys of features, and the end of a repartition.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, count, repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import WHOLE_MAX
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.calls import Combiner, Waiter
from fdbqueue.core.database import Database, Service, conflict_in, run
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
from fdbqueue.core.partitions import Current, PartitionGone, Plan, home_of
from fdbqueue.core.runtime import Runtime, Stop
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.core.sessions.session import OwnSession, Session, ask_alive, own_session_of
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.capacity import admit
from fdbqueue.tasks.change import Change, task_of
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.feature import (
    SWEPT,
    Answers,
    Feature,
    Go,
    NoRoom,
    Site,
    Stage,
    feature_of_tasks,
    stages_of,
)
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import Parts, TaskSource, WideTasks
from fdbqueue.tasks.stored.records import Extra, count_of, extra_to_bytes, id_bytes
from fdbqueue.tasks.verbs import Target

if TYPE_CHECKING:
    from fdbqueue.tasks.acks import Acks, Refill, TakeAlong
    from fdbqueue.tasks.altering import Altering
    from fdbqueue.tasks.repartition import Settling


_task_key, _data, _extra = attrgetter("key"), attrgetter("data"), attrgetter("extra")
_place, _places, _drafts = itemgetter(0), attrgetter("places"), attrgetter("drafts")


class _Batch(Struct):
    """The drafts for one partition, and their places among all drafts. `index`: the reply of ask_index."""

    change: Change
    drafts: Sequence[Draft]
    places: Sequence[int]
    index: Callable[[], int]


class Put(Struct):
    """The put of one transaction. `turn` chooses the partition of drafts without a task key."""

    parts: Parts
    tr: Transaction
    plan: Plan | None
    """The plan by which the queue is known; a conflict if it has changed."""
    random: bytes
    turn: int = 0
    is_guarded: bool = False

    def run(self, drafts: Sequence[Draft]) -> Answers:
        """Put drafts through the stages of their features, in the order of feature.STAGES."""
        go: Go = self.ask
        if any(map(_extra, drafts)):
            for stage in reversed(stages_of(drafts)):
                go = partial(partial, stage.put, self, go)  # a stage asks for nothing before its turn
        return go(drafts)()

    def ask(self, drafts: Sequence[Draft]) -> Callable[[], Answers]:
        """Ask for the reads of a put, in one round trip. The reply puts the tasks, and returns them.

        Reads: as `ask_guard`; of each partition, the last task by snapshot, and the discipline's reads; with
        a capacity, the counters of all partitions by snapshot.
        Conflicts: a change of the plan; with a capacity, as in capacity.py.
        """
        check, plan, batches = self.ask_guard(), self.plan, list[_Batch]()
        # Read once: another thread may follow a change of it meanwhile.
        capacity = self.parts.shape.settings.capacity or 0
        sizes = self.parts.ask_size(self.tr) if capacity else None
        routes = {0: range(len(drafts))} if plan is None else self._routed(plan, drafts)
        for number, places in routes.items():
            change = self.change(number)
            few = drafts if len(routes) == 1 else [drafts[at] for at in places]
            batches.append(_Batch(change, few, places, ask_index(change, few)))
        return partial(self._put, check, sizes, capacity, batches)

    def ask_guard(self) -> Callable[[], None]:
        """Ask once for the queue, and for the session that owns a temporary one. The reply raises
        QueueDropped, UnknownSession, or a conflict if the plan has changed.
        """
        if self.is_guarded:
            return _checked
        self.is_guarded = True
        check, shape = self.parts.zero.guard(self.tr), self.parts.shape
        return check if shape.owner is None else partial(_run, check, ask_owner(self.tr, shape))

    def change(self, number: int) -> Change:
        """The change of a partition. Raises: a conflict if another plan is known by now."""
        change = (self.parts.zero if self.plan is None else self.parts.part(number)).change(self.tr)
        if change.plan is not self.plan:
            raise conflict_in(self.tr)
        return change

    def _routed(self, plan: Plan, drafts: Sequence[Draft]) -> Mapping[int, Sequence[int]]:
        """The places of the drafts, by partition."""
        by_key = self.parts.shape.kind.supports("key")
        found: dict[int, list[int]] = {}
        for at, draft in enumerate(drafts):
            number = home_of(draft.key, plan.count) if by_key else self.turn % plan.count
            found.setdefault(number, []).append(at)
        return found

    def _put(
        self,
        check: Callable[[], None],
        sizes: Callable[[], int] | None,
        capacity: int,
        batches: Sequence[_Batch],
    ) -> Answers:
        check()
        full = None if sizes is None else self._admit(sizes, capacity, batches)
        if full is not None:
            return full
        tasks: list[Any] = []
        for batch in batches:
            records = edges.put(batch.change, batch.drafts, batch.index(), self.random)
            tasks += map(task_of, records, map(_data, batch.drafts))
        for batch in batches:
            batch.change.finish()
        if len(batches) == 1:
            return tasks
        placed = zip(chain.from_iterable(map(_places, batches)), tasks, strict=True)
        return [task for _, task in sorted(placed, key=_place)]

    def _admit(self, sizes: Callable[[], int], capacity: int, batches: Sequence[_Batch]) -> NoRoom | None:
        """Sweep while there is no room, and admit the tasks: all partitions share the seats and the gate of
        partition 0, so the bound holds for their sum. None if there is room.

        Expired tasks make room: the call sweeps at most limits.TIDY_ROUNDS_MAX batches.
        Conflicts: a change of a swept task; as `admit`.
        """
        tr, parts = self.tr, self.parts
        wanted, count, more_due = sum(map(len, map(_drafts, batches))), sizes(), True
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if count + wanted <= capacity or not parts.sweep(tr):
                more_due = False
                break
            for batch in batches:  # the sweep may have changed the task keys of the drafts
                batch.change.ask_create(set(map(_task_key, batch.drafts)))
            count = parts.ask_size(tr)()
        if admit(tr, parts.shape.keys, capacity, count, wanted, self.random):
            return None
        return NoRoom(count, more_due, parts.buried(tr))


def tasks_of(answers: Sequence[Any]) -> list[Task]:
    """The tasks of one caller; none if its put is postponed. Raises: an answer that is an error."""
    for answer in answers:
        if isinstance(answer, FdbQueueError):
            raise answer
    return [*filter(None, answers)]


Verb = Callable[[Change, Sequence[Target]], Sequence[bool]]


def _targets(tasks: Sequence[Task]) -> list[Target]:
    return [Target(id_bytes(task.id), task.token) for task in tasks]


def ask_index(change: Change, drafts: Sequence[Draft]) -> Callable[[], int]:
    """Ask for the reads of a put into one partition. The reply is the index of the first new task.

    Reads: the last task by snapshot; the discipline's reads for a put.
    """
    keys = change.shape.keys
    last = change.tr.snapshot.get_range(keys.own_tasks.start, keys.own_tasks.stop, limit=1, reverse=True)
    if change.puts_read:
        change.ask_create(set(map(_task_key, drafts)))

    def index() -> int:
        found = last.to_list()
        return keys.index_of(found[0].key) + 1 if found else keys.first_index

    return index


def ask_owner(tr: Transaction, shape: Shape) -> Callable[[], None]:
    """Ask for the session that owns a temporary queue. The reply raises UnknownSession."""
    return _checked if shape.owner is None else ask_alive(tr, shape.root, shape.owner)


def _run(*checks: Callable[[], None]) -> None:
    for check in checks:
        check()


def _checked() -> None:
    """The reply of a check that has been made, or is not needed."""


class Swept:
    def __init__(self, parts: Parts, runtime: Runtime) -> None:
        self.name = parts.zero.name
        self.guard = parts.zero.guard
        self._parts = parts
        self._of_tasks = tuple(map(feature_of_tasks, SWEPT))
        self._settling: Settling | None = None
        self._altering: Altering | None = None
        self._monotonic = runtime.monotonic

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked = [self._parts.ask_next_due(tr), *(one.ask_due(site) for one, site in self._swept(tr))]

        def reply() -> int | None:
            if self._due_settling() is not None:
                return 0
            return min((due for ask in asked if (due := ask()) is not None), default=None)

        return reply

    def tidy(self, tr: Transaction) -> bool:
        return (
            self._parts.tidy(tr)
            or self._settle(tr)
            or any(feature.sweep(site) for feature, site in self._swept(tr))
        )

    def _swept(self, tr: Transaction) -> Iterator[tuple[Feature, Site]]:
        """The features, each with the parts of the queue in which it has keys of its own that come due."""
        for feature in (*self._of_tasks, *self._parts.shape.sweeping):
            for source in self._parts.holding() if feature.in_each_part else (self._parts.zero,):
                yield feature, source.change(tr).site

    def _settle(self, tr: Transaction) -> bool:
        settling = self._due_settling()
        return settling is not None and settling.step(tr)

    def _due_settling(self) -> "Settling | Altering | None":
        """The steps towards the end of a repartition, or of a change of options; None if none is due."""
        if self._parts.shape.settings.settling is not None:
            if self._altering is None:
                self._altering = late.altering.Altering(self._parts)
            return self._altering
        if self._parts.plan is None:
            return None
        if self._settling is None:
            self._settling = late.repartition.Settling(self._parts, self._monotonic)
        return self._settling if self._settling.is_due() else None


T = TypeVar("T")

_payload, _key, _draft = attrgetter("payload"), attrgetter("key"), itemgetter(0)
_goes_alone = attrgetter("goes_alone")
SWEPT_OF_ROOT = ("fdbqueue.tasks.group_settling:Settling", "fdbqueue.tasks.trashed:Emptying")
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
        lock = database.runtime.lock()
        self.current = None if shape.current is None else Current(shape.registry, shape.definition, lock)
        parts = Parts(shape.following(self.current), database, self.callbacks)
        self._swept = Swept(parts, database.runtime)
        keeper.look_after(self._swept)  # for as long as this lives
        for name in SWEPT_OF_ROOT:
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
        self._puts_in = defaultdict[tuple[Stage, ...], Combiner](
            partial(writes, database, shape.root, self._put_all, is_plain=shape.codec.is_plain)
        )
        self._puts = self._puts_in[()]
        self._puts_alone = writes(database, shape.root, self._put_all_alone, is_plain=shape.codec.is_plain)
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
                tasks = self._put_in_stages(drafts, drafts[0].extra, size_bytes)
            else:
                items = list(zip(drafts, repeat(next(self._turns))))  # the other one has no end
                tasks = list(self._puts.call(items, len(items), size_bytes).answer)
            # Without a task, the queue has got a capacity meanwhile.
            return tasks or self._put_when_room(drafts, self._runtime.monotonic() + timeout_s, waiter)

    def put_alone(self, draft: Draft, stop: Stop | None) -> None:
        """Put a task for a face that knows no partitions.

        Raises: UnsupportedOption if the queue has some; WaitStopped once `stop` is set.
        """
        with self._database.waiter(stop):
            self._puts_alone.call([draft], 1, len(draft.payload))

    def _put_in_stages(self, drafts: Sequence[Draft], extra: Extra, size_bytes: int) -> list[Task]:
        """Combine with the puts that have the same stages, if any. Without an answer, the queue has a
        capacity.
        """
        stages = stages_of(drafts[:1])
        if any(map(_goes_alone, stages)):
            answers = self._put_if_room(drafts)
            return [] if isinstance(answers, NoRoom) else tasks_of(answers)
        size_bytes += limits.EXTRA_COPIES * len(drafts) * len(extra_to_bytes(extra))
        for stage in stages:
            size_bytes += stage.size_bytes(drafts)
        items = list(zip(drafts, repeat(next(self._turns))))
        put = partial(self._puts_in[stages].call, items, len(items), size_bytes)
        while not (tasks := tasks_of(put().answer)) and not self.shape.settings.capacity:
            pass  # it was postponed: the oldest put of a transaction never is
        return tasks

    def _put_when_room(self, drafts: Sequence[Draft], until: float, waiter: Waiter) -> list[Task]:
        room = late.capacity.Room(self._database, self.parts.holding, count_of, self._bound, len(drafts))
        return self._tasks(drafts, room.put(partial(self._put_if_room, drafts), until, waiter))

    def _bound(self) -> int:
        return self.shape.settings.capacity or WHOLE_MAX

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
        if wanted > capacity:
            raise BatchOverCapacity(**told, wanted=wanted)
        cure = late.rows.cure_of_buried(name) if 2 * answers.buried > answers.size else ""
        raise QueueFull(**told, wanted=wanted, cure=cure)

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
        self,
        session: Session | None,
        count: int,
        timeout_s: float,
        stop: Stop | None = None,
        overtake: int = 0,
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
                found = () if plan is None else self._take_at_home(plan, holder, count, stop, overtake)
                if not found:
                    wanted = (holder, 0 if plan is None else WIDE)
                    takes = self._takes.known.get(wanted) or self._takes.of(*wanted)
                    if timeout_s > 0:
                        found = takes.wait(timeout_s, count, stop, overtake)
                    else:
                        found = takes.take(count, stop, overtake)
                if not found:
                    source = self.source if plan is None else self.parts.wide
                    found = self._take_again(source, partial(takes.take, count, stop, overtake), until)
            except UnknownSession:
                if session is not None:
                    raise
            else:
                if found or (plan is None) == (self._current.plan is None):
                    return found
            timeout_s = max(0.0, until - self._runtime.monotonic())  # the session died, or partitions came

    def _take_at_home(
        self, plan: Plan, session: Session, count: int, stop: Stop | None, overtake: int
    ) -> Sequence[Task]:
        number = self._next_home(plan, session)
        with suppress(PartitionGone):  # since it was chosen
            return self._takes.of(session, number).take(count, stop, overtake)
        return ()

    def _next_home(self, plan: Plan, session: Session) -> int:
        return self._homes.next(plan.serving, plan.serving, session.id)

    def _take_again(
        self, source: TaskSource | WideTasks, take: Callable[[], Sequence[Task]], until: float
    ) -> Sequence[Task]:
        """Take after overdue sessions have been ended."""
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
            self._are_held,
            is_named=session.name is not None,
            is_plain=self.shape.codec.is_plain,
            lost=partial(self._start_elsewhere, source),
            has_ended=has_ended,
        )

    def _undo_take(self, tasks: Sequence[Task]) -> None:
        """Undo a take that has no caller any more. Best effort: if it fails, the leases end by time."""

        def body(tr: Transaction) -> None:
            if all(self._without_failure(tr, tasks, verbs.undo_take)):
                may_be_lost(tr)

        with suppress(FdbQueueError, *engine_errors()):
            run(self._database, body, timeout_s=limits.CLOSE_TIMEOUT_S)

    def _are_held(self, tr: Transaction, tasks: Sequence[Task]) -> bool:
        """True if a take in doubt has a lease. If not, its caller gets other tasks, and a lease that has
        ended counts no failure. That is written apart from `tr`: if the session has ended, `tr` commits
        nothing.
        """
        if any(self.parts.each(tr, _targets(tasks), verbs.are_held)):
            return True
        # A commit that arrives now keeps its lease: `tr` conflicts with it, and the next attempt finds it.
        run(self._database, lambda own: self._without_failure(own, tasks, verbs.are_held))
        return False

    def _without_failure(self, tr: Transaction, tasks: Sequence[Task], verb: Verb) -> list[bool]:
        """Call the verb for each. A lease for which it gives false counts no failure, if it has ended."""
        targets = _targets(tasks)
        found = self.parts.each(tr, targets, verb)
        for task, target, is_so in zip(tasks, targets, found, strict=True):
            if not is_so:
                self.parts.within(tr, partial(verbs.undo_lost_take, task=task), target.id)
        return found

    @cached_property
    def acks(self) -> "Acks":
        return late.acks.Acks(self._database, self.parts, self.callbacks, self._taking)

    def acks_with(self, refill: "Refill") -> "Acks":
        return late.acks.Acks(self._database, self.parts, self.callbacks, self._taking, refill)

    def _taking(self, session: Session, count: int, overtake: int) -> "TakeAlong":
        """A take without a wait, for a transaction that acks, too."""
        number = 0 if (plan := self._current.plan) is None else self._next_home(plan, session)
        taker = self._taker(self.parts.part(number), session)
        params, now_us = self._new_params(session), self._runtime.now_us
        takes = self._takes.of(session, number) if overtake else None
        left = None if takes is None else takes.left_by((overtake,))

        def take(tr: Transaction) -> Sequence[Task]:
            return taker.take_in_turn(tr, count, params, now_us(), left).values

        if takes is None:
            return late.acks.TakeAlong(take)
        state = takes.overtaking
        return late.acks.TakeAlong(take, bool(left), state.won, partial(state.lost, overtake))

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
        return self._runtime.random_bytes(late.stored.discipline.PLACE_BYTES)
