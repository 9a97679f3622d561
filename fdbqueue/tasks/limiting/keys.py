"""Keys of limits, and their values: the only file that builds or parses them.

R is the root, and N is below R[17, name] for a limit of that name. R[16, name] has its rule (rule.py), which
takes under the limit read serialisably. Keys are those of the tuple layer. The comment of a column has its
parts and its value, and behind the semicolon its readers.

All cells of a limit share one key, as one long number with 64 bits for each: an atomic add changes one of
them. A cell of a limit of slots counts the tasks that hold a slot of it. A cell of a limit of starts has the
time, in nanoseconds since the epoch, at which it is full of tokens (state.py). `id` is that of the queue;
tasks hold slots, and never tokens. `time` is in microseconds since the epoch. `key` is a byte string, packed
by the tuple layer; `lane` is that of lane_keys.py.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from fdb import tuple as layer

from fdbqueue.core.columns import Table, below
from fdbqueue.core.root_keys import LIMIT, LIMITED
from fdbqueue.core.unreadable import DAMAGED

CELLS_MAX = 16
"""Cells of a limit: takes that use different cells do not conflict."""
NUMBER_BYTES = 8

N = Table()
CELLS = N.packed(0)  # CELLS_MAX numbers; takes under the limit, by snapshot
BELL = N.packed(1)  # grows with each slot that is free again, and each change; watches of takes that wait
GATE = N.packed(2, int)  # n, the number of a cell: never written; conflict keys of takes under a limit
HOLDER = N.packed(3, int, bytes)  # id, task: cell, queue, partition, session; explain, truncate, drop, verify
# A limit that counts each key apart (`per_key`) has these, too.
COUNT = N.packed(4, bytes)  # key: see key_state.py; takes and first puts of the key
OF_KEY = N.packed(5, bytes)  # key, and a row of those below
DUE = N.packed(6, int, bytes)  # time, key: empty; sweeps and takes: lanes that may open
WALK = N.packed(7)  # the last key that it has seen; sweeps: look at all keys again
TOTAL = N.packed(8)  # slots in use, of all keys; looks at the limit, its delete
KEY_GATE = N.packed(9, bytes)  # key: never written; conflict keys of takes of the key
OVER = N.packed(10, int, bytes)  # time, key: empty; sweeps: the row of the key may be over

# Rows of a key: 0, id, task as in HOLDER; 1, id, partition, lane of an open lane, for the start that exhausts
# the key; 2, id, partition, lane of a parked one, for the end that frees it.
KEY_HOLDER, OPEN, PARKED = range(3)
KEYED = CELLS_MAX
"""In place of a cell: the slot is one of the task's key."""

_BYTES, _END = b"\x01", b"\x00"
"""The tuple layer's code of a byte string, and its end."""
_NUMBERS: Sequence[bytes] = [layer.pack((number,)) for number in range(CELLS_MAX + 1)]
"""Packed once: each handle of a queue makes the keys of its limits."""


class Held(NamedTuple):
    """The value of a holder's key: the cell of its slot, and its queue, partition and session."""

    cell: int
    queue: str
    partition: int
    session: bytes


class LanePlace(NamedTuple):
    queue: int
    partition: int
    lane: bytes


encode_held = msgspec.msgpack.Encoder().encode
_decode_held = msgspec.msgpack.Decoder(Held).decode


def held_of(value: bytes) -> Held | None:
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
    def __init__(self, root: bytes, name: str) -> None:
        self.name = name
        self.row: bytes = layer.pack((LIMIT, name), prefix=root)
        prefix: bytes = layer.pack((LIMITED, name), prefix=root)
        self._prefix, self.beside = prefix, below(prefix)
        self.cells, self.bell, self._holder = CELLS.start(prefix), BELL.start(prefix), HOLDER.start(prefix)
        self.walk, self.total = WALK.start(prefix), TOTAL.start(prefix)
        *self.gates, self.gate_of_all = (GATE.start(prefix) + number for number in _NUMBERS)
        self.holders, self.of_keys = HOLDER.all(prefix), OF_KEY.all(prefix)
        self.count, self.counts, self.key_gate = COUNT.key(prefix), COUNT.all(prefix), KEY_GATE.key(prefix)
        self.due, self.dues, self.dues_until = DUE.key(prefix), DUE.all(prefix), DUE.until(prefix)
        self.over, self.overs, self.overs_until = OVER.key(prefix), OVER.all(prefix), OVER.until(prefix)
        self.key_holders = OF_KEY.under(prefix, KEY_HOLDER)

    def _packed(self, *parts: Any) -> bytes:
        key: bytes = layer.pack(parts, prefix=self._prefix)
        return key

    # Of a key:

    def key_holder(self, key: bytes, queue: int, id_: bytes) -> bytes:
        return self._packed(OF_KEY, key, KEY_HOLDER, queue, id_)

    def lanes(self, key: bytes, side: int) -> slice:
        """The lanes of the key that are open, or parked: `side` is OPEN or PARKED."""
        return below(self._packed(OF_KEY, key, side))

    def lane(self, key: bytes, side: int, place: LanePlace) -> bytes:
        return self._packed(OF_KEY, key, side, *place)

    def parts_of(self, key: bytes) -> tuple[Any, ...]:
        """The parts of a key behind the name of the limit."""
        parts: tuple[Any, ...] = layer.unpack(key, prefix_len=len(self._prefix))
        return parts

    def holders_in(self, queue: int) -> slice:
        return below(self._of_queue(queue))

    def holder(self, queue: int, id_: bytes) -> bytes:
        return self._of_queue(queue) + _BYTES + id_.replace(b"\x00", b"\x00\xff") + _END

    def _of_queue(self, queue: int) -> bytes:
        return self._holder + _packed_queue(queue)

    def task_in(self, holder_key: bytes) -> tuple[int, bytes]:
        queue, id_ = layer.unpack(holder_key, prefix_len=len(self._holder))
        return queue, id_


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
    return _long(-sum(map(_ONES.__getitem__, cells)))


def _long(total: int) -> bytes:
    return (total & ((1 << (_CELL_BITS * CELLS_MAX)) - 1)).to_bytes(NUMBER_BYTES * CELLS_MAX, "little")


def cells_of(value: bytes | None) -> list[int]:
    """The numbers of all cells; those of a damaged value as far as it goes."""
    sound = (value or b"")[: _CELLS.size].ljust(_CELLS.size, b"\x00")
    return list(_CELLS.unpack(sound))
