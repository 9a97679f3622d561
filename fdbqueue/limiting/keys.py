"""Keys of limits, and their values: the only file that builds or parses them.

R is the root. `n` is the number of a cell, from 0 on. Parts are those of the tuple layer.

    R[16, name]              limit   its rule (rule.py)               takes under the limit, serialisably
    R[17, name, 0]           cells   CELLS_MAX numbers, see below     the same, by snapshot
    R[17, name, 1]           bell    grows with each slot that is     watches of takes that wait
                                     free again, and each change
    R[17, name, 2, n]        gate    never written                    conflict keys of takes under a limit
    R[17, name, 3, id, task] holder  cell, queue, partition, session  explain, truncate, drop, verify

All cells of a limit share one key, as one long number with 64 bits for each: an atomic add changes one of
them. A cell of a limit of slots counts the tasks that hold a slot of it. A cell of a limit of starts has the
time, in nanoseconds since the epoch, at which it is full of tokens (bucket.py). `id` is that of the queue;
tasks hold slots, and never tokens.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from fdb import tuple as layer

from fdbqueue.aside import DAMAGED
from fdbqueue.root_keys import LIMIT, LIMITED

CELLS_MAX = 16
"""Cells of a limit: takes that use different cells do not conflict."""
NUMBER_BYTES = 8
CELLS, BELL, GATE, HOLDER = range(4)

_BYTES, _END = b"\x01", b"\x00"
"""The tuple layer's code of a byte string, and its end."""


class Held(NamedTuple):
    """The value of a holder's key: the cell of its slot, and its queue, partition and session."""

    cell: int
    queue: str
    partition: int
    session: bytes


encode_held = msgspec.msgpack.Encoder().encode
_decode_held = msgspec.msgpack.Decoder(Held).decode


def held_of(value: bytes) -> Held | None:
    """None for a damaged value."""
    try:
        return _decode_held(value)
    except DAMAGED:
        return None


class LimitKeys:
    """The keys of one limit."""

    def __init__(self, root: bytes, name: str) -> None:
        self.name = name
        self.row = _packed(root, LIMIT, name)
        self.cells = _packed(root, LIMITED, name, CELLS)
        self.bell = _packed(root, LIMITED, name, BELL)
        self.gates = [_packed(root, LIMITED, name, GATE, n) for n in range(CELLS_MAX)]
        self.gate_of_all = _packed(root, LIMITED, name, GATE, CELLS_MAX)
        self._holder = _packed(root, LIMITED, name, HOLDER)
        self.holders = slice(self._holder + b"\x00", self._holder + b"\xff")
        self.beside = slice(_packed(root, LIMITED, name) + b"\x00", _packed(root, LIMITED, name) + b"\xff")

    def holders_in(self, queue: int) -> slice:
        """The holders in the queue with that id."""
        under = self._of_queue(queue)
        return slice(under + b"\x00", under + b"\xff")

    def holder(self, queue: int, id_: bytes) -> bytes:
        return self._of_queue(queue) + _BYTES + id_.replace(b"\x00", b"\x00\xff") + _END

    def _of_queue(self, queue: int) -> bytes:
        packed: bytes = layer.pack((queue,))
        return self._holder + packed

    def task_in(self, holder_key: bytes) -> tuple[int, bytes]:
        """The queue and the task of a holder's key."""
        queue, id_ = layer.unpack(holder_key, prefix_len=len(self._holder))
        return queue, id_


def _packed(root: bytes, *parts: Any) -> bytes:
    key: bytes = layer.pack(parts, prefix=root)
    return key


_CELL_BITS = 8 * NUMBER_BYTES
_CELLS = struct.Struct(f"<{CELLS_MAX}Q")


def cells_bytes(numbers: Mapping[int, int]) -> bytes:
    """The value of these cells, and 0 in all others; also the operand of the atomic add of these numbers."""
    total = sum(number << (_CELL_BITS * cell) for cell, number in numbers.items())
    return (total & ((1 << (_CELL_BITS * CELLS_MAX)) - 1)).to_bytes(NUMBER_BYTES * CELLS_MAX, "little")


def cells_of(value: bytes | None) -> list[int]:
    """The numbers of all cells; those of a damaged value as far as it goes."""
    sound = (value or b"")[: _CELLS.size].ljust(_CELLS.size, b"\x00")
    return list(_CELLS.unpack(sound))
