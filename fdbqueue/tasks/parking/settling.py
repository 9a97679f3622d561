"""Settling: keys of a limit whose lanes have to be looked at again, a few in each sweep.

A key is *due* at the time of its key R[17, name, 6]: its next token has come, or one transaction could not
turn all of its lanes. Takes open these lanes on their way, as they sweep tasks that are due. The rest is left
to the sweeps of the keeper. They clear rows that are over, and *walk* through the lanes and holders of all
keys: the limit has changed, or a truncate, a drop or a mending has removed tasks that held slots. All read
the rows by which they decide serialisably, so several sweeps at once do no harm.

Parking: the lanes of one key, in all queues, when the key is exhausted, and when it is free again.

A transaction turns limits.LANES_TURNED lanes of a key; of a long key, fewer or none: limits.VERB_BATCH keys
may be free at once. If a key has more lanes, its row R[17, name, 6] at time 0 lets the next take or sweep go
on (settling.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import run, runtime_of
from fdbqueue.core.root_keys import CONTENTS
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.tasks.limiting.key_state import KeyState
from fdbqueue.tasks.limiting.keys import KEY_HOLDER, KEYED, OPEN, PARKED, LanePlace, LimitKeys, held_of
from fdbqueue.tasks.limiting.rule import rule_of
from fdbqueue.tasks.limiting.state import ring
from fdbqueue.tasks.parking.keyed_lane import KeyedLane, stands_of
from fdbqueue.tasks.parking.lane_keys import LaneKeys
from fdbqueue.tasks.records.keys import TaskKeys, sound_record


@lru_cache(maxsize=4096)
def task_keys(root: bytes, queue: int, partition: int) -> TaskKeys:
    return TaskKeys(Subspace((CONTENTS, queue), root), partition)


def ask_lanes(tr: ReadTransaction, limit: LimitKeys, key: bytes, has_room: bool) -> Range:
    under = limit.lanes(key, PARKED if has_room else OPEN)
    return tr.get_range(under.start, under.stop, limit=max(1, _lanes_turned(key)) + 1)


def _lanes_turned(key: bytes) -> int:
    """Number of lanes of the key that one of many ends or starts turns; none of a long key."""
    size_bytes = limits.LANE_BYTES + limits.LANE_KEY_COPIES * len(key)
    return min(limits.LANES_TURNED, limits.LANES_BYTES_TURNED // size_bytes)


def rely_on_lanes(tr: Transaction, limit: LimitKeys, key: bytes) -> None:
    """Conflict with each lane of a key that opens: the key is exhausted, and its open lanes were read."""
    under = limit.lanes(key, OPEN)
    tr.add_read_conflict_range(under.start, under.stop)


def turn_asked(
    tr: Transaction,
    root: bytes,
    limit: LimitKeys,
    key: bytes,
    rows: Sequence[KeyValue],
    has_room: bool,
    at_least: int = 0,
) -> None:
    """Open the lanes of these rows, or park them. Of more rows than it turns, sweeps and takes turn the rest.

    `at_least`: a sweep, which is to end, turns that number of lanes of a long key, too.
    """
    most = max(at_least, _lanes_turned(key))
    turn(tr, root, limit, [(key, limit.parts_of(row.key)[-3:], row.key) for row in rows[:most]], has_room)
    if len(rows) > most:
        tr.set(limit.due(0, key), b"")
        if has_room:  # a take that waits opens the next ones
            ring(tr, limit)


def turn(
    tr: Transaction,
    root: bytes,
    limit: LimitKeys,
    lanes: Sequence[tuple[bytes, Sequence[object], bytes]],
    has_room: bool,
) -> None:
    """Open lanes, or park them: each is a key, its place and its row. A row without a lane is cleared: that
    queue was truncated, or is gone.

    Reads: their states, serialisably; their first tasks, by snapshot.
    """
    found = [
        (lane_at(root, limit, key, LanePlace(*place)), row)  # type: ignore[arg-type]  # parts of a tuple have no type
        for key, place, row in lanes
    ]
    asked = [(lane, row, tr.get(lane.state), lane.ask_first(tr)) for lane, row in found]
    for lane, row, state, first in asked:
        stands, tasks = stands_of(state.value), first.to_list()
        if stands is None:
            tr.clear(row)
        elif tasks:
            lane.turn(tr, stands, lane.place_in(tasks[0].key), has_room)
        else:
            lane.forget(tr, stands)
    if lanes and has_room:
        ring(tr, limit)


def lane_at(root: bytes, limit: LimitKeys, key: bytes, at: LanePlace) -> KeyedLane:
    return KeyedLane(LaneKeys(task_keys(root, at.queue, at.partition)), limit, key, at)


_LATER = b"\x00"


class Settling:
    def __init__(self, root: bytes, keys: LimitKeys) -> None:
        self._root = root
        self._keys = keys

    def ask(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """Ask, by snapshot, for keys that are due. The reply settles some. True if there were any."""
        due = self._ask_few(tr, self._keys.dues_until(now_us))
        return lambda: self._settle(tr, due.to_list(), now_us)

    def ask_rest(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """Ask, by snapshot, for the keeper's work: rows that are over, and a walk. True if there was any."""
        over, walk = self._ask_few(tr, self._keys.overs_until(now_us)), tr.snapshot.get(self._keys.walk)
        return lambda: self._forget(tr, over.to_list(), now_us) or self._walk(tr, walk, now_us)

    def _ask_few(self, tr: Transaction, under: slice) -> Range:
        return tr.snapshot.get_range(under.start, under.stop, limit=limits.KEYS_SETTLED)

    def ask_next(self, tr: Transaction) -> Callable[[], int | None]:
        return self._ask_first(tr, self._keys.dues)

    def ask_next_rest(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the keeper has something to do."""
        first, walk = self._ask_first(tr, self._keys.overs), tr.snapshot.get(self._keys.walk)
        return lambda: 0 if walk.present() else first()

    def _ask_first(self, tr: Transaction, under: slice) -> Callable[[], int | None]:
        first = tr.snapshot.get_range(under.start, under.stop, limit=1)
        return lambda: next((self._keys.parts_of(row.key)[1] for row in first), None)

    # Keys that are due.

    def _settle(self, tr: Transaction, due: Sequence[KeyValue], now_us: int) -> bool:
        parts = [self._keys.parts_of(row.key) for row in due]
        states = self._states(tr, [key for _, _, key in parts])
        lanes = [ask_lanes(tr, self._keys, state.key, state.has_room(now_us)) for state in states]
        for (_, time_us, _), state, rows in zip(parts, states, lanes, strict=True):
            self._settle_key(tr, time_us, state, rows, now_us)
        return bool(due)

    def _states(self, tr: Transaction, keys: Sequence[bytes]) -> list[KeyState]:
        rule, rows = tr.get(self._keys.row), [tr.get(self._keys.count(key)) for key in keys]
        found = rule_of(rule.value)
        return [KeyState(self._keys, key, found, row.value) for key, row in zip(keys, rows, strict=True)]

    def _settle_key(self, tr: Transaction, time_us: int, state: KeyState, lanes: Range, now_us: int) -> None:
        tr.clear(self._keys.due(time_us, state.key))
        turn_asked(tr, self._root, self._keys, state.key, lanes.to_list(), state.has_room(now_us), at_least=1)
        # Else it is one of slots, or has another time by now. At 0, a faster clock may have met its token.
        if state.over_us and state.due_us == time_us:
            state.refill(tr, state.full_ns, now_us, anew=True)

    def _forget(self, tr: Transaction, over: Sequence[KeyValue], now_us: int) -> bool:
        parts = [self._keys.parts_of(row.key) for row in over]
        states = self._states(tr, [key for _, _, key in parts])
        for (_, time_us, key), state in zip(parts, states, strict=True):
            if state.over_us == time_us:
                state.look_later(tr, now_us)
            else:
                tr.clear(self._keys.over(time_us, key))
        return bool(over)

    # All keys.

    def walk(self, tr: Transaction, now_us: int) -> bool:
        """Look at the next limits.KEY_ROWS_WALKED rows of a walk. False without one."""
        return self._walk(tr, tr.snapshot.get(self._keys.walk), now_us)

    def _walk(self, tr: Transaction, walk: Value, now_us: int) -> bool:
        if not walk.present():
            return False
        after = tr.get(self._keys.walk).value or b""
        under, most = self._keys.of_keys, limits.KEY_ROWS_WALKED
        start = after + _LATER if after else under.start
        rows = tr.get_range(start, under.stop, limit=most).to_list()
        self._look_at(tr, rows, now_us)
        if len(rows) < most:
            tr.clear(self._keys.walk)
        else:
            tr.set(self._keys.walk, rows[-1].key)
        return True

    def _look_at(self, tr: Transaction, rows: Sequence[KeyValue], now_us: int) -> None:
        parts = [(row, *self._keys.parts_of(row.key)[1:]) for row in rows]
        holders = [(row, key, queue, id_) for row, key, side, queue, id_, *_ in parts if side == KEY_HOLDER]
        self._take_back(tr, holders)
        states = self._states(tr, [*dict.fromkeys(key for _, key, *_ in parts)])
        room = {state.key: state.has_room(now_us) for state in states}
        for has_room in (True, False):
            few = [
                (key, place, row.key)
                for row, key, side, *place in parts
                if side != KEY_HOLDER and room[key] == has_room
            ]
            turn(tr, self._root, self._keys, few, has_room)
        for state in states:
            if state.over_us and state.is_apart:
                state.refill(tr, state.full_ns, now_us)

    def _take_back(self, tr: Transaction, holders: Sequence[tuple[KeyValue, bytes, int, bytes]]) -> None:
        asked = []
        for row, key, queue, id_ in holders:
            held = held_of(row.value)
            task = None if held is None else tr.get(task_keys(self._root, queue, held.partition).task(id_))
            asked.append((row, key, id_, task))
        for row, key, id_, task in asked:
            if task is None or not _holds(task.value, id_, self._keys.name):
                tr.clear(row.key)
                KeyState(self._keys, key, None, None).hold(tr, -1)


def begin_walks(tr: Transaction, of: Iterable[LimitKeys]) -> None:
    """Have sweeps go through all keys of the limits that have some. Reads: by snapshot."""
    for keys, row in [(keys, tr.snapshot.get(keys.row)) for keys in of]:
        rule = rule_of(row.value)
        if rule is None or rule.has_keys:
            tr.set(keys.walk, b"")
        if rule is not None and rule.has_keys:
            ring(tr, keys)


def walk_out(db: DatabaseOrTransaction, root: bytes, keys: LimitKeys) -> Iterator[None]:
    """End the walk that is under way, if there is one: a step for each transaction."""
    walk = Settling(root, keys).walk
    while run(db, lambda tr: walk(tr, runtime_of(tr).now_us())):
        yield


def _holds(stored: bytes | None, id_: bytes, name: str) -> bool:
    """True if the task may hold a slot of its key; also for a record that cannot be read."""
    record = sound_record(stored, id_)
    if record is None:
        return stored is not None
    return record.extra is not None and record.extra.slots.get(name) == KEYED
