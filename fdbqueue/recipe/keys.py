"""Keys of a recipe queue: the only file that builds or parses them (its line: line/keys.py).

Queue S; an item's `suffix` is its packed (index, random), its identity wherever it goes.

    S[0, index, random]          item    stored payload       takers; enqueue, the last one by snapshot
    S[1, index, random, piece]   piece   bytes of a payload   whoever decodes the item
    S[2]                         size    little-endian        size(); the doorbell of the first in the line
    S[3, ...]                    line    see line/keys.py
    S[4]                         floor   little-endian, grows     enqueue, by snapshot

A stored payload is WHOLE + the payload, or SPLIT + (pieces, bytes in all). An item that is delivered to a
request in the line moves there under its suffix; its pieces stay where they are. The floor is above the
index of every item that was delivered so: the index restarts when the queue has drained, and an item that
comes back must find itself at the head and not behind those that came after it.
"""

import struct
from typing import Any

from fdb import tuple as layer

from fdbqueue import limits

ITEM, PIECE, SIZE, LINE, FLOOR = range(5)

WHOLE, SPLIT = b"\x00", b"\x01"
FORMATS_RESERVED = 16
"""A stored payload that begins with a byte below this number, and is neither, is of a newer release."""
INDEX_MAX = 2**62
"""No index gets there; behind it there must be room for the next ones, also in the floor."""

_SHAPES: dict[Any, list[type]] = {ITEM: [int, bytes], PIECE: [int, bytes, int]}
"""What follows the column in the keys of items."""
_LINE_COLUMN_CODES = (layer.pack((0,)), layer.pack((1,))[:1])
"""What the number of a line's column begins with, packed."""


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

    def item(self, suffix: bytes) -> bytes:
        return self._item_prefix + suffix

    def suffix_of(self, item_key: bytes) -> bytes:
        return item_key[len(self._item_prefix) :]

    def index_of(self, item_key: bytes) -> int | None:
        return self.index_in(item_key[len(self._item_prefix) :])

    def index_in(self, suffix: bytes) -> int | None:
        """None for what is no suffix of an item: a damaged key, which may still hold a sound payload."""
        try:
            index = layer.unpack(suffix)[0]
        except (ValueError, IndexError, struct.error):
            return None
        return index if isinstance(index, int) and 0 <= index < INDEX_MAX else None

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
    """What the value of an item's key says of its payload: how many bytes it has, here or in pieces."""
    return len(value) - 1 if value[:1] == WHOLE else split_sizes(value)[1]


def split_sizes(value: bytes) -> tuple[int, int]:
    """The pieces of a split payload, and its bytes; none of both for a value that does not tell."""
    try:
        pieces, size_bytes = layer.unpack(value, prefix_len=1)
    except (ValueError, IndexError, struct.error):
        return 0, 0
    sound = value[:1] == SPLIT and isinstance(pieces, int) and isinstance(size_bytes, int)
    return (pieces, size_bytes) if sound and 0 < size_bytes <= limits.PAYLOAD_BYTES_MAX else (0, 0)
