"""Lanes: ready tasks that name limits wait apart, in one lane for each set of names.

A take reads only lanes with limits that let a task start. So a task over its limit holds up no other one, and
any number of them costs a take nothing. Within a lane tasks are in the order of the queue's kind. A take
merges the first tasks of the lanes in that order, too. parking/lane_keys.py has the key map.

A put sets the open key of its lane blindly, so puts conflict with nothing. A take that finds a lane empty
clears its key, and has read serialisably that no task is there; so a put that it did not see aborts it. It
does so only among many lanes: clearing a lane costs a conflict with the next put, each time.

Tasks that name a limit with a key are in lanes of their own, which key_lanes.py keeps. A take reads the
pointers of these in place of tasks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from heapq import merge
from itertools import chain, count

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.seam import KeyValue, Range, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.disciplines.bag import Bag
from fdbqueue.tasks.disciplines.discipline import Discipline, Fifo, read_index
from fdbqueue.tasks.disciplines.key_lanes import KeyLanes
from fdbqueue.tasks.limiting.state import Gate, Keyed
from fdbqueue.tasks.parking.lane_keys import LaneKeys
from fdbqueue.tasks.records.keys import Record, TaskKeys

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
