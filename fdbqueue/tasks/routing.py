"""Routing: the puts of one transaction into the partitions of a queue.

A task with a task key goes to the partition of that key. The others of a transaction go to one open
partition, the next in the turn of the process; so tasks that are put together stay together, in order.
"""

from collections.abc import Callable, Mapping, Sequence
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
from fdbqueue.tasks.payloads import task_of
from fdbqueue.tasks.records.statistics import count_of
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
    plan: Plan | None,
    drafts: Sequence[Draft],
    random: bytes,
    turn: int,
    is_guarded: bool = False,
) -> Callable[[], list[Task] | NoRoom]:
    """Ask for the reads of a put. The reply puts tasks into their partitions, and returns them in order, or
    NoRoom with the size of a full queue.

    `turn` chooses the partition of drafts without a task key. `is_guarded`: the caller asks for the guard
    and the owner.
    Reads: as verbs.put, for each partition; with a capacity, the counters of all of them by snapshot.
    Conflicts: as verbs.put; a change of the plan.
    """
    check, is_owner_asked = None if is_guarded else parts.zero.guard(tr), is_guarded
    capacity, batches = parts.shape.settings.capacity, list[_Batch]()
    sizes = _ask_sizes(parts, tr) if capacity else None
    for number, places in _routed(parts, plan, drafts, turn).items():
        change = parts.part(number).change(tr)
        few = [drafts[at] for at in places]
        batches.append(_Batch(change, places, ask_place(change, few, random, None, is_owner_asked)))
        is_owner_asked = True  # one batch asks for it

    def put() -> list[Task] | NoRoom:
        if check is not None:
            check()
        for batch in batches:
            if batch.change.plan is not plan:
                raise conflict_in(tr)
        if capacity and sizes is not None:
            full = _admit(parts, tr, capacity, sizes, batches, drafts, random)
            if full is not None:
                return full
        tasks: dict[int, Task] = {}
        for batch in batches:
            _apply(batch, drafts, random, tasks)
        for batch in batches:
            batch.change.finish()
        return [tasks[at] for at in range(len(drafts))]

    return put


def _apply(batch: _Batch, drafts: Sequence[Draft], random: bytes, tasks: dict[int, Task]) -> None:
    """Put the drafts of a batch, and add their tasks to `tasks`, by their places."""
    index = batch.index()
    assert not isinstance(index, NoRoom)
    records = edges.put(batch.change, [drafts[at] for at in batch.places], index, random)
    for at, record in zip(batch.places, records, strict=True):
        tasks[at] = task_of(record, drafts[at].data)


def _routed(
    parts: Parts, plan: Plan | None, drafts: Sequence[Draft], turn: int
) -> Mapping[int, Sequence[int]]:
    """The places of the drafts, by partition."""
    if plan is None:
        return {0: range(len(drafts))}
    by_key = parts.shape.kind.supports("key")
    found: dict[int, list[int]] = {}
    for at, draft in enumerate(drafts):
        number = home_of(draft.key, plan.count) if by_key else turn % plan.count
        found.setdefault(number, []).append(at)
    return found


def _ask_sizes(parts: Parts, tr: Transaction) -> Callable[[], int]:
    """Ask for the number of tasks in all partitions, by snapshot."""
    asked = [tr.snapshot.get(source.shape.keys.live) for source in parts.holding()]
    return lambda: sum(count_of(live.value) for live in asked)


def _admit(
    parts: Parts,
    tr: Transaction,
    capacity: int,
    sizes: Callable[[], int],
    batches: Sequence[_Batch],
    drafts: Sequence[Draft],
    random: bytes,
) -> NoRoom | None:
    """As capacity.admit, for all partitions: they share the seats and the gate of partition 0, so the bound
    holds for their sum.
    """
    wanted, count, more_due = len(drafts), sizes(), True
    for _ in range(limits.TIDY_ROUNDS_MAX):
        if count + wanted <= capacity or not parts.sweep(tr):
            more_due = False
            break
        for batch in batches:  # the sweep may have changed the task keys of the drafts
            batch.change.ask_create({drafts[at].key for at in batch.places})
        count = _ask_sizes(parts, tr)()
    fits = admit_to(tr, parts.shape.keys, capacity, count, wanted, random)
    return None if fits else NoRoom(count, more_due)
