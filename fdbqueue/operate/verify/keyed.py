"""The checks of disciplines with keys of their own: task keys of a keyed one, and lanes of limits.

A task key with ready tasks has a line, a state, a pointer and counters. Each lane with ready tasks is open,
and each open lane is one of the queue. The state of the lane of a key names its first task, or says that it
is parked. An open lane has one pointer, and its limit has one row for each lane, on the side of its state.
"""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.rows import FOREIGN, Check, Flaw, Row, Seen, Suspect, resized, told_key, under
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.partitions import HeldChecks, expect_ready
from fdbqueue.tasks.limits.lanes import UNNAMED, Lanes, keyed_limit
from fdbqueue.tasks.limits.parking import KeyedLane, stands_of
from fdbqueue.tasks.limits.rule import OPEN, PARKED, shown_key
from fdbqueue.tasks.rows import OfShape
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import keyed as stored_keyed
from fdbqueue.tasks.stored.key_counts import KeyState, Numbers, key_of, level_in, readable_state
from fdbqueue.tasks.stored.keyed import Fair, Keyed, is_slug, parts_of, rebuild, task_key_in
from fdbqueue.tasks.stored.records import ID_BYTES, LIVE_NAMES, Record, id_in, id_text, sound_record, unpacked

NUMBER_BYTES = 8
_OPEN_LANE, _POINTER, _STATE = b"\x01", b"\x02", b"\x03"


