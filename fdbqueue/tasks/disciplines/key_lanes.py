"""Key lanes: the lanes of tasks that name a limit with a key, one for each key (parking/keyed_lane.py)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.tasks.limiting.key_state import KeyState
from fdbqueue.tasks.limiting.keys import LanePlace, LimitKeys
from fdbqueue.tasks.limiting.rule import rule_of
from fdbqueue.tasks.limiting.state import Gate, Keyed
from fdbqueue.tasks.parking.keyed_lane import KeyedLane, Stands, stands_of
from fdbqueue.tasks.parking.lane_keys import LaneKeys
from fdbqueue.tasks.records.keys import Record

Filed = Callable[[Record], bytes]
"""The key of a ready task, or its lane."""
Read = Callable[[Transaction, Sequence[KeyValue]], Iterator[tuple[bytes, Record]]]
"""Reads tasks, each with its place."""


@dataclass(frozen=True)
class _Asked:
    lane: KeyedLane
    records: Sequence[Record]
    state: Value
    first: Range
    rule: Value
    count: Value


@dataclass(frozen=True)
class _Head:
    keyed: Keyed
    fifo: slice
    tasks: Range
    few: int
    """Number of tasks that were asked for."""
    see: Callable[[], None]
    """Waits for the number of tasks of the key that may start."""


class KeyLanes:
    def __init__(self, keys: LaneKeys, names: Sequence[str], root: bytes, queue: int, partition: int) -> None:
        """`names`: of the limits that tasks may name. `queue`: the id of the queue, under `root`."""
        self._keys = keys
        self._limits = [LimitKeys(root, name) for name in names]
        self._queue = queue
        self._partition = partition

    def lane_of(self, lane: bytes, key: bytes) -> KeyedLane:
        at = LanePlace(self._queue, self._partition, lane)
        return KeyedLane(self._keys, self._limit_of(lane), key, at)

    def _limit_of(self, lane: bytes) -> LimitKeys:
        return self._limits[lane[1] - 1]

    # Changes of ready tasks:

    def put(self, tr: Transaction, records: Sequence[Record], lane_of: Filed, filed: Filed) -> None:
        """New tasks become ready; they are not filed yet.

        Conflicts: a change of the pointer beyond the task; for the first task of a key, its starts and ends.
        """
        for asked in self._ask(tr, tr.snapshot, records, lane_of):
            for record in asked.records:
                tr.add_read_conflict_key(filed(record))
            stands, lane = stands_of(asked.state.value), asked.lane
            head = min(lane.place_in(filed(record)) for record in asked.records)
            if stands is None or (stands.head and head < stands.head):
                tr.add_read_conflict_key(lane.state)
                self._lead(tr, asked, stands, head)

    def follow(self, tr: Transaction, records: Sequence[Record], lane_of: Filed) -> None:
        """Tasks have become ready, or are ready no more; the change is filed.

        Reads: the states, serialisably; the first tasks, by snapshot; the limits and the counts of the keys.
        """
        for asked in self._ask(tr, tr, records, lane_of):
            stands, tasks, lane = stands_of(asked.state.value), asked.first.to_list(), asked.lane
            if not tasks:
                lane.forget(tr, stands)
                continue
            head = lane.place_in(tasks[0].key)
            if stands is None or (stands.head and stands.head != head):
                lane.rely_on(tr, head)
                self._lead(tr, asked, stands, head)

    def rebuild(self, tr: Transaction, lane: bytes, key: bytes) -> None:
        """Make the state of a lane anew, with the pointer and the row of the limit."""
        of_key = self.lane_of(lane, key)
        asked = self._ask_lane(tr, tr, lane, key, ())
        tasks = asked.first.to_list()
        of_key.forget(tr, stands_of(asked.state.value))
        if tasks:
            self._lead(tr, asked, None, of_key.place_in(tasks[0].key))

    def claim(self, tr: Transaction, records: Sequence[Record], lane_of: Filed) -> None:
        for lane, key in {(lane_of(record), _key_of(record)) for record in records}:
            tr.add_read_conflict_key(self._keys.state(lane, key))

    def _ask(
        self, tr: Transaction, reads: ReadTransaction, records: Sequence[Record], lane_of: Filed
    ) -> list[_Asked]:
        groups: dict[tuple[bytes, bytes], list[Record]] = {}
        for record in records:
            groups.setdefault((lane_of(record), _key_of(record)), []).append(record)
        return [self._ask_lane(tr, reads, lane, key, few) for (lane, key), few in groups.items()]

    def _ask_lane(
        self, tr: Transaction, reads: ReadTransaction, name: bytes, key: bytes, records: Sequence[Record]
    ) -> _Asked:
        lane, limit = self.lane_of(name, key), self._limit_of(name)
        rule, used = tr.snapshot.get(limit.row), tr.snapshot.get(limit.count(key))
        return _Asked(lane, records, reads.get(lane.state), lane.ask_first(tr), rule, used)

    def _lead(self, tr: Transaction, asked: _Asked, stands: Stands | None, head: bytes) -> None:
        """Let the pointer of an open lane point at the task at `head`; a new lane is open, or parked."""
        lane = asked.lane
        if stands is not None:
            lane.point(tr, stands.head, head)
            return
        # Starts and ends of tasks of the key decide whether a new lane is open, and so does the limit.
        for read in (lane.limit.row, lane.limit.count(lane.key)):
            tr.add_read_conflict_key(read)
        now_us = runtime_of(tr).now_us()
        state = KeyState(lane.limit, lane.key, rule_of(asked.rule.value), asked.count.value)
        has_room = state.has_room(now_us)
        lane.begin(tr, head, has_room)
        if not has_room and state.over_us:  # a clock that is ahead has put the next look off, or has done it
            state.refill(tr, state.full_ns, now_us)

    # Looks:

    def startable(
        self,
        tr: Transaction,
        lane: bytes,
        rows: Sequence[KeyValue],
        asked: int,
        limit: int,
        gate: Gate,
        read: Read,
    ) -> Iterator[Record]:
        """The tasks behind the pointers of a lane, in order, as far as their keys have room.

        `rows`: the first pointers, `asked` of them at most. It passes exhausted keys, limits.KEYS_PASSED of
        them: sweeps park these.
        """
        heads = self._ask_heads(tr, lane, rows, limit, gate)
        return self._startable(tr, lane, rows, heads, asked, limit, gate, read)

    def _startable(
        self,
        tr: Transaction,
        lane: bytes,
        rows: Sequence[KeyValue],
        heads: Sequence[_Head],
        asked: int,
        limit: int,
        gate: Gate,
        read: Read,
    ) -> Iterator[Record]:
        heap: list[tuple[bytes, int, Record, _Head, Iterator[tuple[bytes, Record]]]] = []
        turns, passed, pointers = count(), 0, self._keys.pointers_of(lane)
        while True:
            for head in heads:
                head.see()
                if gate.room_of_key(head.keyed) == 0:
                    passed += 1
                    continue
                behind = self._behind(tr, head, limit, read)
                for place, record in islice(behind, 1):
                    heappush(heap, (place, next(turns), record, head, behind))
            last = rows[-1].key[len(pointers.start) :] if len(rows) == asked else None
            while heap and (last is None or heap[0][0] <= last):
                _, _, record, head, behind = heappop(heap)
                if gate.room_of_key(head.keyed) == 0:
                    continue
                yield record
                for place, following in islice(behind, 1):
                    heappush(heap, (place, next(turns), following, head, behind))
            if last is None or passed >= limits.KEYS_PASSED:
                return
            asked = max(limit, limits.LANE_TASKS_FIRST)
            under = slice(rows[-1].key + b"\x00", pointers.stop)
            rows = tr.snapshot.get_range(under.start, under.stop, limit=asked).to_list()
            heads = self._ask_heads(tr, lane, rows, limit, gate)

    def _ask_heads(
        self, tr: Transaction, lane: bytes, rows: Sequence[KeyValue], limit: int, gate: Gate
    ) -> list[_Head]:
        name, few = self._limit_of(lane).name, min(limit, limits.LANE_TASKS_FIRST)
        heads = []
        for row in rows:
            key = bytes(row.value)
            fifo = self._keys.fifo(lane, key)
            tasks = tr.snapshot.get_range(fifo.start, fifo.stop, limit=few)
            heads.append(_Head((name, key), fifo, tasks, few, gate.ask_key(tr, (name, key))))
        return heads

    def _behind(self, tr: Transaction, head: _Head, limit: int, read: Read) -> Iterator[tuple[bytes, Record]]:
        rows, asked = head.tasks.to_list(), head.few
        while rows:
            yield from read(tr, rows)
            if len(rows) < asked:
                return
            asked, under = limit, slice(rows[-1].key + b"\x00", head.fifo.stop)
            rows = tr.snapshot.get_range(under.start, under.stop, limit=asked).to_list()


def _key_of(record: Record) -> bytes:
    assert record.extra is not None
    [key] = record.extra.limit_keys.values()
    return key
