"""Lanes: ready tasks that name limits wait apart, in one lane for each set of names.

A take reads only lanes with limits that let a task start. So a task over its limit holds up no other one, and
any number of them costs a take nothing. Within a lane tasks are in the order of the queue's kind. A take
merges the first tasks of the lanes in that order, too. parking.py has the key map.

A put sets the open key of its lane blindly, so puts conflict with nothing. A take that finds a lane empty
clears its key, and has read serialisably that no task is there; so a put that it did not see aborts it. It
does so only among many lanes: clearing a lane costs a conflict with the next put, each time.

Key lanes: tasks that name a limit with a key are in lanes of their own, one for each key. A take reads the
pointers of these in place of tasks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import heappop, heappush, merge
from itertools import chain, count, islice

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.limits.parking import KeyedLane, LaneKeys, Stands, stands_of
from fdbqueue.tasks.limits.rule import LanePlace, LimitKeys, Rule, rule_of
from fdbqueue.tasks.limits.state import Gate, Keyed, KeyState, ask_key
from fdbqueue.tasks.stored.discipline import Bag, Discipline, Fifo, read_index
from fdbqueue.tasks.stored.records import Record, TaskKeys

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
    state_of_key: Callable[[Rule | None], KeyState]


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
        rule, of_key = tr.snapshot.get(limit.row), ask_key(tr.snapshot, limit, key)
        return _Asked(lane, records, reads.get(lane.state), lane.ask_first(tr), rule, of_key)

    def _lead(self, tr: Transaction, asked: _Asked, stands: Stands | None, head: bytes) -> None:
        """Let the pointer of an open lane point at the task at `head`; a new lane is open, or parked."""
        lane = asked.lane
        if stands is not None:
            lane.point(tr, stands.head, head)
            return
        # Starts and ends of tasks of the key decide whether a new lane is open, and so does the limit.
        state = asked.state_of_key(rule_of(asked.rule.value))
        for read in dict.fromkeys((lane.limit.row, lane.limit.count(lane.key), state.starts_key)):
            tr.add_read_conflict_key(read)
        now_us = runtime_of(tr).now_us()
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


UNNAMED = b"\x00"
"""The lane of tasks that name no limit."""


class _Page:
    """The first tasks of a lane, or its pointers. Its read may have begun in a lane before it."""

    rows: Sequence[KeyValue] = ()
    is_cut = False
    """True if the lane may have more tasks, or the first ones."""

    def __init__(self, found: Range, under: slice, asked: int) -> None:
        """`under`: the whole lane. `asked`: number of tasks that the read returns at most."""
        self._found = found
        self.under = under
        self.asked = asked

    def see(self) -> Sequence[KeyValue]:
        start, stop, found = self.under.start, self.under.stop, self._found.to_list()
        self.rows = [row for row in found if start <= row.key < stop]
        self.is_cut = len(found) == self.asked and found[-1].key < stop
        return self.rows

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.is_cut


class Lanes(Fifo):
    def __init__(self, keys: TaskKeys, kind: Fifo, names: Sequence[str], root: bytes, queue: int) -> None:
        """`names`: of the limits that tasks may name. `queue`: the id of the queue, under `root`."""
        super().__init__(keys, {})
        self._kind = kind
        self._names = names
        self.lane_keys = LaneKeys(keys)
        self.open = self.lane_keys.open
        self.of_keys = KeyLanes(self.lane_keys, names, root, queue, keys.partition)
        self.names_of: Callable[[bytes], Sequence[str]] = cache(self._names_of)
        """The names of a lane. There are few lanes, and each look asks for them several times."""
        self._lane_of: Callable[[Sequence[str], str | None], bytes] = cache(self._mask)
        self._turns = count()
        self._likely: Sequence[bytes] = ()
        """Lanes in which the last look found tasks. It is advice: the next look asks for them at once."""
        self._lead = b""
        """The first of all open lanes, if the last look found tasks in it, and none in lane 0. The next look
        asks for lane 0 and for this lane in one read.
        """

    def place(self, record: Record) -> bytes:
        return self._kind.place(record)

    def lane(self, record: Record) -> bytes:
        extra = record.extra
        if extra is None or not extra.limits:
            return UNNAMED
        return self._lane_of(extra.limits, next(iter(extra.limit_keys), None))

    def _mask(self, named: Sequence[str], with_key: str | None) -> bytes:
        """The lane of tasks that name these limits, and one of them with a key."""
        mask = sum(1 << at for at, name in enumerate(self._names) if name in named)
        if with_key is None or with_key not in self._names:
            return bytes((mask,))
        return bytes((mask, self._names.index(with_key) + 1))

    def filed(self, record: Record) -> bytes:
        return self._start(record) + self._kind.place(record)

    def before(self, record: Record) -> slice:
        """The tasks in the lane of a ready one, up to its own key."""
        start = self._start(record)
        return slice(start, start + self._kind.place(record))

    def _start(self, record: Record) -> bytes:
        lane = self.lane(record)
        keyed = None if len(lane) == 1 else keyed_limit(record)
        tasks = self.lane_keys.plain(lane) if keyed is None else self.lane_keys.fifo(lane, keyed[1])
        start: bytes = tasks.start
        return start

    def open_key(self, lane: bytes) -> bytes:
        return self.lane_keys.open_key(lane)

    def tasks_of(self, lane: bytes) -> slice:
        return self.lane_keys.plain(lane) if len(lane) == 1 else self.lane_keys.pointers_of(lane)

    def is_lane(self, lane: bytes) -> bool:
        """True for the lane of some names; lane 0 is always read, and has no open key."""
        if not lane or not 0 < lane[0] < 1 << len(self._names):
            return False
        return len(lane) == 1 or (len(lane) == 2 and bool(lane[1]) and bool(lane[0] >> (lane[1] - 1) & 1))

    def _names_of(self, lane: bytes) -> Sequence[str]:
        return [name for at, name in enumerate(self._names) if lane[0] >> at & 1]

    def keyed_name(self, lane: bytes) -> str | None:
        """The name that the tasks of a lane have with keys."""
        return None if len(lane) == 1 else self._names[lane[1] - 1]

    def ask_put(
        self,
        tr: Transaction,
        keys: Collection[bytes],  # noqa: ARG002  # task keys, which such a queue has none of
    ) -> Callable[[Sequence[Record]], None]:
        return partial(self._put, tr)

    def _put(self, tr: Transaction, records: Sequence[Record]) -> None:
        if keyed := _ready_with_keys(records):
            self.of_keys.put(tr, keyed, self.lane, self.filed)
        self._file(tr, (), records)

    def shift(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        self._file(tr, olds, news)
        if keyed := _ready_with_keys((*olds, *news)):
            self.of_keys.follow(tr, keyed, self.lane)

    def _file(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        Fifo.shift(self, tr, olds, news)
        lanes = {self.lane(record) for record in news if record.state == TaskState.READY}
        for lane in lanes - {UNNAMED}:
            tr.set(self.open_key(lane), b"")

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        if keyed := _ready_with_keys(records):
            self.of_keys.claim(tr, keyed, self.lane)

    def startable(self, tr: Transaction, limit: int, gate: Gate) -> Iterable[Record]:
        """Ask, by snapshot, for tasks that `gate` has room for; it judges each of them once more.

        Reads: the open lanes; the first tasks of lane 0, and of the lanes with room. One read asks for lane 0
        and the first open lane, while lane 0 is empty.
        Round trips: 2; 1 if the last look of this process has found tasks in the same lanes, or in none. One
        more for tasks that name a limit with a key.
        """
        likely, lead = self._likely[: limits.LANES_READ_MAX], self._lead
        lanes = tr.snapshot.get_range(self.open.start, self.open.stop)
        early = {lane: self._ask_first(tr, lane, len(likely), limit) for lane in likely if lane != lead}
        if lead:
            unnamed, early[lead] = self._ask_leading(tr, lead, limit)
        else:
            unnamed = self._ask(tr, UNNAMED, limit)
        return self._startable(tr, limit, gate, unnamed, lanes, early)

    def _ask_leading(self, tr: Transaction, lane: bytes, limit: int) -> tuple[_Page, _Page]:
        """Ask for the first tasks of lane 0 and of `lane`. Tasks of a lane between them are left out."""
        first, under = self.tasks_of(UNNAMED), self.tasks_of(lane)
        found = self._rows(tr, slice(first.start, under.stop), limit)
        return _Page(found, first, limit), _Page(found, under, limit)

    def _startable(
        self,
        tr: Transaction,
        limit: int,
        gate: Gate,
        unnamed: _Page,
        rows: Range,
        early: Mapping[bytes, _Page],
    ) -> Iterator[Record]:
        known = [row.key[len(self.open.start) :] for row in rows.to_list()]
        found = [read_index(tr, unnamed.rows, self.mend)] if unnamed.see() else []
        likely = list[bytes]()
        self._likely, self._lead = likely, b""
        for few in self._windows([lane for lane in known if self._room(gate, lane) != 0]):
            asked = [
                (lane, early.get(lane) or self._ask_first(tr, lane, len(few), limit, gate)) for lane in few
            ]
            for lane, page in asked:
                if page.see():
                    likely.append(lane)
                if not page.is_empty:
                    found.append(self._following(tr, lane, page, limit, gate))
            if not unnamed.rows and likely[:1] == known[:1] and self.keyed_name(known[0]) is None:
                self._lead = known[0]
            if len(known) > limits.LANES_KEPT:
                self._close_empty(tr, asked)
            yield from self._merged(found)
            found = []
        yield from self._merged(found)

    def _merged(self, found: Sequence[Iterator[Record]]) -> Iterator[Record]:
        return merge(*found, key=self.place) if len(found) > 1 else chain(*found)

    def _room(self, gate: Gate, lane: bytes) -> int | None:
        return gate.room(self.names_of(lane), self.keyed_name(lane))

    def _windows(self, lanes: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
        """The lanes, limits.LANES_READ_MAX at a time. Other ones are first at each take, so none starves."""
        most = limits.LANES_READ_MAX
        if len(lanes) <= most:
            return [lanes] if lanes else []
        at = next(self._turns) * most % len(lanes)
        turned = [*lanes[at:], *lanes[:at]]
        return (turned[start : start + most] for start in range(0, len(turned), most))

    def _ask_first(
        self, tr: Transaction, lane: bytes, together: int, limit: int, gate: Gate | None = None
    ) -> _Page:
        """Ask for the first tasks of a lane: fewer of each, if several lanes are read together."""
        room = None if gate is None else self._room(gate, lane)
        share = min(limit, max(limit // together, limits.LANE_TASKS_FIRST))
        most = share if room is None else min(share, max(room, limits.LANE_TASKS_FIRST))
        return self._ask(tr, lane, most)

    def _following(
        self, tr: Transaction, lane: bytes, page: _Page, limit: int, gate: Gate
    ) -> Iterator[Record]:
        """The tasks of a lane, as long as it has room; it reads on behind the first ones."""
        if self.keyed_name(lane) is not None:
            return self.of_keys.startable(tr, lane, page.rows, page.asked, limit, gate, self._read)
        return self._unkeyed(tr, lane, page, limit, gate)

    def _read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Iterator[tuple[bytes, Record]]:
        return ((self.place(record), record) for record in read_index(tr, rows, self.mend))

    def _unkeyed(self, tr: Transaction, lane: bytes, page: _Page, limit: int, gate: Gate) -> Iterator[Record]:
        names = self.names_of(lane)
        while True:
            yield from read_index(tr, page.rows, self.mend)
            if not page.is_cut or gate.room(names) == 0:  # the gate lets none of its tasks through any more
                return
            start = page.rows[-1].key + b"\x00" if page.rows else page.under.start
            behind = slice(start, page.under.stop)
            page = _Page(self._rows(tr, behind, limit), behind, limit)
            page.see()

    def _close_empty(self, tr: Transaction, asked: Iterable[tuple[bytes, _Page]]) -> None:
        for lane, page in asked:
            if page.is_empty:
                under = self.tasks_of(lane)
                tr.add_read_conflict_range(under.start, under.stop)
                tr.clear(self.open_key(lane))

    def _ask(self, tr: Transaction, lane: bytes, limit: int) -> _Page:
        under = self.tasks_of(lane)
        return _Page(self._rows(tr, under, limit), under, limit)

    def _rows(self, tr: Transaction, under: slice, limit: int) -> Range:
        return tr.snapshot.get_range(under.start, under.stop, limit=limit)


def in_lanes(
    kind: str, keys: TaskKeys, made: Discipline, names: Sequence[str], root: bytes = b"", queue: int = 0
) -> Lanes:
    """Raises: InvalidArgument for a discipline that is not one ordered index."""
    if not isinstance(made, Fifo) or isinstance(made, Bag):
        wanted = f"none: the kind {kind!r} has no order in which its tasks can wait apart"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=names)
    return Lanes(keys, made, names, root, queue)


def limits_named(record: Record) -> Sequence[str]:
    return () if record.extra is None else record.extra.limits


def _ready_with_keys(records: Iterable[Record]) -> list[Record]:
    return [
        one
        for one in records
        if one.extra is not None and one.extra.limit_keys and one.state == TaskState.READY
    ]


def keyed_limit(record: Record) -> Keyed | None:
    if record.extra is None or not record.extra.limit_keys:
        return None
    return next(iter(record.extra.limit_keys.items()))
