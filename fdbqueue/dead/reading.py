"""Buried tasks in order, from a place on: for a listing by snapshot, for a step serialisably."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdbqueue import limits
from fdbqueue.dead.matching import Matching
from fdbqueue.dead.values import FailureClass
from fdbqueue.records.keys import Record, id_in, id_text
from fdbqueue.records.statistics import LIVE, unpacked
from fdbqueue.seam import KeyValue, Range
from fdbqueue.task import Failure, TaskState
from fdbqueue.tasks import classes
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import ask_failures, ask_last
from fdbqueue.tasks.verbs import in_state, swept


@dataclass(frozen=True)
class Row:
    """A key of a buried task, with its place in the order; `record` is None if the task has gone."""

    place: bytes
    record: Record | None
    failure: Failure | None


def under(change: Change, error: str | None) -> slice:
    keys = change.shape.keys
    return keys.buried if error is None else keys.classed_under(error)


def ask_rows(change: Change, error: str | None, after: bytes, limit: int) -> Range:
    """Ask, by snapshot, for the first keys behind the place `after`."""
    range_ = under(change, error)
    start = range_.start + after + b"\x00" if after else range_.start
    return change.tr.snapshot.get_range(start, range_.stop, limit=limit)


def places_of(change: Change, error: str | None, rows: Sequence[KeyValue]) -> list[bytes]:
    start = len(under(change, error).start)
    return [bytes(row.key)[start:] for row in rows]


def buried_after(change: Change, matching: Matching, after: bytes, limit: int) -> list[Row]:
    """The first `limit` buried tasks behind the place `after`, swept, for a change of them.

    Reads: the keys by snapshot, the tasks serialisably; with a text, their last failures by snapshot.
    Conflicts: a change of the tasks.
    """
    found = ask_rows(change, matching.error, after, limit).to_list()
    read = change.read(id_in(row.key) for row in found)
    for row, record in zip(found, read, strict=True):
        if record is None:
            _lost(change, matching.error, row)
    there = in_state(swept(change, [record for record in read if record is not None]), TaskState.BURIED)
    told = _failures(change, matching, there)
    buried = {record.id: record for record in there}
    return [
        Row(place, buried.get(id_in(place)), told.get(id_in(place)))
        for place in places_of(change, matching.error, found)
    ]


def _lost(change: Change, error: str | None, row: KeyValue) -> None:
    """Mend the keys of a task that is missing, or cannot be read."""
    if error is None:
        change.lost(row.key, row.value)
        return
    keys = change.shape.keys
    classes.lost(change.tr, keys, row.key)
    [place] = places_of(change, error, [row])
    buried = change.tr.get(keys.buried_at(place))
    if buried.present():
        change.lost(keys.buried_at(place), buried.value)


def _failures(change: Change, matching: Matching, records: Sequence[Record]) -> dict[bytes, Failure | None]:
    if matching.text is None:
        return {}
    asked = [ask_last(change.tr, change.shape.keys, record) for record in records]
    return {record.id: reply() for record, reply in zip(records, asked, strict=True)}


def failure_classes(change: Change, limit: int) -> list[FailureClass]:
    """The first `limit` classes, those with the most tasks first.

    Reads: by snapshot the counters of at most limits.CLASSES_READ_MAX classes, then the first task of each,
    then its failures.
    """
    tr, keys = change.tr, change.shape.keys
    live = tr.snapshot.get(keys.live)
    counts = classes.counted(tr.snapshot, keys, limits.CLASSES_READ_MAX)
    rest = unpacked(LIVE, live.value)["buried"] - sum(counts.values())
    most = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:limit]
    firsts = [ask_rows(change, error, b"", 1) for error, _ in most]
    ids = [[id_in(row.key) for row in first] for first in firsts]
    asked = [[(id_, ask_failures(tr, keys, id_)) for id_ in of_class] for of_class in ids]
    found = [_class(error, count, *first) for (error, count), first in zip(most, asked, strict=True)]
    return [*found, FailureClass(None, rest)] if rest > 0 and len(found) < limit else found


def _class(error: str, count: int, *first: tuple[bytes, Callable[[], list[Failure]]]) -> FailureClass:
    for id_, failures in first:
        return FailureClass(error, count, id_text(id_), next(reversed(failures()), None))
    return FailureClass(error, count)
