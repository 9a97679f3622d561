"""Parking: tasks of keys over a limit wait where no take meets them, and come back when the key is free.

This file builds and parses the keys of the lanes of a queue whose tasks may name limits. A lane is named by
one byte or two. The first is a mask: its bit n stands for the n-th name that tasks of the queue may have.
The second one is there for tasks that name a limit with a key: the number of that name, from 1 on. They
have a lane for each key. `slug` is the key with its length in front, two bytes; `place` is the sort key of
the kind, and ends in the id of a task.

    S[3] lane, place                     ready    record     takes; lane 0 has the tasks without a limit
    S[3] KEYED_LANES, lane, slug, place  ready    record     takes, behind a pointer
    S[8] 1 lane                          open     empty      takes: this lane may have tasks
    S[8] 2 lane, place                   pointer  the key    takes: the first task of a key that may start one
    S[8] 3 lane, key                     state    see below  puts of the key, by snapshot; its changes

The state of the lane of a key is one byte. Behind OPEN_STATE is the place of its pointer. A parked one
has no pointer: its limit has no slot, or no token, for the key. Without tasks, there is no state.

Keyed lane: the ready tasks of one key in one queue, which name a limit with this key.
An *open* one has a pointer, at the place of its first task, and takes read pointers. A *parked* one has none:
its limit lets no task of the key start. So takes never meet the tasks of exhausted keys, however many there
are. The start that exhausts a key parks its lanes, in all queues, and each end that frees it
opens them. The first task of a key begins an open lane, or a parked one.

A put reads the state by snapshot, and appends its task if the lane has other ones. The conflict ranges that
make this safe are those of keyed.py: a change of the pointer relies on the tasks up to its new
place, and a put on the place of its own task.

Each sweep settles a few keys of a limit: it opens or parks their lanes. A key is *due* at the time of its
key R[17, name, 6]: its next token has come, or one transaction could not turn all of its lanes. Takes open
these lanes on their way, as they sweep tasks that are due. The rest is left to the sweeps of the keeper.
They clear rows that are over, and *walk* through the lanes and holders of all keys: the limit has changed,
or a truncate, a drop or a mending has removed tasks that held slots. All read the rows by which they decide
serialisably, so several sweeps at once do no harm.

A transaction turns limits.LANES_TURNED lanes of a key; of a long key, fewer or none: limits.VERB_BATCH keys
may be free at once. If a key has more lanes, its row R[17, name, 6] at time 0 lets the next take or sweep go
on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import run, runtime_of
from fdbqueue.core.root_keys import CONTENTS
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.tasks.limits.rule import KEY_HOLDER, KEYED, OPEN, PARKED, LanePlace, LimitKeys, held_of, rule_of
from fdbqueue.tasks.limits.state import KeyState, ask_key, ring
from fdbqueue.tasks.stored.records import TaskKeys, sound_record

KEYED_LANES = b"\xff" * 6
"""It is behind all lanes and places: a mask, the largest priority, and more than any index of a task."""
OPEN_STATE, PARKED_STATE = b"\x00", b"\x01"
_OPEN_LANE, _POINTER, _STATE, _END = b"\x01", b"\x02", b"\x03", b"\x04"
_SLUG_BYTES = 2


class LaneKeys:
    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys
        self._beside = keys.beside
        self.plain: Callable[[bytes], slice] = cache(self._plain)
        """The tasks of a lane without keys. There are few lanes, and each look asks for them often."""
        self.open = slice(keys.beside + _OPEN_LANE, keys.beside + _POINTER)
        self.pointers = slice(keys.beside + _POINTER, keys.beside + _STATE)
        self.states = slice(keys.beside + _STATE, keys.beside + _END)

    def open_key(self, lane: bytes) -> bytes:
        return self.open.start + lane

    def _plain(self, lane: bytes) -> slice:
        start, following = self._keys.ready_at(lane), lane[0] + 1
        return slice(start, self._keys.ready_at(bytes((following,)) if following <= 0xFF else KEYED_LANES))

    def pointers_of(self, lane: bytes) -> slice:
        start = self.pointers.start + lane
        return slice(start, self.pointers.start + lane[:1] + bytes((lane[1] + 1,)))

    def pointer(self, lane: bytes, place: bytes) -> bytes:
        return self.pointers.start + lane + place

    def state(self, lane: bytes, key: bytes) -> bytes:
        return self.states.start + lane + key

    def fifo(self, lane: bytes, key: bytes) -> slice:
        start = self._keys.ready_at(KEYED_LANES + lane + len(key).to_bytes(_SLUG_BYTES, "big") + key)
        return slice(start, start + b"\xff" * 40)

    def parted(self, rest: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Lane, key and place of a ready key, from behind its column; None for a task that names no key."""
        if not rest.startswith(KEYED_LANES):
            return None
        lane, behind = rest[len(KEYED_LANES) : len(KEYED_LANES) + 2], rest[len(KEYED_LANES) + 2 :]
        end = _SLUG_BYTES + int.from_bytes(behind[:_SLUG_BYTES], "big")
        return lane, behind[_SLUG_BYTES:end], behind[end:]


