"""Keys of lanes in a queue whose tasks may name limits: the only file that builds or parses them.

A lane is named by one byte or two. The first is a mask: its bit n stands for the n-th name that tasks of the
queue may have. The second one is there for tasks that name a limit with a key: the number of that name, from
1 on. They have a lane for each key. `slug` is the key with its length in front, two bytes; `place` is the
sort key of the kind, and ends in the id of a task.

    S[3] lane, place               ready    record     takes; lane 0 has the tasks without a limit
    S[3] KEYED, lane, slug, place  ready    record     takes, behind a pointer
    S[8] 1 lane                    open     empty      takes: this lane may have tasks
    S[8] 2 lane, place             pointer  the key    takes: the first task of a key that may start one
    S[8] 3 lane, key               state    see below  puts of the key, by snapshot; its changes

The state of the lane of a key is one byte. Behind OPEN is the place of its pointer. A PARKED one has no
pointer: its limit has no slot, or no token, for the key. Without tasks, there is no state.
"""

from collections.abc import Callable
from functools import cache

from fdbqueue.tasks.records.keys import TaskKeys

KEYED = b"\xff" * 6
"""It is behind all lanes and places: a mask, the largest priority, and more than any index of a task."""
OPEN, PARKED = b"\x00", b"\x01"
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
        return slice(start, self._keys.ready_at(bytes((following,)) if following <= 0xFF else KEYED))

    def pointers_of(self, lane: bytes) -> slice:
        start = self.pointers.start + lane
        return slice(start, self.pointers.start + lane[:1] + bytes((lane[1] + 1,)))

    def pointer(self, lane: bytes, place: bytes) -> bytes:
        return self.pointers.start + lane + place

    def state(self, lane: bytes, key: bytes) -> bytes:
        return self.states.start + lane + key

    def fifo(self, lane: bytes, key: bytes) -> slice:
        start = self._keys.ready_at(KEYED + lane + len(key).to_bytes(_SLUG_BYTES, "big") + key)
        return slice(start, start + b"\xff" * 40)

    def parted(self, rest: bytes) -> tuple[bytes, bytes, bytes] | None:
        """Lane, key and place of a ready key, from behind its column; None for a task that names no key."""
        if not rest.startswith(KEYED):
            return None
        lane, behind = rest[len(KEYED) : len(KEYED) + 2], rest[len(KEYED) + 2 :]
        end = _SLUG_BYTES + int.from_bytes(behind[:_SLUG_BYTES], "big")
        return lane, behind[_SLUG_BYTES:end], behind[end:]
