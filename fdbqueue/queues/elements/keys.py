"""Keys of an element queue, and their values: the only file that builds or parses them.

S is the subspace of the queue. `NAME` is the public name of an element: 23 ASCII bytes, in order of time
(`name_at`). `FOLDER` is the identity of a directory on disk. The comment of a column has its value, and
behind the semicolon its readers. S[37] is the layout of a queue without a definition
(registry/registry.py).

An element has one key in S[1], its payload in S[2], and a key in S[3] while it is locked. A listing reads
S[1] and no payload.
"""

import re
import struct
from typing import Any, NamedTuple

from fdbqueue.core.columns import UNKNOWN, Part, Table, number, sized
from fdbqueue.core.errors import NoNameAtThatTime

GRANULARITY_S = 60
_NAME = re.compile("[0-9a-f]{8}/[0-9a-f]{8}[0-9a-f]{5}[0-9a-f]")
_US_PER_S = 1_000_000
_END_US = 2**32 * _US_PER_S  # eight hexadecimal digits of seconds end in the year 2106
_SECONDS, _MICROSECONDS = slice(9, 17), slice(17, 22)


def is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def name_at(time_us: int, digit: int, granularity_s: int = GRANULARITY_S) -> str:
    """The name of an element added at `time_us`: `DDDDDDDD/EEEEEEEEEEEEEE`, hexadecimal, in order of time.

    The second part has eight digits for the second of the add, five for the microsecond, and one digit of the
    queue object. The first part, a directory in dirq, is the second rounded down to a minute. dirq counts its
    directories up; here they follow from the time, so that names of different queues compare.
    Raises NoNameAtThatTime.
    """
    if not 0 <= time_us < _END_US:
        raise NoNameAtThatTime(seconds=time_us / _US_PER_S)
    seconds, microseconds = divmod(time_us, _US_PER_S)
    directory = seconds - seconds % granularity_s if granularity_s > 1 else seconds
    return f"{directory:08x}/{seconds:08x}{microseconds:05x}{digit:x}"


def following(name: str) -> str:
    time_us = int(name[_SECONDS], 16) * _US_PER_S + int(name[_MICROSECONDS], 16) + 1
    seconds, microseconds = divmod(time_us, _US_PER_S)
    return f"{name[:9]}{seconds:08x}{microseconds:05x}{name[-1]}"


def by_time(name: str) -> str:
    """A key that sorts names by their time.

    The directory comes last, because that of a real dirq is a count.
    """
    return name[9:] + name[:9]


FOLDER_BYTES = 16
COUNTER = struct.Struct("<q")
PIECE_NUMBER_BYTES = 4
_SINCE = struct.Struct(">Q")
# Longer than any name. A longer text is cut, because the engine would refuse its key.
_NAME_BYTES_MAX = 32


def _bytes(name: object) -> bytes:
    # A value that is no text names no element, as an empty text does not.
    return str.encode(name, errors="replace")[:_NAME_BYTES_MAX] if isinstance(name, str) else b""


FOLDER, NAME = sized(FOLDER_BYTES), Part[str](1, _NAME_BYTES_MAX, _bytes, bytes.decode)

S = Table()
ELEMENT = S.column(1, NAME)  # empty; iteration, by snapshot; add: its own name; lock
PAYLOAD = S.column(2, NAME, number(PIECE_NUMBER_BYTES))  # a piece of it; get
LOCK = S.column(3, NAME)  # since_us, token; every verb on a locked element; purge
COUNT = S.column(4)  # little-endian; count()
ARRIVAL = S.column(5, FOLDER, NAME)  # empty; import-dirq: added, still in the folder
DEPARTURE = S.column(6, FOLDER, NAME)  # empty; export-dirq: removed, not yet in it
MARK = S.column(7)  # 16 bytes; both: identity of this queue in a folder
ASIDE = S.column(8)  # see unreadable.py; values that could not be read


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
        self.prefix = prefix
        self.element, self.elements = ELEMENT.key(prefix), ELEMENT.all(prefix)
        self.payload, self.payloads = PAYLOAD.key(prefix), PAYLOAD.all(prefix)
        self.payload_of = PAYLOAD.of(prefix)
        self.lock, self.locks = LOCK.key(prefix), LOCK.all(prefix)
        self.count, self.mark, self.aside = COUNT.start(prefix), MARK.start(prefix), ASIDE.start(prefix)
        self._arrival = ARRIVAL.start(prefix)
        self.arrival, self.arrivals = ARRIVAL.key(prefix), ARRIVAL.of(prefix)
        self.departure, self.departures = DEPARTURE.key(prefix), DEPARTURE.of(prefix)
        self.parts_of = S.parts_of(prefix)

    def is_key(self, key: bytes) -> bool:
        """True if `key` may belong to this queue; its subspace may hold keys of another program."""
        column, rest = self.parts_of(key)
        if column in (ELEMENT, LOCK):
            return rest.isascii() and rest.decode().isprintable()
        return column != UNKNOWN and (column not in (COUNT, MARK) or not rest)

    def elements_after(self, name: str) -> slice:
        """Elements with greater names; "" comes before all."""
        return _after(self.elements, name)

    def locks_after(self, name: str) -> slice:
        return _after(self.locks, name)

    def is_sound(self, key: bytes) -> bool:
        """True if a key of S[1] or S[3] ends in a possible name."""
        rest = key[len(self.count) :]  # all columns have the same length
        return 0 < len(rest) <= _NAME_BYTES_MAX and rest.isascii() and rest.decode().isprintable()

    def name_in(self, key: bytes) -> str:
        """The name that a key of S[1], S[3], S[5] or S[6] ends in, or one of S[2] without its number."""
        rest = key[len(self.count) :]
        return (rest if key < self._arrival else rest[FOLDER_BYTES:]).decode()


def _after(under: slice, name: str) -> slice:
    return slice(under.start + _bytes(name) + b"\x00" if name else under.start, under.stop)
