"""What one process keeps for one task queue of one database: combined puts and acks, takes for
each session, callbacks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.errors import QueueFull
from fdbqueue.line.combine import Call, Combiner
from fdbqueue.line.taking import Takes
from fdbqueue.receipts import run_once
from fdbqueue.recipe.items import Taken
from fdbqueue.seam import Future, Transaction
from fdbqueue.session import Keeper, Session, ask_alive, keeper_of
from fdbqueue.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.acks import Acks
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import Ask, TaskSource, lease_of, params_of
from fdbqueue.tasks.statistics import count_of

T = TypeVar("T")


def calls_of(database: Database, shape: Shape) -> "TaskCalls":
    keeper = keeper_of(database, shape.root)  # first: services are made one at a time
    key = ("tasks", shape.root.prefix, shape.definition.id)
    return database.service(key, lambda owner: TaskCalls(owner, shape, keeper))


def _nothing() -> None: ...


@dataclass(frozen=True)
class Full:
    """What a full queue says: when to ask again."""

    changed: Future
    due_us: int | None


class TaskCalls:
    def __init__(self, database: Database, shape: Shape, keeper: Keeper) -> None:
        self.callbacks = Callbacks(database)
        self.source = TaskSource(shape, database.runtime, self.callbacks)
        self.shape = shape
        self._database = database
        self._runtime = database.runtime
        self._lock = database.runtime.lock()
        self.acks = Acks(database, self.source)
        self._puts = Combiner(database.runtime, self._put_for)
        self._takes: dict[Session, Takes] = {}
        keeper.look_after(self.source)

    def close(self) -> None:
        """Nothing to end: callers that wait in the line meet DatabaseClosed."""

    def once(self, body: Callable[[Change], T]) -> T:
        """Run a verb; its effect happens once."""
        return run_once(self._database, self.shape.root, lambda tr: self.within(tr, body))

    def within(self, tr: Transaction, body: Callable[[Change], T]) -> T:
        """Run a verb in a transaction."""
        return self.source.within(tr, body)

    def new_lease(self, session: Session) -> Lease:
        return Lease(session.id, self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES))

    # Putting.

    def put(self, drafts: Sequence[Draft], timeout_s: float) -> list[Task]:
        """Raises QueueFull when there is no room at the end of `timeout_s`."""
        if not self.shape.settings.capacity:
            answer: list[Task] = self._puts.call(
                drafts, len(drafts), sum(len(draft.payload) for draft in drafts)
            ).answer
            return answer
        until = self._runtime.monotonic() + timeout_s
        while isinstance(tasks := self._put_if_room(drafts), NoRoom):
            if tasks.more_due:
                continue
            if self._runtime.monotonic() >= until:
                raise self.full(drafts, tasks)
            self._wait_for_room(len(drafts), until)
        return tasks

    def put_within(self, tr: Transaction, drafts: Sequence[Draft]) -> list[Task]:
        """Raises QueueFull."""
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        tasks = self.within(tr, lambda change: self._put(change, drafts, random))
        if isinstance(tasks, NoRoom):
            raise self.full(drafts, tasks)
        return tasks

    def full(self, drafts: Sequence[Draft], found: NoRoom) -> QueueFull:
        return QueueFull(
            item=drafts[0].data,
            current_size=found.size,
            capacity=self.shape.settings.capacity,
            name=self.shape.name,
        )

    def _put(self, change: Change, drafts: Sequence[Draft], random: bytes) -> list[Task] | NoRoom:
        return verbs.put(change, drafts, random, self.ask_owner)

    def ask_owner(self, tr: Transaction) -> Callable[[], None]:
        """A temporary queue takes nothing once the session is over that it would have gone with."""
        owner = self.shape.owner
        return _nothing if owner is None else ask_alive(tr, self.shape.root, owner)

    def _put_for(self, crew: Combiner, _: Call) -> None:
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        drafts = [draft for call in calls for draft in call.payload]
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_once(
            self._database,
            self.shape.root,
            lambda tr: self.within(tr, lambda change: self._put(change, drafts, random)),
            keep=lambda tasks: crew.deal(() if isinstance(tasks, NoRoom) else tasks, to_all=True),
        )

    def _put_if_room(self, drafts: Sequence[Draft]) -> list[Task] | NoRoom:
        # Not combined: one caller's task may fit where another's batch does not.
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        return self.once(lambda change: self._put(change, drafts, random))

    def _wait_for_room(self, wanted: int, until: float) -> None:
        full = run(self._database, lambda tr: self._watch_if_full(tr, wanted))
        if full is None:
            return
        patience = min(limits.LOOK_EVERY_S, until - self._runtime.monotonic())
        if full.due_us is not None:
            patience = min(patience, full.due_us / 1_000_000 - self._runtime.now())
        self._runtime.wait_any([full.changed], max(0.0, patience))
        full.changed.cancel()

    def _watch_if_full(self, tr: Transaction, wanted: int) -> Full | None:
        live, due = tr.snapshot.get(self.shape.keys.live), self.source.ask_next_due(tr)
        if count_of(live.value) + wanted <= (self.shape.settings.capacity or 0):
            return None
        return Full(tr.watch(self.shape.keys.calls), due())

    # Taking.

    def takes(self, session: Session) -> Takes:
        """Only calls of one session combine."""
        with self._lock:
            if session not in self._takes:
                self._takes = {known: takes for known, takes in self._takes.items() if not known.lost}
                self._takes[session] = self._new_takes(session)
            return self._takes[session]

    def _new_takes(self, session: Session) -> Takes:
        def take_in_turn(tr: Transaction, count: int, params: bytes, _: int) -> Taken:
            return self.source.take_in_turn(tr, count, lease_of(params), session.ask)

        return Takes(
            self._database,
            self.shape.root,
            self.source.line,
            take_in_turn,
            lambda: params_of(self.new_lease(session)),
        )

    def take_within(self, tr: Transaction, count: int, session: Session) -> Sequence[Task]:
        ask: Ask = session.ask
        return self.source.take(tr, count, self.new_lease(session), ask)
