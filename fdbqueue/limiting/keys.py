"""Keys of limits, and their values: the only file that builds or parses them.

R is the root. `n` is the number of a cell, from 0 on. Parts are those of the tuple layer.

    R[16, name]              limit   its rule (rule.py)               takes under the limit, serialisably
    R[17, name, 0]           cells   CELLS_MAX numbers, see below     the same, by snapshot
    R[17, name, 1]           bell    grows with each slot that is     watches of takes that wait
                                     free again, and each change
    R[17, name, 2, n]        gate    never written                    conflict keys of takes under a limit
    R[17, name, 3, id, task] holder  cell, queue, partition, session  explain, truncate, drop, verify

A limit that counts each key apart (`per_key`) has these, too. `key` is a byte string, packed by the tuple
layer; `lane` is that of lane_keys.py.

    R[17, name, 4, key]      count   see key_state.py                 takes and first puts of the key
    R[17, name, 5, key, 0, id, task]            holder  as above      explain, verify, walks
    R[17, name, 5, key, 1, id, partition, lane] open    empty         the start that exhausts the key
    R[17, name, 5, key, 2, id, partition, lane] parked  empty         the end that frees the key
    R[17, name, 6, time, key] due    empty                            sweeps and takes: lanes that may open
    R[17, name, 7]           walk    the last key that it has seen    sweeps: look at all keys again
    R[17, name, 8]           total   slots in use, of all keys        looks at the limit; its delete
    R[17, name, 9, key]      gate    never written                    conflict keys of takes of the key
    R[17, name, 10, time, key] over  empty                            sweeps: the row of the key may be over

All cells of a limit share one key, as one long number with 64 bits for each: an atomic add changes one of
them. A cell of a limit of slots counts the tasks that hold a slot of it. A cell of a limit of starts has the
time, in nanoseconds since the epoch, at which it is full of tokens (bucket.py). `id` is that of the queue;
tasks hold slots, and never tokens. `time` is in microseconds since the epoch.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from fdb import tuple as layer

from fdbqueue.aside import DAMAGED
from fdbqueue.root_keys import LIMIT, LIMITED

CELLS_MAX = 16
"""Cells of a limit: takes that use different cells do not conflict."""
NUMBER_BYTES = 8
CELLS, BELL, GATE, HOLDER, COUNT, OF_KEY, DUE, WALK, TOTAL, KEY_GATE, OVER = range(11)
KEY_HOLDER, OPEN, PARKED = range(3)
KEYED = CELLS_MAX
"""In place of a cell: the slot is one of the task's key."""

_BYTES, _END = b"\x01", b"\x00"
"""The tuple layer's code of a byte string, and its end."""
_PARTS: Sequence[bytes] = [layer.pack((part,)) for part in range(OVER + 1)]
_NUMBERS: Sequence[bytes] = [layer.pack((number,)) for number in range(CELLS_MAX + 1)]
"""Packed once: each handle of a queue makes the keys of its limits."""


class Held(NamedTuple):
    """The value of a holder's key: the cell of its slot, and its queue, partition and session."""

    cell: int
    queue: str
    partition: int
    session: bytes


class LanePlace(NamedTuple):
    """A lane of one key, in any queue."""

    queue: int
    partition: int
    lane: bytes


encode_held = msgspec.msgpack.Encoder().encode
_decode_held = msgspec.msgpack.Decoder(Held).decode


def held_of(value: bytes) -> Held | None:
    """None for a damaged value."""
    try:
        return _decode_held(value)
    except DAMAGED:
        return None


def shown_key(key: bytes) -> Any:
    """The key as a task names it; the bytes themselves, if they are damaged."""
    try:
        return layer.unpack(key)[0]
    except (ValueError, IndexError, struct.error):
        return key


