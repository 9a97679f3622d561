"""Buried tasks in order, from a place on: for a listing by snapshot, for a step serialisably.

A queue with partitions has such an order in each. A look goes through them by their numbers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text
from fdbqueue.core.seam import KeyValue, Range
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.tasks import failures
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import ask_failures, ask_last, class_of
from fdbqueue.tasks.in_all import occupied
from fdbqueue.tasks.records.keys import Record, TaskKeys, id_in, id_text
from fdbqueue.tasks.records.statistics import LIVE, unpacked
from fdbqueue.tasks.verbs import in_state, swept


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A buried task with its last failure."""

    task: Task
    error: str
    """Its class of failure: the error of its last failure since the put or the last kick; empty without one.
    """
    failure: Failure | None
    """The last failure that is stored."""


@dataclass(frozen=True, slots=True)
class FailureClass:
    """The buried tasks of one class of failure."""

    error: str | None
    """None stands for the classes beyond the first limits.CLASSES_READ_MAX."""
    tasks: int
    """The exact number of tasks."""
    first: str | None = None
    """The id of the first of them."""
    failure: Failure | None = None
    """The last failure of that task."""


class RedriveState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive as it is stored. Append fields with a default. Times are seconds since the epoch."""

    state: RedriveState
    rate_per_s: float
    """Tasks that it moves in a second, at most."""
    error: str | None = None
    """The class of failure of its tasks; None for all."""
    text: str | None = None
    """A text in the last failure of its tasks; None for all."""
    into: str | None = None
    """The queue that its tasks go to; None for their own."""
    limit: int | None = None
    """The number of tasks that it moves at most."""
    left: int = 0
    """Buried tasks that it has not looked at."""
    moved: int = 0
    passed: int = 0
    """Tasks that it has looked at and left: another text, or a payload that cannot be read."""
    began: float = 0.0
    due: float = 0.0
    """The time of its next step, by its rate."""
    cursor: bytes = b""
    """The place of the last task that it has looked at, in its partition."""
    partition: int = 0
    """The partition of that task: a redrive goes through them by their numbers."""

    @property
    def is_open(self) -> bool:
        """True if it may go on: it is running or paused."""
        return self.state in (RedriveState.RUNNING, RedriveState.PAUSED)


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """The answer of one step of a redrive."""

    redrive: Redrive
    """The redrive after the step."""
    moved: int = 0
    """Tasks that this step has moved."""
    wait_s: float = 0.0
    """Time until the next step."""
    is_full: bool = False
    """True if the queue that its tasks go to has no room."""


class Place(NamedTuple):
    """How far a look at buried tasks has come: it goes through the partitions by their numbers."""

    partition: int = 0
    key: bytes = b""
    """The place of the last task in the order of its partition; empty before the first one."""


TEXT_BYTES_MAX = limits.FAILURE_MESSAGE_BYTES_MAX


@dataclass(frozen=True)
class Matching:
    """The tasks of a class of failure, None for all classes, with a text in their last failure."""

    error: str | None = None
    text: str | None = None

    @classmethod
    def of(cls, error: Any, text: Any) -> "Matching":
        return cls(
            None if error is None else _checked_class(error),
            None if text is None else checked_text("text", text, TEXT_BYTES_MAX),
        )

    def matches(self, failure: Failure | None) -> bool:
        """True if the text is in the error, the message or the detail. The class is not looked at."""
        if self.text is None:
            return True
        told = () if failure is None else (failure.error, failure.message, failure.detail)
        return any(self.text in part for part in told)


def _checked_class(error: Any) -> str:
    """A class of failure; the empty one is that of tasks without a failure. Raises: InvalidArgument."""
    if isinstance(error, str) and not error:
        return ""
    return class_of(checked_text("error", error, limits.FAILURE_MESSAGE_BYTES_MAX))


@dataclass(frozen=True)
class Row:
    """A key of a buried task, with its place in the order; `record` is None if the task has gone."""

    place: Place
    record: Record | None
    failure: Failure | None


def under(keys: TaskKeys, error: str | None) -> slice:
    return keys.buried if error is None else keys.classed_under(error)


def ask_rows(change: Change, error: str | None, after: bytes, limit: int) -> Range:
    """Ask, by snapshot, for the first keys behind the place `after`."""
    range_ = under(change.shape.keys, error)
    start = range_.start + after + b"\x00" if after else range_.start
    return change.tr.snapshot.get_range(start, range_.stop, limit=limit)


def places_of(change: Change, error: str | None, rows: Sequence[KeyValue]) -> list[bytes]:
    start = len(under(change.shape.keys, error).start)
    return [bytes(row.key)[start:] for row in rows]


def ahead(changes: Sequence[Change], error: str | None, after: Place) -> list[tuple[Change, bytes]]:
    """The partitions with buried tasks from the place `after` on, each with the place in its order.

    Reads: by snapshot one key of each partition, if there are several.
    """
    there = occupied(changes[after.partition :], lambda change: under(change.shape.keys, error))
    return [(change, after.key if _number(change) == after.partition else b"") for change in there]


def buried_after(changes: Sequence[Change], matching: Matching, after: Place, limit: int) -> list[Row]:
    """The first `limit` buried tasks behind the place `after`, swept, for a change of them.

    Reads: the keys by snapshot, the tasks serialisably; with a text, their last failures by snapshot.
    Conflicts: a change of the tasks.
    """
    rows = list[Row]()
    for change, start in ahead(changes, matching.error, after):
        rows += _buried_in(change, matching, start, limit - len(rows))
        if len(rows) == limit:
            break
    return rows


def _number(change: Change) -> int:
    return change.shape.keys.partition


def _buried_in(change: Change, matching: Matching, after: bytes, limit: int) -> list[Row]:
    found = ask_rows(change, matching.error, after, limit).to_list()
    read = change.read(id_in(row.key) for row in found)
    for row, record in zip(found, read, strict=True):
        if record is None:
            _lost(change, matching.error, row)
    there = in_state(swept(change, [record for record in read if record is not None]), TaskState.BURIED)
    told = _failures(change, matching, there)
    buried = {record.id: record for record in there}
    return [
        Row(Place(_number(change), place), buried.get(id_in(place)), told.get(id_in(place)))
        for place in places_of(change, matching.error, found)
    ]


def _lost(change: Change, error: str | None, row: KeyValue) -> None:
    if error is None:
        change.lost(row.key, row.value)
        return
    keys = change.shape.keys
    failures.lost(change.tr, keys, row.key)
    [place] = places_of(change, error, [row])
    buried = change.tr.get(keys.buried_at(place))
    if buried.present():
        change.lost(keys.buried_at(place), buried.value)


def _failures(change: Change, matching: Matching, records: Sequence[Record]) -> dict[bytes, Failure | None]:
    if matching.text is None:
        return {}
    asked = [ask_last(change.tr, change.shape.keys, record) for record in records]
    return {record.id: reply() for record, reply in zip(records, asked, strict=True)}


def failure_classes(changes: Sequence[Change], limit: int) -> list[FailureClass]:
    """The first `limit` classes, those with the most tasks first.

    Reads: by snapshot the counters of at most limits.CLASSES_READ_MAX classes of each partition, then the
    first task of each class, then its failures.
    """
    counted = [(change, _ask_counts(change)) for change in changes]
    counts, where, buried = Counter[str](), dict[str, Change](), 0
    for change, reply in counted:
        of_partition, more = reply()
        counts.update(of_partition)
        where.update((error, change) for error in of_partition if error not in where)
        buried += more
    rest = buried - counts.total()
    most = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:limit]
    firsts = [(where[error], ask_rows(where[error], error, b"", 1)) for error, _ in most]
    asked = [
        [(id_in(row.key), ask_failures(change.tr, change.shape.keys, id_in(row.key))) for row in first]
        for change, first in firsts
    ]
    found = [_class(error, count, *first) for (error, count), first in zip(most, asked, strict=True)]
    return [*found, FailureClass(None, rest)] if rest > 0 and len(found) < limit else found


def _ask_counts(change: Change) -> Callable[[], tuple[dict[str, int], int]]:
    """Ask, by snapshot, for the number of buried tasks by class, and for that of all."""
    snapshot, keys = change.tr.snapshot, change.shape.keys
    live, counts = snapshot.get(keys.live), failures.ask_counts(snapshot, keys, limits.CLASSES_READ_MAX)
    return lambda: (failures.counts_in(keys, counts), unpacked(LIVE, live.value)["buried"])


def _class(error: str, count: int, *first: tuple[bytes, Callable[[], list[Failure]]]) -> FailureClass:
    for id_, asked in first:
        return FailureClass(error, count, id_text(id_), next(reversed(asked()), None))
    return FailureClass(error, count)
