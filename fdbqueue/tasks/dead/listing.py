"""A page of buried tasks with their last failures."""

from collections.abc import Sequence

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.page import Page, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.dead.reading import DeadLetter, Matching, Place, ahead, ask_rows, places_of
from fdbqueue.tasks.failures import ask_last, class_in
from fdbqueue.tasks.payloads import shown_tasks
from fdbqueue.tasks.records.keys import Record, id_in, sound_record
from fdbqueue.tasks.sweep import as_of

ROWS_MAX = limits.BATCH_BYTES_MAX // limits.FAILURE_DETAIL_BYTES_MAX
"""Tasks that one page looks at: a failure may have some eight kilobytes."""


class _End(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page in the order of a class of failure; None is the order of all."""

    error: str | None
    place: bytes
    partition: int = 0


def place_after(matching: Matching, after: str | None) -> Place:
    given = place_bytes(after)
    if given is None:
        return Place()
    try:
        end = msgspec.msgpack.decode(given, type=_End)
    except msgspec.MsgspecError:
        raise no_place(after) from None
    if end.error != matching.error:
        raise no_place(after)
    return Place(end.partition, end.place)


def next_after(matching: Matching, place: Place | None) -> str | None:
    if place is None:
        return None
    return place_text(_to_bytes(_End(matching.error, place.key, place.partition)))


def page(changes: Sequence[Change], matching: Matching, limit: int, after: Place) -> Page[DeadLetter]:
    """The next buried tasks that match, as of now, swept or not: those of the first partition behind the
    place that has some, or that has an empty page.

    Reads: by snapshot one key of each partition; then the keys of a page, its tasks and their last failures,
    and limits.BATCH_BYTES_MAX bytes of payloads. A page has up to `limit` keys; with a text, ROWS_MAX.
    """
    there = ahead(changes, matching.error, after)
    for at, (change, start) in enumerate(there):
        found = _page(change, matching, limit, start)
        if found.next is not None:
            return found
        if at + 1 < len(there):
            found.next = next_after(matching, Place(there[at + 1][0].shape.keys.partition))
        if found:
            return found
    return Page()


def _page(change: Change, matching: Matching, limit: int, after: bytes) -> Page[DeadLetter]:
    tr, keys = change.tr, change.shape.keys
    most = ROWS_MAX if matching.text is not None else min(limit, ROWS_MAX)
    rows = ask_rows(change, matching.error, after, most).to_list()
    places = places_of(change, matching.error, rows)
    there = list(zip(places, _buried(change, [id_in(row.key) for row in rows]), strict=True))
    asked = [(place, record, ask_last(tr, keys, record)) for place, record in there if record is not None]
    told = [(place, record, reply()) for place, record, reply in asked]
    found = [row for row in told if matching.matches(row[2])]
    count = min(limit, within_bytes([record.size_bytes for _, record, _ in found]))
    tasks = shown_tasks(tr, keys, change.shape.codec, [record for _, record, _ in found[:count]])
    letters = [
        DeadLetter(task, class_in(record), failure)
        for task, (_, record, failure) in zip(tasks, found[:count], strict=True)
    ]
    last = places[-1] if len(rows) == most else None
    end = found[count - 1][0] if count < len(found) else last
    return Page(letters, next_after(matching, None if end is None else Place(keys.partition, end)))


def _buried(change: Change, ids: Sequence[bytes]) -> list[Record | None]:
    asked = [(id_, change.tr.snapshot.get(change.shape.keys.task(id_))) for id_ in ids]
    read = [sound_record(task.value, id_) for id_, task in asked]
    current = [None if record is None else as_of(record, change.now_us) for record in read]
    return [record if record and record.state == TaskState.BURIED else None for record in current]


_to_bytes = msgspec.msgpack.Encoder().encode
