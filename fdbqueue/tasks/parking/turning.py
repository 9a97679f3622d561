"""Parking: the lanes of one key, in all queues, when the key is exhausted, and when it is free again.

A transaction turns limits.LANES_TURNED lanes of a key; of a long key, fewer or none: limits.VERB_BATCH keys
may be free at once. If a key has more lanes, its row R[17, name, 6] at time 0 lets the next take or sweep go
on (settling.py).
"""

from collections.abc import Sequence
from functools import lru_cache

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.root_keys import CONTENTS
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction
from fdbqueue.tasks.limiting.keys import OPEN, PARKED, LanePlace, LimitKeys
from fdbqueue.tasks.limiting.state import ring
from fdbqueue.tasks.parking.keyed_lane import KeyedLane, stands_of
from fdbqueue.tasks.parking.lane_keys import LaneKeys
from fdbqueue.tasks.records.keys import TaskKeys


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
