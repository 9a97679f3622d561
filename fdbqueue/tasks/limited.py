"""Limited: tasks of a queue with limits. A take lets its tasks start; each end of a lease gives slots back.

A queue without limits never comes here.

The record of a taken task has the cells of its slots. So the change that ends the lease gives them back in
its own transaction (Change.move calls `ended` for each edge). It reads nothing for that; for a slot of a key,
the lanes that wait for it.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.disciplines.discipline import Discipline
from fdbqueue.tasks.disciplines.lanes import Lanes, keyed_limit, limits_named
from fdbqueue.tasks.limiting.gate import Gate
from fdbqueue.tasks.parking.under import Limits
from fdbqueue.tasks.records.keys import Extra, Record
from fdbqueue.tasks.shape import Shape


def first(discipline: Discipline, tr: Transaction, limit: int, gate: Gate) -> Iterable[Record]:
    """Ask, by snapshot, for the next tasks; `gate` need not let them through."""
    if isinstance(discipline, Lanes):
        return discipline.startable(tr, limit, gate)
    return discipline.first(tr, limit)


def passes(gate: Gate, record: Record) -> bool:
    """Let a task through, and count it. False if a limit is reached."""
    return gate.passes(limits_named(record), keyed_limit(record))


def started(
    tr: Transaction,
    shape: Shape,
    limits: Limits,
    records: Sequence[Record],
    now_us: int,
    gate: Gate | None,
) -> list[Record]:
    """The records of tasks that one lease takes, with the slots that they hold now. Raises: as
    Limits.start.
    """
    if not records:
        return []
    holder = (shape.name, shape.keys.partition, records[0].session)
    starting = [(record.id, limits_named(record), keyed_limit(record)) for record in records]
    held = limits.start(tr, starting, holder, records[0].token, now_us, gate)
    return [
        replace(record, extra=replace(record.extra or Extra(), slots=dict(slots))) if slots else record
        for record, slots in zip(records, held, strict=True)
    ]


def ended(tr: Transaction, limits: Limits, olds: Sequence[Record], news: Sequence[Record]) -> None:
    """Give back the slots of the tasks that are taken no more; without counterparts, they are gone."""
    held = [
        (old.id, old.extra.slots, keyed_limit(old))
        for at, old in enumerate(olds)
        if old.extra is not None and old.extra.slots and (not news or news[at].state != TaskState.TAKEN)
    ]
    if held:
        limits.give_back(tr, held)
