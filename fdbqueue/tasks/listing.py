"""Tasks of one state, page by page, without a change of the queue.

A page continues in the index of the state, where the last page ended. Tasks that are due and not yet swept
are read from the timers. The first limits.DUE_BATCH of them are listed among the ready tasks, in order. The
others follow after all ready tasks, in the order of their time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import Page, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.partitions import home_of
from fdbqueue.core.seam import KeyValue, Range
from fdbqueue.core.task import HeldKey, Task, TaskState
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.disciplines.key_counts import readable_state, slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.payloads import shown_tasks
from fdbqueue.tasks.records.keys import Record, id_in, sound_record
from fdbqueue.tasks.records.statistics import LIVE, unpacked
from fdbqueue.tasks.sweep import as_of


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
        numbers = unpacked(LIVE, counted.value)
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
