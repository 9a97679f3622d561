"""Keys of an element queue, and their values: the only file that builds or parses them.

S is the subspace of the queue. `name` is the public name of an element: 23 ASCII bytes, in order of time
(names.py). `folder` is the identity of a directory on disk, 16 bytes.

    S[1] name             element    empty                    iteration, by snapshot; add: its own name; lock
    S[2] name, number     payload    bytes, a piece of them   get
    S[3] name             lock       since_us, token          every verb on a locked element; purge
    S[4]                  count      little-endian            count()
    S[5] folder, name     arrival    empty                    import-dirq: added, still in the folder
    S[6] folder, name     departure  empty                    export-dirq: removed, not yet in it
    S[7]                  mark       16 bytes                 both: identity of this queue in a folder
    S[8, ...]             aside      see aside.py             values that could not be read
    S[37]                 layout     see registry/subspace_layout.py, of a queue without a definition

An element has one key in S[1], its payload in S[2], and a key in S[3] while it is locked. A listing reads
S[1] and no payload.
"""

import struct
from typing import Any, NamedTuple

from fdb import tuple as layer

ELEMENT, PAYLOAD, LOCK, COUNT, ARRIVAL, DEPARTURE, MARK, ASIDE = range(1, 9)

FOLDER_BYTES = 16
COUNTER = struct.Struct("<q")
_NUMBER = struct.Struct(">I")
PIECE_NUMBER_BYTES = _NUMBER.size
_SINCE = struct.Struct(">Q")
# Longer than any name. A longer text is cut, because the engine would refuse its key.
_NAME_BYTES_MAX = 32

_COLUMN_NUMBERS: dict[bytes, int] = {layer.pack((n,)): n for n in range(ELEMENT, ASIDE + 1)}
_NAMED_COLUMNS = frozenset((layer.pack((ELEMENT,)), layer.pack((LOCK,))))
_SINGLE_COLUMNS = frozenset((layer.pack((COUNT,)), layer.pack((MARK,))))


class Lock(NamedTuple):
    """The lock of an element: its token, and the time of the lock or the latest touch."""

    since_us: int
    token: bytes

    def to_bytes(self) -> bytes:
        return _SINCE.pack(self.since_us) + self.token

    @classmethod
    def from_bytes(cls, value: bytes) -> "Lock":
        """Parse a lock. A damaged value counts as an old lock, which a purge breaks."""
        if len(value) < _SINCE.size:
            return cls(0, b"")
        return cls(_SINCE.unpack_from(value)[0], value[_SINCE.size :])


class ElementKeys:
    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        columns: dict[int, bytes] = {n: layer.pack((n,), prefix=prefix) for n in range(1, ASIDE + 1)}
        self._element, self._payload, self._lock = columns[ELEMENT], columns[PAYLOAD], columns[LOCK]
        self._arrival, self._departure = columns[ARRIVAL], columns[DEPARTURE]
        self.prefix = prefix
        self.elements = slice(columns[ELEMENT], columns[PAYLOAD])
        self.payloads = slice(columns[PAYLOAD], columns[LOCK])
        self.locks = slice(columns[LOCK], columns[COUNT])
        self.count = columns[COUNT]
        self.mark = columns[MARK]
        self.aside = columns[ASIDE]

    def is_key(self, key: bytes) -> bool:
        """True if `key` may belong to this queue; its subspace may hold keys of another program."""
        column = key[len(self.prefix) : len(self.count)]
        rest = key[len(self.count) :]
        if column in _NAMED_COLUMNS:
            return rest.isascii() and rest.decode().isprintable()
        return column in _COLUMN_NUMBERS and (column not in _SINGLE_COLUMNS or not rest)

    def parts_of(self, key: bytes) -> tuple[int, bytes]:
        """The number of the key's column, 0 for an unknown one, and the part behind it."""
        start = len(self.prefix)
        return _COLUMN_NUMBERS.get(key[start : len(self.count)], 0), key[len(self.count) :]

    def element(self, name: str) -> bytes:
        return self._element + _bytes(name)

    def lock(self, name: str) -> bytes:
        return self._lock + _bytes(name)

    def payload(self, name: str, number: int) -> bytes:
        return self._payload + _bytes(name) + _NUMBER.pack(number)

    def payload_of(self, name: str) -> slice:
        under = self._payload + _bytes(name)
        return slice(under, under + b"\xff" * (_NUMBER.size + 1))

    def elements_after(self, name: str) -> slice:
        """Elements with greater names; "" comes before all."""
        return slice(_after(self._element, name), self.elements.stop)

    def locks_after(self, name: str) -> slice:
        return slice(_after(self._lock, name), self.locks.stop)

    def is_sound(self, key: bytes) -> bool:
        """True if a key of S[1] or S[3] ends in a possible name."""
        rest = key[len(self._element) :]
        return 0 < len(rest) <= _NAME_BYTES_MAX and rest.isascii() and rest.decode().isprintable()

    def name_in(self, key: bytes) -> str:
        """The name that a key of S[1], S[3], S[5] or S[6] ends in, or one of S[2] without its number."""
        column = len(self._element)  # all columns have the same length
        return key[column:].decode() if key < self._arrival else key[column + FOLDER_BYTES :].decode()

    def arrival(self, folder: bytes, name: str) -> bytes:
        return self._arrival + folder + _bytes(name)

    def arrivals(self, folder: bytes) -> slice:
        return _under(self._arrival + folder)

    def departure(self, folder: bytes, name: str) -> bytes:
        return self._departure + folder + _bytes(name)

    def departures(self, folder: bytes) -> slice:
        return _under(self._departure + folder)


def _after(column: bytes, name: str) -> bytes:
    return column + _bytes(name) + b"\x00" if name else column


def _under(prefix: bytes) -> slice:
    return slice(prefix, prefix + b"\xff" * (_NAME_BYTES_MAX + 1))


def _bytes(name: object) -> bytes:
    # A value that is no text names no element, as an empty text does not.
    return str.encode(name, errors="replace")[:_NAME_BYTES_MAX] if isinstance(name, str) else b""
