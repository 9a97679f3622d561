"""Puts: the put of one transaction, through the stages of features, into the partitions of a queue.

A feature may answer for a task in place of its put, or write beside it. It has a stage (feature.py), which
goes on with the stages behind it. The last one is the put itself, the same for every queue.

A task with a task key goes to the partition of that key. The others of a transaction go to one open
partition, the next in the turn of the process; so tasks that are put together stay together, in order. A
queue without partitions is its own only part.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.partitions import Plan, home_of
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import ask_alive
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import NoRoom, admit
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import Answers, Go, stages_of
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.payloads import task_of
from fdbqueue.tasks.shape import Shape

_key, _data, _extra = attrgetter("key"), attrgetter("data"), attrgetter("extra")
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
        sizes = self.parts.ask_size(self.tr) if self.parts.shape.settings.capacity else None
        routes = {0: range(len(drafts))} if plan is None else self._routed(plan, drafts)
        for number, places in routes.items():
            change = self.change(number)
            few = drafts if len(routes) == 1 else [drafts[at] for at in places]
            batches.append(_Batch(change, few, places, ask_index(change, few)))
        return partial(self._put, check, sizes, batches)

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
        self, check: Callable[[], None], sizes: Callable[[], int] | None, batches: Sequence[_Batch]
    ) -> Answers:
        check()
        full = None if sizes is None else self._admit(sizes, batches)
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

    def _admit(self, sizes: Callable[[], int], batches: Sequence[_Batch]) -> NoRoom | None:
        """Sweep while there is no room, and admit the tasks: all partitions share the seats and the gate of
        partition 0, so the bound holds for their sum. None if there is room.

        Expired tasks make room: the call sweeps at most limits.TIDY_ROUNDS_MAX batches.
        Conflicts: a change of a swept task; as `admit`.
        """
        tr, parts, capacity = self.tr, self.parts, self.parts.shape.settings.capacity or 0
        wanted, count, more_due = sum(map(len, map(_drafts, batches))), sizes(), True
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if count + wanted <= capacity or not parts.sweep(tr):
                more_due = False
                break
            for batch in batches:  # the sweep may have changed the task keys of the drafts
                batch.change.ask_create(set(map(_key, batch.drafts)))
            count = parts.ask_size(tr)()
        fits = admit(tr, parts.shape.keys, capacity, count, wanted, self.random)
        return None if fits else NoRoom(count, more_due)


def tasks_of(answers: Sequence[Any]) -> list[Task]:
    """The tasks of one caller; none if its put is postponed. Raises: an answer that is an error."""
    for answer in answers:
        if isinstance(answer, FdbQueueError):
            raise answer
    return [*filter(None, answers)]


def ask_index(change: Change, drafts: Sequence[Draft]) -> Callable[[], int]:
    """Ask for the reads of a put into one partition. The reply is the index of the first new task.

    Reads: the last task by snapshot; the discipline's reads for a put.
    """
    keys = change.shape.keys
    last = change.tr.snapshot.get_range(keys.own_tasks.start, keys.own_tasks.stop, limit=1, reverse=True)
    if change.puts_read:
        change.ask_create(set(map(_key, drafts)))

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
