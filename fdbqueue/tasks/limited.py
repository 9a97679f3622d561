"""Limited: tasks of a queue with limits. A take lets its tasks start; each end of a lease gives slots back.

A queue without limits never comes here.

The record of a taken task has the cells of its slots. So the change that ends the lease gives them back in
its own transaction. It reads nothing for that; for a slot of a key, the lanes that wait for it.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.rows import Check, Flaw, Row
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.task import ReachedLimit, Reason, TaskState, Why
from fdbqueue.core.visible import visible
from fdbqueue.tasks.feature import REMOVED, End, Feature, Site
from fdbqueue.tasks.limits.lanes import Lanes, keyed_limit, limits_named
from fdbqueue.tasks.limits.rule import KEYED, Held, checked_named, encode_held
from fdbqueue.tasks.limits.state import Gate
from fdbqueue.tasks.limits.under import Limits
from fdbqueue.tasks.rows import FeatureRows, Told, span
from fdbqueue.tasks.stored.discipline import Discipline
from fdbqueue.tasks.stored.records import Extra, Record, id_text


def first(discipline: Discipline, tr: Transaction, limit: int, gate: Gate) -> Iterable[Record]:
    """Ask, by snapshot, for the next tasks; `gate` need not let them through."""
    if isinstance(discipline, Lanes):
        return discipline.startable(tr, limit, gate)
    return discipline.first(tr, limit)


def passes(gate: Gate, record: Record) -> bool:
    """Let a task through, and count it. False if a limit is reached."""
    return gate.passes(limits_named(record), keyed_limit(record))


def asked(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """The names, and the keys that some have. It refuses limits that tasks of the queue may not name."""
    named = options["limits"]
    names, keys = checked_named("limits", named)
    if not set(names) <= set(settings.task_limits):
        may = ", ".join(map(repr, settings.task_limits))
        wanted = f"some of the names in the `task_limits` of the queue: {may}"
        wanted = wanted if may else "left out, as the queue has no `task_limits`"
        raise InvalidArgument(name="limits", wanted=wanted, got=named)
    return {"limits": names, "limit_keys": keys}


_HOLDERS_TOLD = 3
"""Holders of a limit that a reason names; the explanation has more."""


def _limit_reached(limit: ReachedLimit, now_us: int) -> Reason:
    name = visible(limit.name)
    if limit.error is not None:
        key = visible(repr(limit.key))
        text = f"The limit {name!r} cannot be read, and tasks of the key {key} have waited for it."
        anew = f"fdbqueue limit set {shlex.quote(limit.name)} sets it anew."
        return Reason(Why.LIMIT_REACHED, text, anew)
    of_key = f" for the key {visible(repr(limit.key))}" if limit.per_key else ""
    wait = "" if limit.next is None else f" in {span(limit.next - now_us / 1_000_000)}"
    comes = f"Its next token comes{wait}."
    if limit.slots is None:
        text = f"The limit {name!r} has no token{of_key}: as many tasks have started as it allows."
        return Reason(Why.LIMIT_REACHED, text, comes, limit.next)
    told = limit.holders[:_HOLDERS_TOLD]
    held = ", ".join(f"{one.task} of {visible(one.queue)!r}" for one in told)
    more = limit.used - len(told)
    also = f" and {more:,} more" if told and more > 0 else ""
    text = f"The limit {name!r} has no free slot{of_key}: {limit.used:,} of {limit.slots:,} are held"
    more_slots = f"fdbqueue limit set {shlex.quote(limit.name)} --slots N{' --per-key' * limit.per_key}"
    text += f"{f', by {held}{also}' if held else ''}."
    if limit.next is not None:
        text += f" It has no token{of_key}, too."
        return Reason(Why.LIMIT_REACHED, text, f"One of these tasks ends. {comes}", limit.next)
    cure = "" if limit.has_both else f" More slots: {more_slots}"  # it would be without its rate
    return Reason(Why.LIMIT_REACHED, text, f"One of these tasks ends.{cure}")


class SlotRows(FeatureRows):
    """A task that holds a slot of a limit is one of its holders."""

    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:
        found = self._shape.limits
        if found is None:
            return Told
        asked = found.ask_reached(tr, now_us, limits_named(record), keyed_limit(record))

        def reply() -> Told:
            reached = asked() if record.state == TaskState.READY else ()
            return Told({"reached": reached}, [_limit_reached(limit, now_us) for limit in reached])

        return reply

    def task(self, row: Row, record: Record) -> Check:
        holders = list(_holders(self._shape.limits, self._shape.name, self._shape.keys.partition, record))
        seen = yield [key for _, key, _ in holders]
        for name, key, held in holders:
            if not seen.has(key):
                text = f"The task {id_text(record.id)} holds a slot of the limit {name!r}, and is no holder."
                yield self.found(Flaw.STATE, row, text, {key: held})


def _holders(
    limits: Limits | None, queue: str, partition: int, record: Record
) -> Iterator[tuple[str, bytes, bytes]]:
    """For each slot of the task: the name of the limit, and the key and the value of the holder."""
    for name, cell in slots_of(record).items():
        keyed = keyed_limit(record) if cell == KEYED else None
        of_key = None if keyed is None or keyed[0] != name else keyed[1]
        key = None if limits is None else limits.holder(name, record.id, of_key)
        if key is not None:
            yield name, key, encode_held(Held(cell, queue, partition, record.session))


class Limited(Limits, Feature):
    """The limits of a queue as a feature."""

    rows = SlotRows

    def __init__(self, settings: Any, root: bytes, queue: int) -> None:
        super().__init__(root, queue, settings.limits, settings.task_limits)

    def started(self, site: Site, records: Sequence[Record], gate: Gate | None) -> Sequence[Record]:
        """Let tasks hold slots. Raises: as Limits.start."""
        if not records:
            return []
        holder = (site.queue, site.keys.partition, records[0].session)
        starting = [(record.id, limits_named(record), keyed_limit(record)) for record in records]
        held = self.start(site.tr, starting, holder, records[0].token, site.now_us, gate)
        return [
            replace(record, extra=replace(record.extra or Extra(), slots=dict(slots))) if slots else record
            for record, slots in zip(records, held, strict=True)
        ]

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        """Give back the slots of the tasks that are taken no more. Those of a lease that changes its session
        have a new holder.
        """
        for old, new in zip(olds, news, strict=True):
            if new.state == TaskState.TAKEN and new.session != old.session:
                for _, key, held in _holders(self, site.queue, site.keys.partition, new):
                    site.tr.set(key, held)
        ended = [old for old, new in zip(olds, news, strict=True) if new.state != TaskState.TAKEN]
        if ended:
            self.gone(site, ended, REMOVED)
        return news

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:  # noqa: ARG002
        held = [
            (record.id, record.extra.slots, keyed_limit(record))
            for record in records
            if record.extra is not None and record.extra.slots
        ]
        if held:
            self.give_back(site.tr, held)

    def fitted(self, extra: Extra, settings: Any) -> Extra:
        """It names limits of that queue."""
        known = tuple(name for name in extra.limits if name in settings.task_limits)
        keys = {name: key for name, key in extra.limit_keys.items() if name in known}
        return replace(extra, limits=known, limit_keys=keys)

    def cleared(self, site: Site) -> None:
        self.give_back_all(site.tr)

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        return self.ask_next_rest(site.tr)

    def sweep(self, site: Site) -> bool:
        return self.ask_rest(site.tr, site.now_us)()


def slots_of(record: Record) -> dict[str, int]:
    return {} if record.extra is None else record.extra.slots
