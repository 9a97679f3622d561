"""Looks at the ended tasks that a queue keeps (retaining.py): one by its id, or pages, the latest first."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter

from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.errors import TaskNotFound, UnsupportedOption
from fdbqueue.core.page import Page, no_place, place_bytes, place_text
from fdbqueue.core.partitions.keys import TIME_BYTES
from fdbqueue.core.seam import Value
from fdbqueue.core.task import EndedTask
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.records.keys import ID_BYTES, id_in, id_text
from fdbqueue.tasks.retaining import Entry, entry_of, retain_us_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.tasks_of import key_in

_PLACE_BYTES = TIME_BYTES + ID_BYTES


def place_after(after: str | None) -> bytes | None:
    place = place_bytes(after)
    if place is not None and len(place) != _PLACE_BYTES:
        raise no_place(after)
    return place


def require_retaining(shape: Shape) -> None:
    """Raises: UnsupportedOption for a queue that keeps no ended task."""
    if not retain_us_of(shape.settings):
        raise UnsupportedOption(kind=shape.kind.name, option="ended tasks: it was created without `retain_s`")


def ended_task(changes: Sequence[Change], id_: bytes) -> EndedTask:
    """Reads: one key of each partition, by snapshot: a task may end in another than the one in its id.

    Raises: TaskNotFound.
    """
    asked = [(change, change.tr.snapshot.get(change.shape.keys.ended(id_))) for change in changes]
    found = [task for change, value in asked if (task := _shown(change, id_, value)) is not None]
    if not found:
        raise TaskNotFound(id=id_text(id_), name=changes[0].shape.name)
    return found[0]


def page(changes: Sequence[Change], key: bytes, limit: int, after: bytes | None) -> Page[EndedTask]:
    """The tasks that ended before the place `after`, the latest first; those of `key`, unless it is empty."""
    asked = [(change, _ask_before(change, key, limit, after)) for change in changes]
    rows = [(place, change) for change, reply in asked for place in reply()]
    latest = sorted(rows, key=itemgetter(0), reverse=True)[:limit]
    values = [change.tr.snapshot.get(change.shape.keys.ended(id_in(place))) for place, change in latest]
    found = [_shown(change, id_in(at), value) for (at, change), value in zip(latest, values, strict=True)]
    last = place_text(latest[-1][0]) if len(latest) == limit else None
    return Page([task for task in found if task is not None], last)


def _ask_before(change: Change, key: bytes, limit: int, after: bytes | None) -> Callable[[], list[bytes]]:
    """Ask for the places of ended tasks before `after` in one partition, the latest first."""
    keys, over_us = change.shape.keys, _over_us(change)
    under = keys.ended_of_after(key, over_us) if key else keys.ended_after(over_us)
    prefix = under.start[:-TIME_BYTES]
    stop = under.stop if after is None else min(under.stop, prefix + after)
    rows = change.tr.snapshot.get_range(min(under.start, stop), stop, limit=limit, reverse=True)
    return lambda: [bytes(row.key)[len(prefix) :] for row in rows]


def _over_us(change: Change) -> int:
    return max(0, change.now_us - retain_us_of(change.shape.settings))


def _shown(change: Change, id_: bytes, value: Value) -> EndedTask | None:
    """The task; None for one that is missing, damaged, or too old and not swept yet."""
    with suppress(*DAMAGED):
        entry = entry_of(value.value) if value.present() else None
        return None if entry is None or entry.ended_us <= _over_us(change) else _task(id_, entry)
    return None


def _task(id_: bytes, entry: Entry) -> EndedTask:
    return EndedTask(
        id=id_text(id_),
        outcome=entry.outcome,
        created=entry.created_us / 1_000_000,
        taken=entry.taken_us / 1_000_000 if entry.taken_us else None,
        ended=entry.ended_us / 1_000_000,
        attempts=entry.attempts,
        failures=entry.failures,
        key=key_in(entry.key),
        pri=entry.pri,
        session=entry.session.hex() or None,
    )