@dataclass(frozen=True)
class Stands:
    """The state of a lane. Without a `head` it is parked."""

    head: bytes = b""


def stands_of(value: bytes | None) -> Stands | None:
    if value == PARKED_STATE:
        return Stands()
    return Stands(value[1:]) if value is not None and value[:1] == OPEN_STATE and value[1:] else None


class KeyedLane:
    """One lane. Its state has been read serialisably before it is changed."""

    def __init__(self, keys: LaneKeys, limit: LimitKeys, key: bytes, at: LanePlace) -> None:
        self._keys = keys
        self.limit = limit
        self._at = at
        self.key = key
        self.fifo = keys.fifo(at.lane, key)
        self.state = keys.state(at.lane, key)

    def ask_first(self, tr: Transaction) -> Range:
        return tr.snapshot.get_range(self.fifo.start, self.fifo.stop, limit=1)

    def place_in(self, row_key: bytes) -> bytes:
        return row_key[len(self.fifo.start) :]

    def rely_on(self, tr: Transaction, head: bytes | None) -> None:
        """Conflict with the end of the first task, and with each put before it, whichever commits first.

        None: with each put.
        """
        stop = self.fifo.stop if head is None else self.fifo.start + head
        if head is not None:
            tr.add_read_conflict_key(stop)
        tr.add_read_conflict_range(self.fifo.start, stop)
        tr.add_write_conflict_range(self.fifo.start, stop)

    def begin(self, tr: Transaction, head: bytes, has_room: bool) -> None:
        tr.set(self.row(OPEN if has_room else PARKED), b"")
        if has_room:
            self.point(tr, b"", head)
        else:
            tr.set(self.state, PARKED_STATE)

    def point(self, tr: Transaction, old: bytes, head: bytes) -> None:
        """Move the pointer from the place `old`, if there is one, to another task."""
        if old:
            tr.clear(self._keys.pointer(self._at.lane, old))
        tr.set(self._keys.pointer(self._at.lane, head), self.key)
        tr.set(self._keys.open_key(self._at.lane), b"")
        tr.set(self.state, OPEN_STATE + head)

    def turn(self, tr: Transaction, stands: Stands, head: bytes, has_room: bool) -> None:
        """Open a parked lane, or park an open one. `head`: the place of its first task."""
        tr.clear(self.row(PARKED if has_room else OPEN))
        if bool(stands.head) == has_room:
            return  # that row was left by a lane that a truncate has removed
        tr.set(self.row(OPEN if has_room else PARKED), b"")
        if has_room:
            self.rely_on(tr, head)
            self.point(tr, b"", head)
        else:
            tr.clear(self._keys.pointer(self._at.lane, stands.head))
            tr.set(self.state, PARKED_STATE)

    def forget(self, tr: Transaction, stands: Stands | None) -> None:
        self.rely_on(tr, None)
        if stands is not None and stands.head:
            tr.clear(self._keys.pointer(self._at.lane, stands.head))
        tr.clear(self.state)
        for side in (OPEN, PARKED):
            tr.clear(self.row(side))

    def row(self, side: int) -> bytes:
        return self.limit.lane(self.key, side, self._at)


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
        rule, asked = tr.get(self._keys.row), [ask_key(tr, self._keys, key) for key in keys]
        found = rule_of(rule.value)
        return [of_key(found) for of_key in asked]

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