class BesideChecks(OfShape):
    def __init__(self, shape: Shape, keyed: Keyed, mending: str) -> None:
        super().__init__(shape, mending)
        self._keyed = keyed
        self._held = HeldChecks(shape, keyed, mending)
        self.counters: dict[bytes, Numbers] = {}
        """The stored counters of the task keys, in the slices so far."""
        self._checks = {
            stored_keyed.WAITING: self._waiting,
            stored_keyed.STATE: self._state,
            stored_keyed.ROUND: self._number,
            stored_keyed.COUNTS: self._counts,
            stored_keyed.BUSY: self._busy,
            stored_keyed.LEVEL: self._level,
            stored_keyed.FLOOR: self._number,
        }

    def check(self, row: Row, _: bytes) -> Check:
        column, rest = parts_of(self._keys.beside, row.key)
        if column not in self._checks or not self._has_shape(column, rest):
            return self.unknown(row, "No key of a discipline has this shape.")
        return self._checks[column](row, rest)

    def note(self, row: Row) -> None:
        column, rest = parts_of(self._keys.beside, row.key)
        if column == stored_keyed.COUNTS and is_slug(rest):
            self.counters[key_of(rest)] = unpacked(LIVE_NAMES, row.value)

    def rebuild(self, key: bytes, tr: Transaction) -> None:
        rebuild(self._keyed, tr, key)
        expect_ready(tr, self._shape)

    def _has_shape(self, column: int, rest: bytes) -> bool:
        if column == stored_keyed.WAITING:
            return task_key_in(rest) is not None
        if column == stored_keyed.ROUND:
            return not rest and isinstance(self._keyed, Fair)
        if column == stored_keyed.FLOOR:
            return not rest and not self._shape.definition.id  # a FairQueue
        return is_slug(rest[1:] if column == stored_keyed.BUSY else rest)

    # The line of a task key: its ready tasks.

    def _waiting(self, row: Row, rest: bytes) -> Check:
        key, id_ = task_key_in(rest) or b"", id_in(row.key)
        task, state, fifo = self._keys.task(id_), self._keyed.state_key(key), under(self._keyed.fifo(key), 1)
        seen = yield [task, state, fifo]
        record = sound_record(seen.value(task), id_)
        if not seen.has(task):
            text = f"The line of a task key has the task {id_text(id_)}, which is missing."
            yield self.found(Flaw.STRAY, row, text, lambda tr: self._shape.mender.lost(tr, *row))
        elif record is not None and not self._is_filed(record, row.key):
            where = f"{TaskState(record.state).name} elsewhere"
            text = f"The line of a task key has the task {id_text(id_)}, which is {where}."
            yield self.found(Flaw.STRAY, row, text, partial(self._clear, row, key))
        if seen.rows(fifo)[0].key == row.key and not seen.has(state):
            text = f"The task key {told_key(key)} has ready tasks and no state: no take finds them."
            yield self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, key))

    def _is_filed(self, record: Record, key: bytes) -> bool:
        return record.state == TaskState.READY and self._keyed.filed(record) == key

    # The state of a task key, and its pointer.

    def taken(self, row: Row) -> Check:
        """Check that the key of a taken task counts it."""
        state = self._keyed.state_key(row.value)
        if not (yield [state]).has(state) and self._keyed.counts_taken:
            text = f"The task key {told_key(row.value)} has taken tasks and no state that counts them."
            yield self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, row.value))

    def pointer(self, row: Row, place: bytes) -> Check:
        record = sound_record(row.value, id_in(row.key))
        if record is None:
            text = f"The pointer to the task {id_text(id_in(row.key))} cannot be read."
            yield self.found(Flaw.COPY, row, text, lambda tr: self._shape.mender.entry(tr, *row))
            return
        key = self._keyed.state_key(record.key)
        state = readable_state((yield [key]).value(key))
        if state is not None and state.pointer != place:
            text = f"A pointer to the task {id_text(record.id)} is not the one of its task key."
            yield self.found(Flaw.STRAY, row, text, partial(self._clear, row, record.key))

    def _state(self, row: Row, rest: bytes) -> Check:
        key, state = key_of(rest), readable_state(row.value)
        if state is None:
            yield self._wrong_state(row, key, "cannot be read")
            return
        definition = [self._held.definition] if state.held else []
        named = [self._keys.ready_at(state.pointer), under(self._keyed.fifo(key), 1), *definition]
        seen = yield [*named, self._keyed.counts.counts_key(rest)]
        wrong = self._wrong_pointer(key, state, seen) or self._wrong_count(rest, state, seen)
        if wrong:
            yield self._wrong_state(row, key, wrong)
        elif state.held:
            yield self._held.waits(row, key, seen)

    def _wrong_state(self, row: Row, key: bytes, wrong: str) -> Suspect:
        text = f"The state of the task key {told_key(key)} {wrong}."
        return self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, key))

    def _wrong_pointer(self, key: bytes, state: KeyState, seen: Seen) -> str | None:
        first = next(iter(seen.rows(under(self._keyed.fifo(key), 1))), None)
        if not state.pointer:
            waits = first is not None and self._keyed.is_open(state)
            return "has no pointer, and its tasks wait for ever" if waits else None
        if first is None:
            return "has a pointer, and the key has no ready task"
        if not self._keyed.is_open(state):
            return "has a pointer, and no task of the key may be taken"
        if not seen.has(self._keys.ready_at(state.pointer)):
            return "has a pointer that takes do not find"
        place = first.key[len(self._keyed.fifo(key).start) :]
        if len(place) >= ID_BYTES and place != state.head:
            return "has a pointer to another task than the first"
        return None

    def _wrong_count(self, slug: bytes, state: KeyState, seen: Seen) -> str | None:
        if not self._keyed.counts_taken:
            return None
        taken = unpacked(LIVE_NAMES, seen.value(self._keyed.counts.counts_key(slug)))["taken"]
        return None if state.taken == taken else f"counts {state.taken} taken tasks, its counter {taken}"

    # Counters and levels.

    def _counts(self, row: Row, rest: bytes) -> Check:
        if len(row.value) != len(LIVE_NAMES) * NUMBER_BYTES or not any(row.value):
            text = f"The counters of the task key {told_key(key_of(rest))} are damaged: {row.value.hex()}."
            yield self.found(Flaw.KEY_COUNTER, row, text, resized(row, len(LIVE_NAMES) * NUMBER_BYTES))

    def _busy(self, row: Row, rest: bytes) -> Check:
        level = self._keyed.counts.level_key(rest[1:])
        if (yield [level]).value(level) != bytes([level_in(rest)]):
            told = told_key(key_of(rest[1:]))
            text = f"The index of busy keys has the task key {told} at a level that it has left."
            yield self.found(Flaw.KEY_COUNTER, row, text)

    def _level(self, row: Row, rest: bytes) -> Check:
        busy = [self._keyed.counts.busy_key(row.value[0], rest)] if len(row.value) == 1 else []
        if not any(map((yield busy).has, busy)):
            told = told_key(key_of(rest))
            text = f"The task key {told} has a level, and no entry in the index of busy keys."
            yield self.found(Flaw.KEY_COUNTER, row, text)

    def _number(self, row: Row, _: bytes) -> Check:
        if len(row.value) != NUMBER_BYTES:
            yield self.found(Flaw.VALUE, row, f"A number of the discipline is damaged: {row.value.hex()}.")

    def _clear(self, row: Row, key: bytes, tr: Transaction) -> None:
        tr.clear(row.key)
        self.rebuild(key, tr)


