"""Keys of a recipe queue: the only file that builds or parses them (those of its line: line/keys.py).

Queue S. The `suffix` of an item is its packed (index, random): its id, wherever it is stored. The last column
names the readers.

    S[0, index, random]          item    stored payload         takes; enqueue, the last one by snapshot
    S[1, index, random, piece]   piece   part of a payload      takes and listings of its item
    S[2]                         size    little-endian          size(); watches of the first request
    S[3, ...]                    line    see line/keys.py
    S[4]                         floor   little-endian, grows   enqueue, by snapshot
    S[37]                        layout  see registry/subspace_layout.py, of a queue without a definition

A stored payload is WHOLE and the payload, or SPLIT and its packed (pieces, bytes). Delivering an item moves
it into the line under its suffix; its pieces stay in place. The floor is above the index of each delivered
item. Without a floor, the index would restart at 0 when the queue is empty, and an item that comes back would
stand behind items that were enqueued after it. A value that is given back stands below the first index, also
below 0.
"""

import struct
from typing import Any

from fdb import tuple as layer

from fdbqueue import limits

ITEM, PIECE, SIZE, LINE, FLOOR = range(5)

WHOLE, SPLIT = b"\x00", b"\x01"
FORMATS_RESERVED = 16
"""A newer release wrote a stored payload that begins with another byte below this number."""
INDEX_MAX = 2**62
"""Above every index. The indexes behind a valid one must fit into a key, and into the floor."""

_SHAPES: dict[Any, list[type]] = {ITEM: [int, bytes], PIECE: [int, bytes, int]}
"""Types of the parts behind the column, in the keys of items."""
_LINE_COLUMN_CODES = (layer.pack((0,)), layer.pack((1,))[:1])
"""First byte of the packed column numbers of a line."""


class QueueKeys:
    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        self.prefix = prefix
        self._item_prefix: bytes = layer.pack((ITEM,), prefix=prefix)
        self._piece_prefix: bytes = layer.pack((PIECE,), prefix=prefix)
        self.items = slice(self._item_prefix + b"\x00", self._item_prefix + b"\xff")
        self.pieces = slice(self._piece_prefix + b"\x00", self._piece_prefix + b"\xff")
        self.size: bytes = layer.pack((SIZE,), prefix=prefix)
        self.floor: bytes = layer.pack((FLOOR,), prefix=prefix)
        self.line: bytes = layer.pack((LINE,), prefix=prefix)

    def is_key(self, key: bytes) -> bool:
        """True if `key` may be one of this queue; its subspace may hold keys of something else."""
        if key in (self.size, self.floor):
            return True
        if key.startswith(self.line):
            return key[len(self.line) : len(self.line) + 1] in _LINE_COLUMN_CODES
        try:
            column, *rest = layer.unpack(key, prefix_len=len(self.prefix))
        except (ValueError, IndexError, struct.error):
            return False
        return _SHAPES.get(column) == [type(part) for part in rest]

    def parts_of(self, key: bytes) -> tuple[int | None, bytes]:
        """The number of the key's column, and the suffix of its item; None for a key of another shape."""
        if key.startswith(self.line):
            return LINE, b""
        for number, single in ((SIZE, self.size), (FLOOR, self.floor)):
            if key == single:
                return number, b""
        if not self.is_key(key):
            return None, b""
        column, *rest = layer.unpack(key, prefix_len=len(self.prefix))
        return column, suffix(*rest[:2])

    def item(self, suffix: bytes) -> bytes:
        return self._item_prefix + suffix

    def suffix_of(self, item_key: bytes) -> bytes:
        return item_key[len(self._item_prefix) :]

    def index_of(self, item_key: bytes) -> int | None:
        return self.index_in(item_key[len(self._item_prefix) :])

    def index_in(self, suffix: bytes) -> int | None:
        """The index in a suffix; None if the key is damaged. Its payload may be sound all the same."""
        try:
            index = layer.unpack(suffix)[0]
        except (ValueError, IndexError, struct.error):
            return None
        return index if isinstance(index, int) and -INDEX_MAX < index < INDEX_MAX else None

    def piece(self, suffix: bytes, number: int) -> bytes:
        key: bytes = self._piece_prefix + suffix + layer.pack((number,))
        return key

    def pieces_of(self, suffix: bytes) -> slice:
        under = self._piece_prefix + suffix
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
    except (ValueError, IndexError, struct.error):
        return 0, 0
    sound = value[:1] == SPLIT and isinstance(pieces, int) and isinstance(size_bytes, int)
    return (pieces, size_bytes) if sound and 0 < size_bytes <= limits.PAYLOAD_BYTES_MAX else (0, 0)
