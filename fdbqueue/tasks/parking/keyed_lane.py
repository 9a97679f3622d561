"""Keyed lane: the ready tasks of one key in one queue, which name a limit with this key.

An *open* one has a pointer, at the place of its first task, and takes read pointers. A *parked* one has none:
its limit lets no task of the key start. So takes never meet the tasks of exhausted keys, however many there
are. The start that exhausts a key parks its lanes, in all queues (settling.py), and each end that frees it
opens them. The first task of a key begins an open lane, or a parked one.

A put reads the state by snapshot, and appends its task if the lane has other ones. The conflict ranges that
make this safe are those of disciplines/keyed.py: a change of the pointer relies on the tasks up to its new
place, and a put on the place of its own task.
"""

from dataclasses import dataclass

from fdbqueue.core.seam import Range, Transaction
from fdbqueue.tasks.limiting.keys import OPEN, PARKED, LanePlace, LimitKeys
from fdbqueue.tasks.parking.lane_keys import OPEN as OPEN_STATE
from fdbqueue.tasks.parking.lane_keys import PARKED as PARKED_STATE
from fdbqueue.tasks.parking.lane_keys import LaneKeys


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