class LaneChecks(OfShape):
    def __init__(self, shape: Shape, lanes: Lanes, mending: str) -> None:
        super().__init__(shape, mending)
        self._lanes = lanes
        self._of_lanes = lanes.lane_keys

    # A ready task, and the open key of its lane, or the state of the lane of its key.

    def ready(self, row: Row, rest: bytes) -> Check:
        lane, parts = rest[:1], self._of_lanes.parted(rest)
        if parts is not None:
            yield from self._keyed_ready(row, *parts)
        elif self._lanes.is_lane(lane):
            key = self._lanes.open_key(lane)
            if not (yield [key]).has(key):
                names = ", ".join(map(repr, self._lanes.names_of(lane)))
                text = f"A ready task waits in the lane of {names}, which is not open: no take finds it."
                yield self.found(Flaw.STATE, row, text, partial(self._open, lane))

    def _keyed_ready(self, row: Row, lane: bytes, key: bytes, place: bytes) -> Check:
        state = self._of_lanes.state(lane, key)
        stands = stands_of((yield [state]).value(state))
        if not self._is_keyed(lane):
            return  # the record of the task tells where it should be
        if stands is None:
            text = f"A ready task waits for {self._told(lane, key)}, and the lane has no state."
            yield self.found(Flaw.STATE, row, text, partial(self._rebuild, lane, key))
        elif stands.head > place:
            text = f"A ready task waits for {self._told(lane, key)} before the pointer of the lane."
            yield self.found(Flaw.STATE, row, text, partial(self._rebuild, lane, key))

    def open_for(self, tr: Transaction, record: Record) -> None:
        """Open the lane of a task that is ready by a mending."""
        lane, keyed = self._lanes.lane(record), keyed_limit(record)
        if keyed is not None and self._is_keyed(lane):
            self._lanes.of_keys.rebuild(tr, lane, keyed[1])
        self._open(lane, tr)

    def _open(self, lane: bytes, tr: Transaction) -> None:
        if lane != UNNAMED:
            tr.set(self._lanes.open_key(lane), b"")
        expect_ready(tr, self._shape)

    # An open key, a pointer, or a state.

    def check(self, row: Row, rest: bytes) -> Check:
        column, lane, behind = rest[:1], rest[1:3], rest[3:]
        if column == _POINTER and self._is_keyed(lane):
            yield from self._pointer(row, lane, behind)
        elif column == _STATE and self._is_keyed(lane):
            yield from self._state(row, lane, behind)
        elif column != _OPEN_LANE or not self._lanes.is_lane(rest[1:]):
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a lane has this shape.", FOREIGN)

    def _pointer(self, row: Row, lane: bytes, place: bytes) -> Check:
        state = self._of_lanes.state(lane, row.value)
        stands = stands_of((yield [state]).value(state))
        if stands is None or stands.head != place:
            text = f"A pointer for {self._told(lane, row.value)} is not the one that the lane names."
            yield self.found(Flaw.STRAY, row, text)

    def _state(self, row: Row, lane: bytes, key: bytes) -> Check:
        of_key, stands = self._lanes.of_keys.lane_of(lane, key), stands_of(row.value)
        rebuild = partial(self._rebuild, lane, key)
        if stands is None:
            text = f"The state of the lane of {self._told(lane, key)} cannot be read."
            yield self.found(Flaw.VALUE, row, text, rebuild)
            return
        named = list(self._named_by(of_key, stands.head, lane))
        if not all(map((yield named).has, named)):
            side = "open" if stands.head else "parked"
            text = f"The lane of {self._told(lane, key)} is {side}, and lacks a key of that side."
            yield self.found(Flaw.STATE, row, text, rebuild)

    def _named_by(self, of_key: KeyedLane, head: bytes, lane: bytes) -> Iterator[bytes]:
        """The keys that a lane has, which is open if it has a head."""
        if not head:
            yield of_key.row(PARKED)
            return
        yield of_key.row(OPEN)
        yield self._of_lanes.pointer(lane, head)
        yield self._lanes.open_key(lane)
        yield of_key.fifo.start + head

    def _is_keyed(self, lane: bytes) -> bool:
        return len(lane) == 2 and self._lanes.is_lane(lane)

    def _told(self, lane: bytes, key: bytes) -> str:
        return f"the key {shown_key(key)!r} of the limit {self._lanes.keyed_name(lane)!r}"

    def _rebuild(self, lane: bytes, key: bytes, tr: Transaction) -> None:
        self._lanes.of_keys.rebuild(tr, lane, key)
        expect_ready(tr, self._shape)
