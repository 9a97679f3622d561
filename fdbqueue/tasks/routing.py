"""Routing: the puts of one transaction into the partitions of a queue.

A task with a task key goes to the partition of that key. The others of a transaction go to one open
partition, the next in the turn of the process; so tasks that are put together stay together, in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.partitions.plan import Plan, home_of
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import NoRoom, admit_to
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.records.keys import Record
from fdbqueue.tasks.records.statistics import count_of
from fdbqueue.tasks.tasks_of import task_of
from fdbqueue.tasks.verbs import ask_place


@dataclass(frozen=True)
class _Batch:
    """The drafts for one partition, by their places among all drafts."""

    change: Change
    places: Sequence[int]
    index: Callable[[], int | NoRoom]


def ask_put(
    parts: Parts,
    tr: Transaction,
    plan: Plan,
    drafts: Sequence[Draft],
    random: bytes,
    turn: int,
    is_owner_asked: bool = False,
) -> Callable[[], list[Task] | NoRoom]:
    """Ask for the reads of a put. The reply puts tasks into their partitions, and returns them in order, or
    NoRoom with the size of a full queue.

    `turn` chooses the partition of drafts without a task key. `is_owner_asked`: as in `ask_place`.
    Reads: as verbs.put, for each partition; with a capacity, the counters of all of them by snapshot.
    Conflicts: as verbs.put; a change of the plan.
    """
    check = parts.zero.guard(tr)
    sizes = _ask_sizes(parts, tr)
    batches = []
    for number, places in _routed(parts, plan, drafts, turn).items():
        change = parts.part(number).change(tr)
        few = [drafts[at] for at in places]
        batches.append(_Batch(change, places, ask_place(change, few, random, None, is_owner_asked)))
        is_owner_asked = True  # one batch asks for it

    def put() -> list[Task] | NoRoom:
        check()
        if any(batch.change.plan is not plan for batch in batches):
            raise conflict_in(tr)
        full = _admit(parts, tr, sizes, batches, drafts, random)
        return _apply(batches, drafts, random) if full is None else full

    return put


def _apply(batches: Sequence[_Batch], drafts: Sequence[Draft], random: bytes) -> list[Task]:
    tasks: dict[int, Task] = {}
    for batch in batches:
        index = batch.index()
        assert not isinstance(index, NoRoom)
        few = [drafts[at] for at in batch.places]
        records: list[Record] = edges.put(batch.change, few, index, random)
        tasks.update(
            (at, task_of(record, drafts[at].data)) for at, record in zip(batch.places, records, strict=True)
        )
    for batch in batches:
        batch.change.finish()
    return [tasks[at] for at in range(len(drafts))]


def _routed(parts: Parts, plan: Plan, drafts: Sequence[Draft], turn: int) -> dict[int, list[int]]:
    """The places of the drafts, by partition."""
    by_key = parts.shape.kind.supports("key")
    found: dict[int, list[int]] = {}
    for at, draft in enumerate(drafts):
        number = home_of(draft.key, plan.count) if by_key else turn % plan.count
        found.setdefault(number, []).append(at)
    return found


def _ask_sizes(parts: Parts, tr: Transaction) -> Callable[[], int]:
    """Ask for the number of tasks in all partitions, by snapshot. Asks nothing without a capacity."""
    if not parts.shape.settings.capacity:
        return lambda: 0
    asked = [tr.snapshot.get(source.shape.keys.live) for source in parts.holding()]
    return lambda: sum(count_of(live.value) for live in asked)


def _admit(
    parts: Parts,
    tr: Transaction,
    sizes: Callable[[], int],
    batches: Sequence[_Batch],
    drafts: Sequence[Draft],
    random: bytes,
) -> NoRoom | None:
    """As capacity.admit, for all partitions: they share the seats and the gate of partition 0, so the bound
    holds for their sum.
    """
    capacity, wanted = parts.shape.settings.capacity, len(drafts)
    if not capacity:
        return None
    count, more_due = sizes(), True
    for _ in range(limits.TIDY_ROUNDS_MAX):
        if count + wanted <= capacity or not parts.wide.tidy(tr):
            more_due = False
            break
        for batch in batches:  # the sweep may have changed the task keys of the drafts
            batch.change.ask_create({drafts[at].key for at in batch.places})
        count = _ask_sizes(parts, tr)()
    fits = admit_to(tr, parts.shape.keys, capacity, count, wanted, random)
    return None if fits else NoRoom(count, more_due)
