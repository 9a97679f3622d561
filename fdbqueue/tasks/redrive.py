"""Redrive: buried tasks go back, at a bounded rate, one bounded transaction after the other.

The key S[19] of the queue has the redrive: which tasks, the rate, and the cursor, the place of the last task
that was looked at, with its partition. A step moves tasks and the cursor in one transaction. So a task is
moved once, whatever dies meanwhile, and any process goes on where another has stopped. A task that is buried
again in its partition keeps its place, and lies behind the cursor: no redrive moves it twice.

All processes that run a redrive share its key, so they share its rate. The rate bounds the tasks of any span
of time to that of the span and limits.REDRIVE_STEP_S more, and one step. Times are of the clocks of these
processes. A time farther ahead than clocks may differ is that of a wrong clock, and does not count.

Buried tasks are read in order, from a place on: for a listing by snapshot, for a step serialisably. A queue
with partitions has such an order in each. A look goes through them by their numbers.

Buried tasks may go to another queue: each is put there, in the transaction that removes it here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text
from fdbqueue.core.database import Database
from fdbqueue.core.errors import (
    InvalidArgument,
    NoRedrive,
    PayloadUnreadable,
    QueueKindMismatch,
    RedriveUnderWay,
)
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.tasks import edges, failures
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change, ask_payload, key_in
from fdbqueue.tasks.failures import ask_failures, ask_last, class_of, moved_bytes
from fdbqueue.tasks.feature import met_by
from fdbqueue.tasks.options import Draft, is_kind
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.records import (
    LIVE_NAMES,
    Record,
    TaskKeys,
    id_bytes,
    id_in,
    id_text,
    partition_of,
    unpacked,
)
from fdbqueue.tasks.verbs import in_state, occupied, swept


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


def buried_under(keys: TaskKeys, error: str | None) -> slice:
    return keys.buried if error is None else keys.classed_under(error)


def ask_rows(change: Change, error: str | None, after: bytes, limit: int) -> Range:
    """Ask, by snapshot, for the first keys behind the place `after`."""
    range_ = buried_under(change.shape.keys, error)
    start = range_.start + after + b"\x00" if after else range_.start
    return change.tr.snapshot.get_range(start, range_.stop, limit=limit)


def places_of(change: Change, error: str | None, rows: Sequence[KeyValue]) -> list[bytes]:
    start = len(buried_under(change.shape.keys, error).start)
    return [bytes(row.key)[start:] for row in rows]


def ahead(changes: Sequence[Change], error: str | None, after: Place) -> list[tuple[Change, bytes]]:
    """The partitions with buried tasks from the place `after` on, each with the place in its order.

    Reads: by snapshot one key of each partition, if there are several.
    """
    there = occupied(changes[after.partition :], lambda change: buried_under(change.shape.keys, error))
    return [(change, after.key if _partition_number(change) == after.partition else b"") for change in there]


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


def _partition_number(change: Change) -> int:
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
        Row(Place(_partition_number(change), place), buried.get(id_in(place)), told.get(id_in(place)))
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
    counters, counts = (
        snapshot.get(keys.counters),
        failures.ask_counts(snapshot, keys, limits.CLASSES_READ_MAX),
    )
    return lambda: (failures.counts_in(keys, counts), unpacked(LIVE_NAMES, counters.value)["buried"])


def _class(error: str, count: int, *first: tuple[bytes, Callable[[], list[Failure]]]) -> FailureClass:
    for id_, asked in first:
        return FailureClass(error, count, id_text(id_), next(reversed(asked()), None))
    return FailureClass(error, count)


class Chosen(NamedTuple):
    """A buried task that is to go, and the number of its partition."""

    partition: int
    record: Record


def by_partition(chosen: Iterable[Chosen]) -> list[tuple[int, list[Record]]]:
    """The tasks of each partition; they are in the order of the partitions."""
    groups = groupby(chosen, key=attrgetter("partition"))
    return [(number, [one.record for one in few]) for number, few in groups]


class Elsewhere:
    def __init__(self, calls: TaskCalls) -> None:
        self._calls = calls
        self._shape = calls.shape

    @classmethod
    def find(cls, change: Change, database: Database, name: str, option: str = "into") -> Self:
        """The queue of that name, which is the value of `option`.

        Reads: its definition.
        Raises: QueueNotFound; QueueKindMismatch for a queue of no tasks; InvalidArgument for the queue of the
        tasks themselves, or one with another codec.
        """
        registry = change.shape.registry
        found = registry.find(change.tr, name)
        if not is_kind(found.kind):
            raise QueueKindMismatch(name=name, found=found.kind, wanted="a kind of task queue")
        shape = shape_of(registry, found)
        _require_alike(change.shape, shape, option)
        return cls(calls_of(database, shape))

    def room(self, tr: Transaction, count: int) -> int:
        """The number of tasks, `count` at most, for which there is room. Reads: the size of each
        partition, by snapshot.
        """
        capacity = self._shape.settings.capacity
        if not capacity:
            return count
        return max(0, min(count, capacity - self._calls.parts.ask_size(tr)()))

    def move(self, changes: Sequence[Change], chosen: Sequence[Chosen]) -> int:
        """Move tasks, and their failures. Return their number: one with an unreadable payload stays.

        Reads: the payloads and the failures, by snapshot; as a put.
        Writes: as a put, and clears the tasks here.
        Raises: QueueFull, UnknownSession for a temporary queue of an ended session.
        """
        asked = [(one, *_ask_stored(changes[one.partition], one.record)) for one in chosen]
        read = [(one, _payload(payload), entries) for one, payload, entries in asked]
        whole = [(one, payload, entries()) for one, payload, entries in read if payload is not None]
        if whole:
            tr = changes[0].tr
            drafts = [self._draft(changes[0].shape, one.record, payload) for one, payload, _ in whole]
            tasks = self._calls.put_within(tr, drafts)
            for task, (_, _, entries) in zip(tasks, whole, strict=True):
                id_ = id_bytes(task.id)
                failures.keep(tr, self._shape.partition(partition_of(id_)).keys, id_, entries)
            for number, records in by_partition(one for one, _, _ in whole):
                change = changes[number]
                left: Sequence[Record] = records
                for feature in met_by(records, change.shape.features):
                    left = feature.left(change.site, left)
                edges.delete(change, left)
        return len(whole)

    def _draft(self, ours: Shape, record: Record, payload: bytes) -> Draft:
        """A new task, with the options of the old one that this queue knows."""
        kind = self._shape.kind
        options: dict[str, Any] = {}
        if kind.supports("pri"):
            options["pri"] = record.pri
        if kind.supports("key") and record.key:
            options["key"] = key_in(record.key)
        if kind.supports("cost"):
            options["cost"] = record.cost
        draft = self._shape.draft(None, payload, options)
        extra = record.extra
        if extra is not None:
            extra = replace(extra, waits=b"")
            for feature in met_by([record], ours.features):
                extra = feature.fitted(extra, self._shape.settings)
        return replace(draft, trace=record.trace, extra=extra, failures=record.failures, arrives=True)


def _ask_stored(
    change: Change, record: Record
) -> tuple[Callable[[], bytes], Callable[[], list[failures.Entry]]]:
    tr, keys = change.tr, change.shape.keys
    return ask_payload(tr, keys, record), failures.ask_entries(tr, keys, record.id)


def _payload(reply: Callable[[], bytes]) -> bytes | None:
    try:
        return reply()
    except PayloadUnreadable:
        return None


def _require_alike(ours: Shape, other: Shape, option: str) -> None:
    if other.definition.id == ours.definition.id:
        raise InvalidArgument(name=option, wanted="another queue, or None", got=other.name)
    if other.settings.codec != ours.settings.codec:
        wanted = f"a queue with the codec {ours.settings.codec!r}, as payloads are moved unread"
        raise InvalidArgument(name=option, wanted=wanted, got=other.name)


@dataclass(frozen=True)
class Turn:
    """The next step: `count` tasks now, or none before `wait_s` are over."""

    count: int
    wait_s: float = 0.0


def turn_of(redrive: Redrive, now: float) -> Turn:
    wait_s = redrive.due - now
    count = step_size(redrive)
    if 0 < wait_s <= count / redrive.rate_per_s + limits.CLOCK_SKEW_S:
        return Turn(0, wait_s)
    left = redrive.left if redrive.limit is None else min(redrive.left, redrive.limit - redrive.moved)
    return Turn(min(count, left))


def step_size(redrive: Redrive) -> int:
    """The tasks of one step: those of limits.REDRIVE_STEP_S, at least one."""
    return max(1, min(limits.VERB_BATCH, int(redrive.rate_per_s * limits.REDRIVE_STEP_S)))


def stepped(
    redrive: Redrive, now: float, places: Sequence[Place], moved: int, passed: int, *, is_last: bool
) -> Redrive:
    """The redrive after a step that has looked at the tasks at `places`."""
    last = places[-1] if places else Place(redrive.partition, redrive.cursor)
    after = replace_fields(
        redrive,
        left=max(0, redrive.left - len(places)),
        moved=redrive.moved + moved,
        passed=redrive.passed + passed,
        cursor=last.key,
        partition=last.partition,
        due=_due(redrive, now, moved),
    )
    is_over = is_last or not after.left or after.moved == after.limit
    return replace_fields(after, state=RedriveState.DONE) if is_over else after


def _due(redrive: Redrive, now: float, moved: int) -> float:
    """The time of the next step. A step that came late makes up for at most limits.REDRIVE_STEP_S."""
    if not moved:
        return redrive.due
    earliest = now - limits.REDRIVE_STEP_S
    begun = now if redrive.due > now else max(redrive.due, earliest)
    return begun + moved / redrive.rate_per_s


_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Redrive).decode


def stored(tr: ReadTransaction, key: bytes) -> Redrive | None:
    """The redrive of a queue. A damaged one counts as none: no task depends on it."""
    value = tr.get(key).value
    try:
        return None if value is None else _from_bytes(value)
    except msgspec.MsgspecError:
        return None


def begin(changes: Sequence[Change], database: Database, wanted: Redrive) -> Redrive:
    """Store a new redrive, of the tasks that are buried now."""
    change = changes[0]
    before = stored(change.tr, change.shape.keys.redrive)
    if before is not None and before.is_open:
        raise RedriveUnderWay(name=change.shape.name, state=before.state.value)
    if wanted.into is not None:
        Elsewhere.find(change, database, wanted.into)
    left, now = _number(changes, wanted.error), change.now_us / 1_000_000
    state = RedriveState.RUNNING if left else RedriveState.DONE
    return _store(change, replace_fields(wanted, state=state, left=left, began=now, due=now))


def turned(change: Change, state: RedriveState) -> Redrive:
    found = stored(change.tr, change.shape.keys.redrive)
    if found is None or not found.is_open:
        raise NoRedrive(name=change.shape.name)
    return _store(change, replace_fields(found, state=state))


def step(changes: Sequence[Change], database: Database) -> RedriveStep:
    """Move the next tasks of a running redrive, if it is time.

    Reads: the redrive; the tasks; with a text their last failures; the other queue, as a put.
    Writes: moves the tasks; the redrive.
    Conflicts: another change of the redrive, a change of the tasks.
    Raises: NoRedrive; as Elsewhere.find and Elsewhere.move.
    """
    change = changes[0]
    found = stored(change.tr, change.shape.keys.redrive)
    if found is None:
        raise NoRedrive(name=change.shape.name)
    if found.state != RedriveState.RUNNING:
        return RedriveStep(found)
    turn = turn_of(found, change.now_us / 1_000_000)
    if turn.wait_s:
        return RedriveStep(found, wait_s=turn.wait_s)
    elsewhere = None if found.into is None else Elsewhere.find(change, database, found.into)
    count = turn.count if elsewhere is None else elsewhere.room(change.tr, turn.count)
    if not count:
        return RedriveStep(found, wait_s=limits.REDRIVE_LOOK_S, is_full=True)
    return _moved(changes, found, Turn(count), elsewhere)


def _moved(changes: Sequence[Change], found: Redrive, turn: Turn, elsewhere: Elsewhere | None) -> RedriveStep:
    change, matching = changes[0], Matching(found.error, found.text)
    most = turn.count if found.text is None else min(found.left, limits.VERB_BATCH)
    rows = buried_after(changes, matching, Place(found.partition, found.cursor), most)
    looked_at, chosen = choose(rows, matching, turn.count)
    moved = _kick(changes, chosen) if elsewhere is None else elsewhere.move(changes, chosen)
    passed = sum(row.record is not None for row in rows[:looked_at]) - moved
    places = [row.place for row in rows[:looked_at]]
    is_last = looked_at == len(rows) < most
    now = change.now_us / 1_000_000
    after = _store(change, stepped(found, now, places, moved, passed, is_last=is_last))
    return RedriveStep(after, moved, max(0.0, after.due - now) if after.is_open else 0.0)


def kick_some(
    changes: Sequence[Change], matching: Matching, after: Place, limit: int
) -> tuple[int, Place | None]:
    """Kick those tasks that match among the first behind `after`.

    Return their number, and the place of the last task that was looked at; None at the end.
    Reads: the tasks; with a text their last failures.
    Conflicts: a change of the tasks.
    """
    rows = buried_after(changes, matching, after, limit)
    looked_at, chosen = choose(rows, matching, limit)
    is_last = looked_at == len(rows) < limit
    return _kick(changes, chosen), None if is_last else rows[looked_at - 1].place


def _kick(changes: Sequence[Change], chosen: Sequence[Chosen]) -> int:
    return sum(len(edges.kick(changes[number], records)) for number, records in by_partition(chosen))


def choose(rows: Sequence[Row], matching: Matching, count: int) -> tuple[int, list[Chosen]]:
    """The number of rows that were looked at, and the tasks among them that match: at most `count`, and
    limits.MOVED_BYTES_MAX bytes of payloads and failures, or one larger task. A kick may move them into
    another partition.
    """
    chosen: list[Chosen] = []
    size_bytes = 0
    for looked_at, row in enumerate(rows):
        if row.record is not None and matching.matches(row.failure):
            size_bytes += moved_bytes(row.record)
            if chosen and size_bytes > limits.MOVED_BYTES_MAX:
                return looked_at, chosen
            chosen.append(Chosen(row.place.partition, row.record))
        if len(chosen) == count:
            return looked_at + 1, chosen
    return len(rows), chosen


def _number(changes: Sequence[Change], error: str | None) -> int:
    """The number of buried tasks of a class, or of all. Reads: its counter in each partition, by snapshot."""
    if error is None:
        asked = [change.tr.snapshot.get(change.shape.keys.counters) for change in changes]
        return sum(unpacked(LIVE_NAMES, counters.value)["buried"] for counters in asked)
    asked = [change.tr.snapshot.get(change.shape.keys.class_count(error)) for change in changes]
    return sum(int.from_bytes(count.value or b"", "little") for count in asked)


def is_readable(value: bytes) -> bool:
    try:
        _from_bytes(value)
    except msgspec.MsgspecError:
        return False
    return True


def _store(change: Change, redrive: Redrive) -> Redrive:
    change.tr.set(change.shape.keys.redrive, _to_bytes(redrive))
    return redrive
