"""The checks of lanes: each lane with ready tasks is open, and each open lane is one of the queue.

The state of the lane of a key names its first task, or says that it is parked. An open lane has one pointer,
and its limit has one row for each lane, on the side of its state.
"""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.cures import FOREIGN
from fdbqueue.operate.verify.partitions import expect_ready
from fdbqueue.operate.verify.slices import Mend, Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.disciplines.lanes import UNNAMED, Lanes, keyed_limit
from fdbqueue.tasks.limiting.keys import OPEN, PARKED, shown_key
from fdbqueue.tasks.parking.keyed_lane import KeyedLane, stands_of
from fdbqueue.tasks.records.keys import Record
from fdbqueue.tasks.shape import Shape

_OPEN_LANE, _POINTER, _STATE = 1, 2, 3


class LaneChecks:
    def __init__(self, shape: Shape, lanes: Lanes, mending: str) -> None:
        self._shape = shape
        self._lanes = lanes
        self._keys = lanes.lane_keys
        self._mending = mending

    # A ready task, and the open key of its lane, or the state of the lane of its key.

    def ask_ready(self, rest: bytes) -> Iterator[Ask]:
        parts = self._keys.parted(rest)
        if parts is not None:
            yield self._keys.state(*parts[:2])
        elif self._lanes.is_lane(rest[:1]):
            yield self._lanes.open_key(rest[:1])

    def judge_ready(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        lane, parts = rest[:1], self._keys.parted(rest)
        if parts is not None:
            yield from self._judge_keyed(row, *parts, seen)
        elif self._lanes.is_lane(lane) and seen.value(self._lanes.open_key(lane)) is None:
            names = ", ".join(map(repr, self._lanes.names_of(lane)))
            text = f"A ready task waits in the lane of {names}, which is not open: no take finds it."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, partial(self._open, lane))

    def _judge_keyed(self, row: Row, lane: bytes, key: bytes, place: bytes, seen: Seen) -> Iterator[Suspect]:
        if not self._is_keyed(lane):
            return  # the record of the task tells where it should be
        stands = stands_of(seen.value(self._keys.state(lane, key)))
        if stands is None:
            text = f"A ready task waits for {self._told(lane, key)}, and the lane has no state."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, self._rebuilding(lane, key))
        elif stands.head > place:
            text = f"A ready task waits for {self._told(lane, key)} before the pointer of the lane."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, self._rebuilding(lane, key))

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

    def ask_open(self, row: Row, rest: bytes) -> Iterator[Ask]:
        lane, behind = rest[1:3], rest[3:]
        if not self._is_keyed(lane):
            return
        if rest[0] == _POINTER:
            yield self._keys.state(lane, row.value)
        elif rest[0] == _STATE:
            yield from self._named_by(self._lanes.of_keys.lane_of(lane, behind), row.value, lane)

    def judge_open(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        lane, behind = rest[1:3], rest[3:]
        if rest[0] == _OPEN_LANE and self._lanes.is_lane(rest[1:]):
            return
        if rest[0] == _POINTER and self._is_keyed(lane):
            yield from self._judge_pointer(row, lane, behind, seen)
        elif rest[0] == _STATE and self._is_keyed(lane):
            yield from self._judge_lane_state(row, lane, behind, seen)
        else:
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a lane has this shape.", FOREIGN)

    def _judge_pointer(self, row: Row, lane: bytes, place: bytes, seen: Seen) -> Iterator[Suspect]:
        stands = stands_of(seen.value(self._keys.state(lane, row.value)))
        if stands is None or stands.head != place:
            text = f"A pointer for {self._told(lane, row.value)} is not the one that the lane names."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def _judge_lane_state(self, row: Row, lane: bytes, key: bytes, seen: Seen) -> Iterator[Suspect]:
        of_key, stands = self._lanes.of_keys.lane_of(lane, key), stands_of(row.value)
        named = [*self._named_by(of_key, row.value, lane)]
        if stands is None:
            text = f"The state of the lane of {self._told(lane, key)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, self._rebuilding(lane, key))
        elif any(seen.value(one) is None for one in named):
            side = "open" if stands.head else "parked"
            text = f"The lane of {self._told(lane, key)} is {side}, and lacks a key of that side."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, self._rebuilding(lane, key))

    def _named_by(self, of_key: KeyedLane, state: bytes, lane: bytes) -> Iterator[bytes]:
        """The keys that a lane in this state has."""
        stands = stands_of(state)
        if stands is None:
            return
        if not stands.head:
            yield of_key.row(PARKED)
            return
        yield of_key.row(OPEN)
        yield self._keys.pointer(lane, stands.head)
        yield self._lanes.open_key(lane)
        yield of_key.fifo.start + stands.head

    def _is_keyed(self, lane: bytes) -> bool:
        return len(lane) == 2 and self._lanes.is_lane(lane)

    def _told(self, lane: bytes, key: bytes) -> str:
        return f"the key {shown_key(key)!r} of the limit {self._lanes.keyed_name(lane)!r}"

    def _rebuilding(self, lane: bytes, key: bytes) -> Mend:
        def mend(tr: Transaction) -> None:
            self._lanes.of_keys.rebuild(tr, lane, key)
            expect_ready(tr, self._shape)

        return mend
