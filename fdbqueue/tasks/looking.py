"""Looking at task queues: their tasks, their numbers, and those by task key.

Tasks of one state, page by page, without a change of the queue. A page continues in the index of the state,
where the last page ended. Tasks that are due and not yet swept are read from the timers. The first
limits.DUE_BATCH of them are listed among the ready tasks, in order. The others follow after all ready tasks,
in the order of their time.

Statistics by task key: the keys with the most ready tasks, and the age of the first of each.

A process sweeps a batch where it looks at numbers. Where no worker runs, nothing else would sweep: a task
that is due would be told as delayed for ever.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import msgspec
from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count
from fdbqueue.core.database import Database, as_database, at_pace, is_transaction, run
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.page import Page, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.partitions import Partition, PartitionState, Plan, home_of
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue, Range, Transaction, engine_errors
from fdbqueue.core.task import HeldKey, Task, TaskState
from fdbqueue.tasks.change import Change, shown_tasks
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.options import is_kind
from fdbqueue.tasks.rows import rows_in_use
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.discipline import no_mending, read_index
from fdbqueue.tasks.stored.key_counts import readable_state, slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import (
    LIVE_NAMES,
    Record,
    Statistics,
    calls_in,
    id_in,
    id_text,
    sound_record,
    statistics_of,
    summed,
    unpacked,
)


def ask_held(change: Change, record: Record) -> Callable[[], HeldKey | None]:
    """Ask, by snapshot, whether the key of a ready task is held. Reads two keys during a repartition."""
    plan, discipline = change.plan, change.shape.discipline
    is_ready = record.state == TaskState.READY
    if plan is None or not plan.before or not is_ready or not isinstance(discipline, Keyed):
        return lambda: None
    old, snapshot = home_of(record.key, plan.before), change.tr.snapshot
    before = change.shape.partition(old).discipline
    assert isinstance(before, Keyed)
    stored = snapshot.get(discipline.state_key(record.key))
    counted = snapshot.get(before.counts.counts_key(slug_of(record.key)))

    def held() -> HeldKey | None:
        state = readable_state(stored.value if stored.present() else None)
        if state is None or not state.held:
            return None
        numbers = unpacked(LIVE_NAMES, counted.value)
        return HeldKey(old, numbers["ready"] + numbers["taken"], plan.before, plan.count)

    return held


def checked_state(state: TaskState | str) -> TaskState:
    known = next((one for one in TaskState if isinstance(state, str) and one == state), None)
    if known is None:
        raise InvalidArgument(name="state", wanted="a TaskState, or its letter", got=state)
    return known


class PageEnd(msgspec.Struct, frozen=True, array_like=True):
    state: str
    index: bytes = b""
    """The last key of the index that was read, without its prefix."""
    due: bytes = b""
    """The last timer that is listed among the ready tasks, or behind them."""
    more_due: bool = False
    """True if timers behind `due` had run out."""
    index_over: bool = False
    partition: int = 0
    """Pages go through the partitions in order."""


def place_after(state: TaskState, after: str | None) -> PageEnd:
    given = place_bytes(after)
    if given is None:
        return PageEnd(state)
    try:
        place = msgspec.msgpack.decode(given, type=PageEnd)
    except msgspec.MsgspecError:
        raise no_place(after) from None
    if place.state != state:
        raise no_place(after)
    return place


@dataclass(frozen=True)
class Found:
    """Tasks behind a place, in order, each with its own place; and the place behind all of them."""

    rows: Sequence[tuple[PageEnd, Record]]
    end: PageEnd | None


def page_of_all(changes: Sequence[Change], state: TaskState, limit: int, after: PageEnd) -> Page[Task]:
    """The next tasks of the first partition behind the place that has some, or that has an empty page."""
    for number in range(after.partition, len(changes)):
        place = after if number == after.partition else PageEnd(state, partition=number)
        found = page(changes[number], state, limit, place)
        if found.next is not None:
            return found
        if number + 1 < len(changes):
            found.next = _text(PageEnd(state, partition=number + 1))
        if found:
            return found
    return Page()


def _text(end: PageEnd) -> str:
    return place_text(msgspec.msgpack.encode(end))


def page(change: Change, state: TaskState, limit: int, after: PageEnd) -> Page[Task]:
    """The next tasks in `state` of one partition, as of now, swept or not.

    Reads the index of the state and the timers that have run out, then the tasks, then their payloads, all by
    snapshot; up to `limit` and limits.DUE_BATCH keys of each, and limits.BATCH_BYTES_MAX bytes of payloads.
    """
    found = _late(change, limit, after) if after.index_over else _indexed(change, state, limit, after)
    count = min(limit, within_bytes([record.size_bytes for _, record in found.rows]))
    rows = found.rows[:count]
    end = rows[-1][0] if count < len(found.rows) else found.end
    shape = change.shape
    shape.codec.require()
    tasks = shown_tasks(change.tr, shape.keys, shape.codec, [record for _, record in rows])
    return Page(tasks, None if end is None else _text(end))


def _indexed(change: Change, state: TaskState, limit: int, after: PageEnd) -> Found:
    """The next of the index, and among them those that have become ready and were not moved yet."""
    under = _index_of(change, state)
    if under is None:
        return Found((), None)
    most, start = limit + limits.DUE_BATCH, len(under.start)
    due = _ask_due(change, after) if state == TaskState.READY else None
    index = change.tr.snapshot.get_range(_behind(under.start, after.index), under.stop, limit=most)
    entries, late = index.to_list(), [] if due is None else due.to_list()
    if due is not None and not after.index:
        after = _bounded(change, after, late)
    last = bytes(entries[-1].key)[start:] if len(entries) == most else None
    records = _judged(change, [id_in(row.key) for row in (*entries, *late)], state)
    placed = sorted((_order(change, record), record.id, record) for record in records)
    rows = [
        (replace(after, index=order), record)
        for order, _, record in placed
        if after.index < order and (last is None or order <= last)
    ]
    if last is not None:
        return Found(rows, replace(after, index=last))
    return Found(rows, _behind_index(after, after.due) if after.more_due else None)


def _late(change: Change, limit: int, after: PageEnd) -> Found:
    """The next of those that have become ready, and stand behind the timers that `_indexed` read."""
    keys, most = change.shape.keys, limit + limits.DUE_BATCH
    start, stop = _behind(keys.timers.start, after.due), keys.timers_until(change.now_us).stop
    timers = change.tr.snapshot.get_range(start, stop, limit=most).to_list() if start < stop else []
    prefix = len(keys.timers.start)
    places = {id_in(row.key): _behind_index(after, bytes(row.key)[prefix:]) for row in timers}
    records = {record.id: record for record in _judged(change, places, TaskState.READY)}
    rows = [(place, records[id_]) for id_, place in places.items() if id_ in records]
    return Found(rows, list(places.values())[-1] if len(timers) == most else None)


def _behind_index(after: PageEnd, due: bytes) -> PageEnd:
    """The place behind the ready tasks of the index, and behind that timer."""
    return PageEnd(after.state, due=due, index_over=True, partition=after.partition)


def _ask_due(change: Change, after: PageEnd) -> Range:
    """The timers that stand among the ready tasks: at first those that have run out, then the same."""
    keys = change.shape.keys
    stop = keys.timers.start + after.due + b"\x00" if after.index else keys.timers_until(change.now_us).stop
    return change.tr.snapshot.get_range(keys.timers.start, stop, limit=limits.DUE_BATCH)


def _bounded(change: Change, after: PageEnd, late: Sequence[KeyValue]) -> PageEnd:
    """The first place of a listing: these timers stand among the ready tasks."""
    if not late:
        return after
    last = bytes(late[-1].key)[len(change.shape.keys.timers.start) :]
    return replace(after, due=last, more_due=len(late) == limits.DUE_BATCH)


def _judged(change: Change, ids: Iterable[bytes], state: TaskState) -> list[Record]:
    asked = {id_: change.tr.snapshot.get(change.shape.keys.task(id_)) for id_ in ids}
    sound = [sound_record(task.value, id_) for id_, task in asked.items()]
    found = [as_of(record, change.now_us) for record in sound if record is not None]
    return [record for record in found if record is not None and record.state == state]


def _index_of(change: Change, state: TaskState) -> slice | None:
    keys = change.shape.keys
    indexes = {
        TaskState.READY: change.shape.discipline.index,
        TaskState.TAKEN: keys.taken,
        TaskState.DELAYED: keys.delayed,
        TaskState.BURIED: keys.buried,
    }
    return indexes.get(state)


def _order(change: Change, record: Record) -> bytes:
    discipline = change.shape.discipline
    if record.state == TaskState.READY:
        return discipline.filed(record)[len(discipline.index.start) :]
    if record.state == TaskState.TAKEN:
        return record.session + record.id
    return discipline.place(record) if record.state == TaskState.BURIED else record.id


def _behind(start: bytes, key: bytes) -> bytes:
    return start + key + b"\x00" if key else start


@dataclass(frozen=True, slots=True)
class Waiting:
    """A ready task of a key: its id, and the seconds since its put."""

    id: str
    age_s: float


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """The number of tasks of a key in each state, and its first ready task."""

    key: Any
    ready: int
    taken: int
    buried: int
    delayed: int
    oldest: Waiting | None


def busiest_keys(tr: Transaction, discipline: Keyed, limit: int, now_us: int) -> list[KeyStatistics]:
    """Reads: by snapshot, at most three times limits.KEYS_LOOKED_AT_MAX keys. Conflicts: none."""
    return [one for _, one in _busiest(tr, discipline, limit, now_us)]


def busiest_of_all(changes: Sequence[Change], limit: int) -> list[KeyStatistics]:
    """The busiest task keys of all partitions. Their ready tasks are in one of them, or in two while the key
    moves; their other tasks may be in any. It reads three times limits.KEYS_LOOKED_AT_MAX keys of each.
    """
    found: dict[bytes, KeyStatistics] = {}
    disciplines = [(change, _keyed(change)) for change in changes]
    for change, discipline in disciplines:
        for key, one in _busiest(change.tr, discipline, limit, change.now_us):
            found[key] = _together(found[key], one) if key in found else one
    best = sorted(found.items(), key=lambda entry: (-entry[1].ready, entry[0]))[:limit]
    return [one for _, one in best] if len(changes) == 1 else _with_the_rest(changes, best)


def _with_the_rest(
    changes: Sequence[Change], best: Sequence[tuple[bytes, KeyStatistics]]
) -> list[KeyStatistics]:
    """The statistics of these keys, with tasks in partitions where they are not among the busiest."""
    asked = [
        [_keyed(change).counts.ask(change.tr, slug_of(key)).counts for change in changes] for key, _ in best
    ]
    numbers = [[unpacked(LIVE_NAMES, counts.value) for counts in of_key] for of_key in asked]
    return [_summed(one, parts) for (_, one), parts in zip(best, numbers, strict=True)]


def _summed(one: KeyStatistics, parts: Sequence[Mapping[str, int]]) -> KeyStatistics:
    total = {name: sum(part[name] for part in parts) for name in LIVE_NAMES}
    return KeyStatistics(key=one.key, **total, oldest=one.oldest)


def _keyed(change: Change) -> Keyed:
    assert isinstance(change.shape.discipline, Keyed)
    return change.shape.discipline


def _together(one: KeyStatistics, other: KeyStatistics) -> KeyStatistics:
    waiting = [part.oldest for part in (one, other) if part.oldest is not None]
    oldest = max(waiting, key=lambda first: first.age_s, default=None)
    return replace_fields(one, ready=one.ready + other.ready, oldest=oldest)


def _busiest(
    tr: Transaction, discipline: Keyed, limit: int, now_us: int
) -> list[tuple[bytes, KeyStatistics]]:
    found = [(key, numbers) for key, numbers in discipline.counts.busiest(tr.snapshot, limit) if is_key(key)]
    asked = [discipline.ask_oldest(tr.snapshot, key) for key, _ in found]
    records = [list(read_index(tr, line, no_mending)) for line in asked]
    return [
        (
            key,
            KeyStatistics(
                key=layer.unpack(key)[0],
                **numbers,
                oldest=next(
                    (Waiting(id_text(r.id), (now_us - r.created_us) / 1_000_000) for r in first), None
                ),
            ),
        )
        for (key, numbers), first in zip(found, records, strict=True)
    ]


def is_key(packed: bytes) -> bool:
    """False for a damaged key, which no task has."""
    try:
        return len(layer.unpack(packed)) == 1
    except (ValueError, IndexError, struct.error):
        return False


def checked_keys(limit: int) -> int:
    return checked_count("limit", limit, limits.KEYS_LOOKED_AT_MAX)


_log = logger("fdbqueue")


def partitions_in(changes: Sequence[Change]) -> list[Partition]:
    """Reads: the counters and flags, by snapshot. Round trips: 1."""
    asked = [_ask(change) for change in changes]
    return [reply() for reply in asked]


def _ask(change: Change) -> Callable[[], Partition]:
    keys, snapshot, plan = change.shape.keys, change.tr.snapshot, change.plan
    counters = snapshot.get(keys.counters)
    flag = snapshot.get(change.shape.shared.flag(keys.partition))

    def reply() -> Partition:
        tasks, done = unpacked(LIVE_NAMES, counters.value), calls_in(counters.value)
        return Partition(
            number=keys.partition,
            state=PartitionState.OPEN if plan is None else _state(plan, keys.partition),
            **tasks,
            puts=done["put"],
            takes=done["take"],
            may_be_ready=plan is None or bool(flag.present()),
            prefix=keys.prefix,
        )

    return reply


def _state(plan: Plan, number: int) -> PartitionState:
    if number < plan.count:
        return PartitionState.OPEN
    return PartitionState.CLOSING if number < plan.before else PartitionState.CLOSED


def statistics_in(changes: Sequence[Change]) -> Statistics:
    """The counters of all partitions, and how many delayed tasks are due, among limits.DUE_COUNTED_MAX timers
    of each; the tasks of groups that were cancelled, and that sweeps have not gone through yet.

    Reads: by snapshot, the counters and the timers that have run out; then the tasks of those timers, and the
    counts of the first limits.GROUPS_SWEPT_MAX groups that were cancelled.
    Conflicts: none.
    Round trips: 1; 2 while a delayed task may be due; 3 while sweeps go through a cancelled group.
    """
    asked = [(_ask_statistics(change), _ask_of_features(change)) for change in changes]
    found = summed([own() for own, _ in asked])
    for _, of_features in asked:
        for reply in of_features:
            _include(found, reply())
    return found


def _ask_of_features(change: Change) -> list[Callable[[], Statistics]]:
    return [rows.ask_statistics(change.tr.snapshot) for rows in rows_in_use(change.shape)]


def _include(found: Statistics, more: Statistics) -> None:
    for part, numbers in more.items():
        into = found.setdefault(part, {})
        for name, number in numbers.items():
            into[name] = into.get(name, 0) + number


def _ask_statistics(change: Change) -> Callable[[], Statistics]:
    tr, keys = change.tr, change.shape.keys
    counters = tr.snapshot.get(keys.counters)
    until = keys.timers_until(change.now_us)
    timers = tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_COUNTED_MAX)
    unreadable = change.shape.aside.ask_count(tr) if not keys.partition else lambda: 0

    def reply() -> Statistics:
        found = statistics_of(counters.value)
        found["tasks"]["unreadable"] = unreadable()
        found["tasks"]["due"] = _due(change, timers) if found["tasks"]["delayed"] else 0
        return found

    return reply


def parts_of(database: Database, shape: Shape) -> Parts:
    """The parts for one look: a process that looks at many queues does not look after them all."""
    return Parts(shape, database, Callbacks(database))


def sweep_a_batch(database: Database, parts: Parts) -> None:
    """Sweep up to limits.DUE_BATCH tasks, in one attempt.

    The caller already has its answer, so this must not raise: a conflict, a full disk and an unreadable
    payload are left to the next sweep. The keeper of a process with a session reports them.
    """
    with suppress(FdbQueueError, *engine_errors()):
        run(database.at("upkeep"), parts.tidy, retry_limit=0, timeout_s=limits.CLOSE_TIMEOUT_S)


def _due(change: Change, timers: Range) -> int:
    keys = change.shape.keys
    asked = [change.tr.snapshot.get(keys.delayed_at(id_in(timer.key))) for timer in timers]
    return sum(delayed.present() for delayed in asked)


def list_queues(db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> list[str]:
    """The names of all queues under the root, in order. Reads: by snapshot. Conflicts: none."""
    return [definition.name for definition in _definitions(db, Registry(root))]


def statistics(db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> dict[str, Statistics]:
    """The statistics of every task queue under the root that has a readable definition, by name.

    Given a database, the call also sweeps a batch of each queue.
    Reads: by snapshot.
    Conflicts: none.
    """
    registry = Registry(root)
    known = [found for found in _definitions(db, registry) if is_kind(found.kind)]
    shapes = [shape for found in known if (shape := _shape_of(db, registry, found)) is not None]
    return {shape.name: _statistics_of(at_pace(db, "look"), shape) for shape in shapes}


def _shape_of(target: DatabaseOrTransaction, registry: Registry, definition: Definition) -> Shape | None:
    """None, and a line in the log, for a definition that this release cannot read."""
    try:
        return shape_of(registry, definition)
    except DefinitionUnreadable as error:
        database = as_database(target.db if is_transaction(target) else target)
        database.troubles.met(_log, f"the queue {definition.name!r} is left out of the statistics", error)
        return None


def _statistics_of(target: DatabaseOrTransaction, shape: Shape) -> Statistics:
    database = as_database(target.db if is_transaction(target) else target)
    parts = parts_of(database, shape)
    found = run(target, lambda tr: parts.look_at_all(tr, statistics_in))
    if not is_transaction(target):
        sweep_a_batch(database, parts)
    return found


def _definitions(db: DatabaseOrTransaction, registry: Registry) -> list[Definition]:
    found: list[Definition] = []
    while more := registry.names(db, found[-1].name if found else ""):
        found += more
    return found
