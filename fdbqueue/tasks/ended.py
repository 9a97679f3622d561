"""Looks at the ended tasks that a queue keeps (retaining.py): one by its id, or pages, the latest first."""

from contextlib import suppress

from fdbqueue.aside import DAMAGED
from fdbqueue.errors import TaskNotFound, UnsupportedOption
from fdbqueue.page import Page, no_place, place_bytes, place_text
from fdbqueue.records.keys import ID_BYTES, TIME_BYTES, id_in, id_text
from fdbqueue.seam import Value
from fdbqueue.task import EndedTask
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.retaining import Entry, entry_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.tasks_of import key_in

_PLACE_BYTES = TIME_BYTES + ID_BYTES


def place_after(after: str | None) -> bytes | None:
    """Parse the `next` of a page. Raises InvalidArgument."""
    place = place_bytes(after)
    if place is not None and len(place) != _PLACE_BYTES:
        raise no_place(after)
    return place


def require_retaining(shape: Shape) -> None:
    """Raises: UnsupportedOption for a queue that keeps no ended task."""
    if shape.retain_us is None:
        raise UnsupportedOption(kind=shape.kind.name, option="ended tasks: it was created without retain_s")


def ended_task(change: Change, id_: bytes) -> EndedTask:
    """Reads: one key, by snapshot. Raises: TaskNotFound."""
    found = _shown(change, id_, change.tr.snapshot.get(change.shape.keys.ended(id_)))
    if found is None:
        raise TaskNotFound(id=id_text(id_), name=change.shape.name)
    return found


def page(change: Change, key: bytes, limit: int, after: bytes | None) -> Page[EndedTask]:
    """The tasks that ended before the place `after`, the latest first; those of `key`, unless it is empty.

    Reads: `limit` entries, by snapshot.
    Round trips: 2.
    """
    tr, keys, over_us = change.tr, change.shape.keys, _over_us(change)
    under = keys.ended_of_after(key, over_us) if key else keys.ended_after(over_us)
    prefix = under.start[:-TIME_BYTES]
    stop = under.stop if after is None else min(under.stop, prefix + after)
    start = min(under.start, stop)
    rows = tr.snapshot.get_range(start, stop, limit=limit, reverse=True).to_list()
    asked = [(id_in(row.key), tr.snapshot.get(keys.ended(id_in(row.key)))) for row in rows]
    found = [_shown(change, id_, value) for id_, value in asked]
    last = place_text(bytes(rows[-1].key)[len(prefix) :]) if len(rows) == limit else None
    return Page([task for task in found if task is not None], last)


def _over_us(change: Change) -> int:
    """The time of the latest end that is too old."""
    return max(0, change.now_us - (change.shape.retain_us or 0))


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