class LimitKeys:
    """The keys of one limit."""

    def __init__(self, root: bytes, name: str) -> None:
        self.name = name
        self.row: bytes = layer.pack((LIMIT, name), prefix=root)
        self._prefix: bytes = layer.pack((LIMITED, name), prefix=root)
        self.beside = _below(self._prefix)
        at: Sequence[bytes] = [self._prefix + part for part in _PARTS]
        self.cells, self.bell, self._holder = at[CELLS], at[BELL], at[HOLDER]
        self.walk, self.total = at[WALK], at[TOTAL]
        *self.gates, self.gate_of_all = (at[GATE] + number for number in _NUMBERS)
        self.holders, self.counts = _below(self._holder), _below(at[COUNT])
        self.of_keys, self.dues, self.overs = _below(at[OF_KEY]), _below(at[DUE]), _below(at[OVER])

    def _packed(self, *parts: Any) -> bytes:
        key: bytes = layer.pack(parts, prefix=self._prefix)
        return key

    # Of a key:

    def count(self, key: bytes) -> bytes:
        return self._packed(COUNT, key)

    def key_gate(self, key: bytes) -> bytes:
        return self._packed(KEY_GATE, key)

    def key_holder(self, key: bytes, queue: int, id_: bytes) -> bytes:
        return self._packed(OF_KEY, key, KEY_HOLDER, queue, id_)

    def key_holders(self, key: bytes) -> slice:
        return _below(self._packed(OF_KEY, key, KEY_HOLDER))

    def lanes(self, key: bytes, side: int) -> slice:
        """The lanes of the key that are open, or parked: `side` is OPEN or PARKED."""
        return _below(self._packed(OF_KEY, key, side))

    def lane(self, key: bytes, side: int, place: LanePlace) -> bytes:
        return self._packed(OF_KEY, key, side, *place)

    def due(self, time_us: int, key: bytes) -> bytes:
        return self._packed(DUE, time_us, key)

    def over(self, time_us: int, key: bytes) -> bytes:
        return self._packed(OVER, time_us, key)

    def until(self, column: int, time_us: int) -> slice:
        """The keys of DUE, or of OVER, up to that time."""
        return slice(self._packed(column) + b"\x00", self._packed(column, time_us + 1))

    def parts_of(self, key: bytes) -> tuple[Any, ...]:
        """The parts of a key behind the name of the limit."""
        parts: tuple[Any, ...] = layer.unpack(key, prefix_len=len(self._prefix))
        return parts

    def holders_in(self, queue: int) -> slice:
        """The holders in the queue with that id."""
        return _below(self._of_queue(queue))

    def holder(self, queue: int, id_: bytes) -> bytes:
        return self._of_queue(queue) + _BYTES + id_.replace(b"\x00", b"\x00\xff") + _END

    def _of_queue(self, queue: int) -> bytes:
        return self._holder + _packed_queue(queue)

    def task_in(self, holder_key: bytes) -> tuple[int, bytes]:
        """The queue and the task of a holder's key."""
        queue, id_ = layer.unpack(holder_key, prefix_len=len(self._holder))
        return queue, id_


def _below(prefix: bytes) -> slice:
    return slice(prefix + b"\x00", prefix + b"\xff")


@lru_cache(maxsize=256)
def _packed_queue(queue: int) -> bytes:
    """Kept, as each start and each end of a task needs it, and the tuple layer is slow."""
    packed: bytes = layer.pack((queue,))
    return packed


_CELL_BITS = 8 * NUMBER_BYTES
_CELLS = struct.Struct(f"<{CELLS_MAX}Q")
_ONES = [1 << (_CELL_BITS * cell) for cell in range(CELLS_MAX)]


def cells_bytes(numbers: Mapping[int, int]) -> bytes:
    """The value of these cells, and 0 in all others; also the operand of the atomic add of these numbers."""
    return _long(sum(number * _ONES[cell] for cell, number in numbers.items()))


def one_more_bytes(cells: Iterable[int]) -> bytes:
    """The operand of the atomic add of 1 for each of these cells; a cell may be there several times."""
    return _long(sum(map(_ONES.__getitem__, cells)))


def one_less_bytes(cells: Iterable[int]) -> bytes:
    """As `one_more_bytes`, of -1."""
    return _long(-sum(map(_ONES.__getitem__, cells)))


def _long(total: int) -> bytes:
    return (total & ((1 << (_CELL_BITS * CELLS_MAX)) - 1)).to_bytes(NUMBER_BYTES * CELLS_MAX, "little")


def cells_of(value: bytes | None) -> list[int]:
    """The numbers of all cells; those of a damaged value as far as it goes."""
    sound = (value or b"")[: _CELLS.size].ljust(_CELLS.size, b"\x00")
    return list(_CELLS.unpack(sound))
