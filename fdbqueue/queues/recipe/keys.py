"""Keys of a recipe queue: the only file that builds or parses them (those of its line: line/keys.py).

Queue S. The `suffix` of an item is its packed (index, random): its id, wherever it is stored. The comment of
a column has its parts and its value, and behind the semicolon its readers. S[37] is the layout of a queue
without a definition: see registry/registry.py.

A stored payload is WHOLE and the payload, or SPLIT and its packed (pieces, bytes). Delivering an item moves
it into the line under its suffix; its pieces stay in place. The floor is above the index of each delivered
item. Without a floor, the index would restart at 0 when the queue is empty, and an item that comes back would
stand behind items that were enqueued after it. A value that is given back stands below the first index, also
below 0.
"""

from operator import itemgetter
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.columns import UNPACKING, Column, Table, unpacked

S = Table()
ITEM = S.packed(0, int, bytes)  # index, random: stored payload; takes; enqueue, the last one by snapshot
PIECE = S.packed(1, int, bytes, int)  # index, random, piece: part of a payload; takes and looks at its item
SIZE = S.packed(2)  # little-endian; size(); watches of the first request
FLOOR = S.packed(4)  # little-endian, grows; enqueue, by snapshot
LINE: Column[()] = Column(3, ())  # see line/decision.py

WHOLE, SPLIT = b"\x00", b"\x01"
FORMATS_RESERVED = 16
"""A newer release wrote a stored payload that begins with another byte below this number."""
INDEX_MAX = 2**62
"""Above every index. The indexes behind a valid one must fit into a key, and into the floor."""

_SHAPES = {column: [*column.parts] for column in S.columns}
_LINE_COLUMN_CODES = (layer.pack((0,)), layer.pack((1,))[:1])
"""First byte of the packed column numbers of a line."""


class QueueKeys:
    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        self.prefix = prefix
        self.item, self.items = ITEM.start(prefix).__add__, ITEM.all(prefix)
        self.suffix_of = itemgetter(slice(len(ITEM.start(prefix)), None))
        self._piece, self.pieces = PIECE.start(prefix), PIECE.all(prefix)
        self.size, self.floor, self.line = SIZE.start(prefix), FLOOR.start(prefix), LINE.start(prefix)

    def is_key(self, key: bytes) -> bool:
        """True if `key` may be one of this queue; its subspace may hold keys of something else."""
        if key.startswith(self.line):
            return key[len(self.line) :].startswith(_LINE_COLUMN_CODES)
        return self.parts_of(key)[0] is not None

    def parts_of(self, key: bytes) -> tuple[int | None, bytes]:
        """The number of the key's column, and the suffix of its item; None for a key of another shape."""
        if key.startswith(self.line):
            return LINE, b""
        column, *rest = unpacked(key, len(self.prefix)) or (None,)
        if _SHAPES.get(column) != [type(part) for part in rest]:
            return None, b""
        return column, suffix(*rest[:2]) if rest else b""

    def index_of(self, item_key: bytes) -> int | None:
        return self.index_in(self.suffix_of(item_key))

    def index_in(self, suffix: bytes) -> int | None:
        """The index in a suffix; None if the key is damaged. Its payload may be sound all the same."""
        try:
            index = layer.unpack(suffix)[0]
        except UNPACKING:
            return None
        return index if isinstance(index, int) and -INDEX_MAX < index < INDEX_MAX else None

    def piece(self, suffix: bytes, number: int) -> bytes:
        key: bytes = self._piece + suffix + layer.pack((number,))
        return key

    def pieces_of(self, suffix: bytes) -> slice:
        under = self._piece + suffix
        return slice(under, under + b"\xff")


def suffix(index: int, random: bytes) -> bytes:
    packed: bytes = layer.pack((index, random))
    return packed


def whole(payload: bytes) -> bytes:
    return WHOLE + payload


def split(pieces: int, size_bytes: int) -> bytes:
    header: bytes = SPLIT + layer.pack((pieces, size_bytes))
    return header


def payload_bytes(value: bytes) -> int:
    """Bytes of a payload, stored here or in pieces, according to the value of its item."""
    return len(value) - 1 if value[:1] == WHOLE else split_sizes(value)[1]


def split_sizes(value: bytes) -> tuple[int, int]:
    """The numbers of pieces and bytes of a split payload; 0 and 0 if the value is damaged."""
    try:
        pieces, size_bytes = layer.unpack(value, prefix_len=1)
    except UNPACKING:
        return 0, 0
    sound = value[:1] == SPLIT and isinstance(pieces, int) and isinstance(size_bytes, int)
    return (pieces, size_bytes) if sound and 0 < size_bytes <= limits.PAYLOAD_BYTES_MAX else (0, 0)
