"""Keys of stored results: the only file that builds or parses them (root_keys.py knows their shapes).

R is the root. A `space` tells the results of one framework from those of another. Values are bytes.

    R["results", 0, space, name]           result  (ends_us, n, value)  read by waits for the result
    R["results", 0, space, name, number]   piece   bytes                with the result
    R["results", 1, space, ends_us, name]  end     empty                read by each store in the space

`ends_us` is 0 for a result without an end. A value above limits.PAYLOAD_PIECE_BYTES_MAX lies in n pieces;
otherwise n is 0.
"""

import struct
from typing import Any

from fdbqueue.root_keys import RESULTS

RESULT, END = range(2)
_HEAD = struct.Struct("<QI")  # the tuple layer would double each zero byte of a value


class ResultKeys:
    """The keys of one space under the subspace `root`."""

    def __init__(self, root: Any, space: str) -> None:
        self._root = root
        self._space = space

    def result(self, name: bytes) -> bytes:
        return self._key(RESULT, name)

    def pieces(self, name: bytes) -> slice:
        found: slice = self._root.range((RESULTS, RESULT, self._space, name))
        return found

    def piece(self, name: bytes, number: int) -> bytes:
        return self._key(RESULT, name, number)

    def end(self, ends_us: int, name: bytes) -> bytes:
        return self._key(END, ends_us, name)

    def ends_until(self, time_us: int) -> slice:
        return slice(self._root.range((RESULTS, END, self._space)).start, self._key(END, time_us + 1))

    def name_of(self, end: bytes) -> bytes:
        name: bytes = self._root.unpack(end)[-1]
        return name

    def _key(self, column: int, *parts: Any) -> bytes:
        key: bytes = self._root.pack((RESULTS, column, self._space, *parts))
        return key


def stored(ends_us: int, pieces: int, value: bytes) -> bytes:
    return _HEAD.pack(ends_us, pieces) + value


def stored_parts(value: bytes) -> tuple[int, int, bytes]:
    """The end of a result, its number of pieces, and its value if it has none."""
    return *_HEAD.unpack_from(value), bytes(value[_HEAD.size :])
