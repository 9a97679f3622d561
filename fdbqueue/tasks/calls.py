"""The services of one process for one task queue of one database: combined puts and acks, takes for each
session, callbacks.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeVar

from fdbqueue import limits
from fdbqueue.binding import may_be_lost
from fdbqueue.calls.once import run_once
from fdbqueue.calls.writes import Writes
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.disciplines.bag import PLACE_BYTES, Bag
from fdbqueue.errors import FdbQueueError, QueueFull
from fdbqueue.line.taking import Takes
from fdbqueue.records.keys import id_bytes
from fdbqueue.records.statistics import count_of
from fdbqueue.runs import token_of
from fdbqueue.runtime import Stop
from fdbqueue.seam import Transaction
from fdbqueue.sessions.keeper import Keeper, keeper_of
from fdbqueue.sessions.session import Session, ask_alive
from fdbqueue.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.acks import Acks
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.room import Room
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import TaskSource, params_of
from fdbqueue.tasks.swept import swept
from fdbqueue.tasks.verbs import Target
from fdbqueue.waiters import Waiter

T = TypeVar("T")

_payload = attrgetter("payload")


def calls_of(database: Database, shape: Shape) -> "TaskCalls":
    keeper = keeper_of(database, shape.root)  # services are made one at a time, and each before its users
    key = ("tasks", shape.root.prefix, shape.definition.id)
    care = database.service(key, lambda owner: Care(owner, shape, keeper))
    return database.service((*key, shape.codec.key), lambda owner: TaskCalls(owner, shape, care))


class Care:
    """The services that handles of all types share in a process: callbacks and sweeping."""

    def __init__(self, database: Database, shape: Shape, keeper: Keeper) -> None:
        self.callbacks = Callbacks(database)
        self.keeper = keeper
        self._swept = swept(TaskSource(shape, database.runtime, self.callbacks))
        keeper.look_after(self._swept)  # for as long as this lives

    def close(self) -> None:
        """Does nothing: the keeper sweeps."""

    def is_needed(self) -> bool:
        return self.callbacks.callback is not None


def _or_none(take: Callable[[], Sequence[Task]]) -> Sequence[Task] | None:
    return take() or None


class TaskCalls:
    """The services of handles of one type."""

    def __init__(self, database: Database, shape: Shape, care: Care) -> None:
        self.callbacks = care.callbacks
        self._care = care  # the queue of a call that waits is swept
        self.source = TaskSource(shape, database.runtime, care.callbacks)
        self.within = self.source.within
        self.shape = shape
        self._database = database
        self._runtime = database.runtime
        self._lock = database.runtime.lock()
        self.acks = Acks(database, self.source)
        self._puts = Writes(database, shape.root, self._put_all)
        self._takes: dict[Session, Takes] = {}
        self._keeper = care.keeper

    def close(self) -> None:
        """Does nothing: the database has ended the waits."""

    def is_needed(self) -> bool:
        return False

    def once(self, body: Callable[[Change], T], may_be_lost: Callable[[T], bool] | None = None) -> T:
        """Run a verb; its effect happens once. `may_be_lost(answer)`: true if a power cut may undo it."""
        body_within = partial(self.within, verb=body)
        return run_once(self._database, self.shape.root, body_within, may_be_lost=may_be_lost)

    def new_lease(self, session: Session) -> Lease:
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        return Lease(session.id, token_of(random, session.run_id))

    # Putting.

    def put(self, drafts: Sequence[Draft], timeout_s: float, stop: Stop | None = None) -> list[Task]:
        """Raises: QueueFull if there is no room at the end of `timeout_s`; WaitStopped once `stop` is set."""
        with self._database.waiter(stop) as waiter:
            if self.shape.settings.capacity:
                return self._put_when_room(drafts, self._runtime.monotonic() + timeout_s, waiter)
            return list(self._puts.call(drafts, sum(map(len, map(_payload, drafts)))))

    def _put_when_room(self, drafts: Sequence[Draft], until: float, waiter: Waiter) -> list[Task]:
        """Raises: QueueFull."""
        capacity = self.shape.settings.capacity or 0
        room = Room(self._database, self.source, count_of, lambda: capacity, len(drafts))
        tasks = room.put(partial(self._put_if_room, drafts), until, waiter)
        if isinstance(tasks, NoRoom):
            raise self._full(drafts, tasks)
        return tasks

    def put_within(self, tr: Transaction, drafts: Sequence[Draft]) -> list[Task]:
        """Raises: QueueFull."""
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        tasks = self.within(tr, self._putting(drafts, random))
        if isinstance(tasks, NoRoom):
            raise self._full(drafts, tasks)
        return tasks

    def _full(self, drafts: Sequence[Draft], found: NoRoom) -> QueueFull:
        return QueueFull(
            item=drafts[0].data,
            current_size=found.size,
            capacity=self.shape.settings.capacity,
            name=self.shape.name,
        )

    def _putting(self, drafts: Sequence[Draft], random: bytes) -> Callable[[Change], list[Task] | NoRoom]:
        return partial(verbs.put, drafts=drafts, random=random, ask_owner=self.ask_owner)

    def ask_owner(self, tr: Transaction) -> Callable[[], None] | None:
        """Ask for the session of a temporary queue; the reply raises UnknownSession if it has ended."""
        owner = self.shape.owner
        return None if owner is None else ask_alive(tr, self.shape.root, owner)

    def _put_all(self, tr: Transaction, items: list[Draft], random: bytes) -> Sequence[Task]:
        tasks = self.within(tr, self._putting(items, random))
        return () if isinstance(tasks, NoRoom) else tasks

    def _put_if_room(self, drafts: Sequence[Draft]) -> list[Task] | NoRoom:
        # Not combined: one caller's task may fit where another's batch does not.
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        return self.once(self._putting(drafts, random))

    # Taking.

    def take(
        self, session: Session, count: int, timeout_s: float, stop: Stop | None = None
    ) -> Sequence[Task]:
        """Take up to `count` tasks; wait up to `timeout_s` for the first, zero or less not at all.

        Overdue sessions are ended before the answer is empty.
        """
        takes, until = self.takes(session), self._runtime.monotonic() + timeout_s
        found = takes.wait(timeout_s, count, stop) if timeout_s > 0 else takes.take(count, stop)
        if found:
            return found
        attempt = partial(_or_none, partial(takes.take, count, stop))
        found = self._keeper.try_again(attempt, self.source.ask_available, until) or ()
        if not found and self.source.passed:
            run(self._database, self.source.require_none_passed)
        return found

    def takes(self, session: Session) -> Takes:
        """The takes of one session: only these combine."""
        with self._lock:
            if session not in self._takes:
                self._takes = {known: takes for known, takes in self._takes.items() if not known.lost}
                self._takes[session] = self._new_takes(session)
            return self._takes[session]

    def _new_takes(self, session: Session) -> Takes:
        ask = session.ask  # before it is kept: a wrong type would break the takes of all sessions
        source = self._source_of_taker()
        return Takes(
            self._database,
            self.shape.root,
            source.line,
            source.taker(ask).take_in_turn,
            lambda: params_of(self.new_lease(session)),
            self._undo_take,
            is_named=session.name is not None,
            lost=partial(self._start_elsewhere, source),
        )

    def _undo_take(self, tasks: Sequence[Task]) -> None:
        """Undo a take that has no caller any more. Best effort: if it fails, the leases end by time."""
        targets = [Target(id_bytes(task.id), task.token) for task in tasks]

        def body(tr: Transaction) -> None:
            if self.within(tr, partial(verbs.undo_take, targets=targets)) == len(targets):
                may_be_lost(tr)

        with suppress(FdbQueueError, *engine_errors()):
            run(self._database, body, timeout_s=limits.CLOSE_TIMEOUT_S)

    def take_within(self, tr: Transaction, count: int, session: Session) -> Sequence[Task]:
        params = params_of(self.new_lease(session))
        taker = self._source_of_taker().taker(session.ask)
        return taker.take(tr, count, params, self._runtime.now_us()).values

    def _source_of_taker(self) -> TaskSource:
        """The source of the tasks; in a bag, one whose takes begin at a place of their own."""
        if not isinstance(self.shape.discipline, Bag):
            return self.source
        shape = self.shape.starting_at(self._new_place())
        return TaskSource(shape, self._runtime, self.callbacks, self.source.passed)

    def _start_elsewhere(self, source: TaskSource) -> None:
        """After a lost race: in a bag, the next take begins at another place."""
        if isinstance(source.shape.discipline, Bag):
            source.shape.discipline.start_at(self._new_place())

    def _new_place(self) -> bytes:
        return self._runtime.random_bytes(PLACE_BYTES)
