"""The elements of one queue, in one transaction each.

    -         add      ->  unlocked
    unlocked  acquire  ->  locked
    locked    touch    ->  locked, from now on
    locked    release  ->  unlocked
    locked    break_lock, once it is old  ->  unlocked
    locked    remove   ->  gone
    unlocked  peek, discard  ->  gone

A transaction that reads an element's lock conflicts with one that changes it: there is no other mutual
exclusion. Payloads never change, and are read by snapshot.

Schemas: the pieces of an element, and the encoding of each (elements.md 2 and 3). A piece is stored as the
bytes that a directory queue writes into its file. So a reader may have another schema than the writer, and
elements move between the two unchanged.

Keys of an element queue, and their values: the only file that builds or parses them.
S is the subspace of the queue. `NAME` is the public name of an element: 23 ASCII bytes, in order of time
(`name_at`). `FOLDER` is the identity of a directory on disk. The comment of a column has its value, and
behind the semicolon its readers. S[37] is the layout of a queue without a definition
(core/registry.py).

An element has one key in S[1], its payload in S[2], and a key in S[3] while it is locked. A listing reads
S[1] and no payload.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.codec import pieces_of
from fdbqueue.core.columns import UNKNOWN, Part, Table, number, sized
from fdbqueue.core.errors import (
    DamagedElement,
    ElementNotFound,
    ElementNotLocked,
    InvalidElement,
    InvalidSchema,
    LockLost,
    NoNameAtThatTime,
    PayloadTooLarge,
    QueueLockError,
    UnknownSchema,
    UnreadableElement,
)
from fdbqueue.core.registry import Guard, SubspaceGuard
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.unreadable import DAMAGED, Aside
from fdbqueue.core.visible import shown, told

Pieces = dict[str, bytes]
"""An element as it is stored: the bytes of each piece, by name."""

NAMELESS = ""
"""The one piece of an element without a schema; no schema can have it."""

LOCKED = "locked"
"""No piece may have this name: in a directory queue it is the lock of its element."""

# A piece is a file in a directory queue: this is the longest name of a file.
PIECE_NAME_BYTES_MAX = 255
_PIECE_NAME = re.compile(f"[0-9a-zA-Z]{{1,{PIECE_NAME_BYTES_MAX}}}")
# "*" asks dirq's Perl version for references; it has no meaning here.
_TYPE = re.compile(r"(binary|string|table)([?*]{0,2})")


class Schema:
    """The pieces of an object's elements; without any, it can neither add nor get."""

    def __init__(self, types: Any) -> None:
        parsed = _parsed(types)
        self.types = {name: type_ for name, (type_, _) in parsed.items()}
        self.mandatory = tuple(name for name, (_, optional) in parsed.items() if not optional)
        if parsed and not self.mandatory:
            raise InvalidSchema(reason="no mandatory data")

    def require(self) -> None:
        if not self.types:
            raise UnknownSchema

    def encode(self, data: Any) -> Pieces:
        self.require()
        if not isinstance(data, Mapping):
            raise InvalidElement(reason=f"unexpected data: {shown(data)} is no dictionary of pieces")
        for name in data:
            if name not in self.types:
                raise InvalidElement(reason=f"unexpected data: {told(name)}")
        pieces = {name: self._encoded(name, value) for name, value in data.items()}
        for name in self.mandatory:
            if name not in pieces:
                raise InvalidElement(reason=f"missing mandatory data: {name}")
        return pieces

    def decode(self, name: str, pieces: Pieces) -> dict[str, Any]:
        """Decode the pieces that this schema has. Raises UnreadableElement for the element `name`."""
        for piece in self.mandatory:
            if piece not in pieces:
                raise UnreadableElement(reason=f"missing data file: {piece}", name=name)
        try:
            return {
                piece: _DECODERS[type_](pieces[piece])
                for piece, type_ in self.types.items()
                if piece in pieces
            }
        except ValueError as reason:
            raise UnreadableElement(reason=str(reason), name=name) from reason

    def _encoded(self, name: str, value: Any) -> bytes:
        type_ = self.types[name]
        try:
            return _ENCODERS[type_](value)
        except _HashType as reason:
            raise InvalidElement(reason=str(reason)) from None
        except (TypeError, UnicodeEncodeError):
            raise InvalidElement(reason=f"unexpected {type_} data in {name}: {shown(value)}") from None


def _parsed(types: Any) -> dict[str, tuple[str, bool]]:
    """For each piece its type, and True if it is optional. Raises InvalidSchema."""
    if types is None:
        return {}
    if not isinstance(types, dict):
        raise InvalidSchema(reason=f"{shown(types)} is no dictionary")
    return {_checked_name(name): _checked_type(type_) for name, type_ in types.items()}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _PIECE_NAME.fullmatch(name) or name == LOCKED:
        raise InvalidSchema(f"invalid schema name: {shown(name)}", name=name)
    return name


def _checked_type(type_: Any) -> tuple[str, bool]:
    match = _TYPE.fullmatch(type_) if isinstance(type_, str) else None
    if match is None:
        raise InvalidSchema(f"invalid schema data type: {shown(type_)}", type=type_)
    return match[1], "?" in match[2]


class _HashType(TypeError):
    """A key or value of a table is no text."""


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return bytes(value)


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _table(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise TypeError
    for key_or_value in (*value, *value.values()):
        if not isinstance(key_or_value, str):
            raise _HashType(f"invalid hash value type: {shown(key_or_value)}")
    return text_of(value).encode()


_ENCODERS: dict[str, Callable[[Any], bytes]] = {"binary": _binary, "string": _string, "table": _table}
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "binary": bytes,
    "string": bytes.decode,
    "table": lambda piece: table_of(piece.decode()),
}


_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n"}
_ESCAPED = {escape: plain for plain, escape in _ESCAPES.items()}
_TO_ESCAPE = re.compile(r"[\\\t\n]")
_TO_UNESCAPE = re.compile(r"\\[\\tn]")
_LINE = re.compile("([^\t\n]*)\t([^\t\n]*)")


def text_of(table: Mapping[str, str]) -> str:
    """A table as text, in the form of directory queues: each side reads the other's tables.

    A line for each key, sorted: key, tab, value, newline; a backslash, tab or newline within them is escaped.
    """
    return "".join(f"{_escape(key)}\t{_escape(table[key])}\n" for key in sorted(table))


def table_of(text: str) -> dict[str, str]:
    """Parse a table; the last of two equal keys counts. Raises ValueError for a malformed line."""
    lines = text.strip("\n").split("\n") if text else []
    return dict(map(_pair, lines))


def _pair(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"unexpected hash line: {told(line)}")
    return _unescape(match[1]), _unescape(match[2])


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return _TO_UNESCAPE.sub(lambda match: _ESCAPED[match[0]], text)


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


_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Pieces).decode


GONE = "there is no such element"


def payload_of(pieces: Pieces) -> bytes:
    payload = _to_bytes(pieces)
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
    return payload


class Elements:
    def __init__(self, keys: ElementKeys, guard: Guard | None, root: bytes | None = None) -> None:
        """Without a `guard` the queue is not registered: its subspace may hold keys of another program."""
        self.keys = keys
        self.aside = Aside(keys.prefix, keys.aside)
        self.guard = guard or SubspaceGuard(keys.prefix, keys.is_key, root).ask_until_known

    def add(self, tr: Transaction, name: str, payload: bytes) -> str:
        """Add an element as `name`, or as the next free name, and return the name."""
        check = self.guard(tr)
        while tr.get(self.keys.element(name)).present():
            name = following(name)
        check()
        for at, piece in enumerate(pieces_of(payload)):
            tr.set(self.keys.payload(name, at), piece)
        tr.set(self.keys.element(name), b"")
        tr.add(self.keys.count, COUNTER.pack(1))
        return name

    def acquire(self, tr: Transaction, name: str, lock: Lock) -> str:
        """Lock the element, and return "", or the reason for a refusal."""
        refused = self.refusal(tr, name)
        if not refused:
            bypass_storage_quota(tr)  # on a full disk, too: a consumer locks in order to remove
            tr.set(self.keys.lock(name), lock.to_bytes())
        return refused

    def refusal(self, tr: Transaction, name: str) -> str:
        """The reason why the element cannot be locked, or "". Reads the element and its lock."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        element = tr.get(self.keys.element(name))
        check()
        if not element.present():
            return GONE
        return "it is locked" if held.present() else ""

    def release(self, tr: Transaction, name: str, token: bytes | None) -> None:
        self._require_lock(tr, name, token, "unlock")()
        tr.clear(self.keys.lock(name))

    def get(self, tr: Any, name: str, token: bytes | None) -> Pieces:
        require, payload = self._require_lock(tr, name, token, "get"), self._ask_payload(tr, name)
        require()
        return payload()

    def remove(self, tr: Transaction, name: str, token: bytes | None) -> None:
        self._require_lock(tr, name, token, "remove")()
        self._clear(tr, name)

    def peek(self, tr: Transaction, name: str) -> Pieces:
        """The pieces of an unlocked element."""
        payload = self._ask_payload(tr, name)
        refused = self.refusal(tr, name)
        if refused:
            raise QueueLockError(name=name, reason=refused)
        return payload()

    def set_aside(self, tr: Transaction, name: str) -> None:
        payload, element = self._ask_payload(tr, name), tr.get(self.keys.element(name))
        if not element.present():
            return
        try:
            payload()
        except DamagedElement as damage:
            under = self.keys.payload_of(name)
            pieces = tr.get_range(under.start, under.stop, limit=limits.ASIDE_PARTS_MAX)
            values = [element.value, *(bytes(piece.value) for piece in pieces)]
            self.aside.put(tr, self.keys.element(name), values, str(damage))
            self._clear(tr, name)

    def discard(self, tr: Transaction, name: str) -> None:
        """Remove an element that this transaction has just peeked at."""
        self._clear(tr, name)

    def touch(self, tr: Transaction, name: str, now_us: int) -> bool:
        """Set the lock's time to `now_us`, and never back: clocks differ. True if there is a lock."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        element = tr.get(self.keys.element(name))
        check()
        if not element.present():
            raise ElementNotFound(action="touch", name=name)
        if held.present():
            lock = Lock.from_bytes(held.value)
            tr.set(self.keys.lock(name), Lock(max(now_us, lock.since_us), lock.token).to_bytes())
        return bool(held.present())

    def break_lock(self, tr: Transaction, name: str, before_us: int) -> bool:
        """True if the lock was from before `before_us`, and not renewed meanwhile: then it is broken."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        check()
        old = held.present() and Lock.from_bytes(held.value).since_us < before_us
        if old:
            tr.clear(self.keys.lock(name))
        return bool(old)

    def names(self, tr: Any, after: str, limit: int) -> list[str]:
        """At most `limit` names after `after`, in order. Reads by snapshot. Conflicts: none."""
        return [
            self.keys.name_in(entry.key) for entry in self._sound(tr, self.keys.elements_after(after), limit)
        ]

    def locks(self, tr: Any, after: str, limit: int) -> list[tuple[str, Lock]]:
        """At most `limit` locks after `after`, in order of the names. Reads by snapshot. Conflicts: none."""
        found = self._sound(tr, self.keys.locks_after(after), limit)
        return [(self.keys.name_in(entry.key), Lock.from_bytes(entry.value)) for entry in found]

    def count(self, tr: Any) -> int:
        """The number of elements. Reads one key by snapshot. Conflicts: none."""
        check, counter = self.guard(tr), _snapshot(tr).get(self.keys.count)
        check()
        return int.from_bytes((counter.value or b"")[: COUNTER.size], "little", signed=True)

    def _sound(self, tr: Any, under: slice, limit: int) -> list[KeyValue]:
        """The first `limit` keys that end in a name; damaged ones are passed over."""
        check, start, sound = self.guard(tr), under.start, list[KeyValue]()
        while True:
            found = _snapshot(tr).get_range(start, under.stop, limit=limit).to_list()
            check()
            sound += [entry for entry in found if self.keys.is_sound(entry.key)]
            if len(found) < limit or len(sound) >= limit:
                return sound[:limit]
            start = found[-1].key + b"\x00"

    def _require_lock(self, tr: Any, name: str, token: bytes | None, action: str) -> Callable[[], None]:
        """Ask for the lock; the reply raises ElementNotLocked or LockLost."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))

        def require() -> None:
            check()
            if not held.present():
                there = _snapshot(tr).get(self.keys.element(name)).present()
                raise ElementNotLocked(action=action, name=name, reason="" if there else f": {GONE}")
            if token is not None and Lock.from_bytes(held.value).token != token:
                raise LockLost(action=action, name=name)

        return require

    def _ask_payload(self, tr: Any, name: str) -> Callable[[], Pieces]:
        under = self.keys.payload_of(name)
        asked = _snapshot(tr).get_range(under.start, under.stop)
        return lambda: self._pieces_of(name, _joined([piece.value for piece in asked]))

    def _pieces_of(self, name: str, payload: bytes) -> Pieces:
        try:
            return _from_bytes(payload)
        except DAMAGED as reason:
            raise DamagedElement(name=name, queue=repr(self.keys.prefix), reason=str(reason)) from reason

    def _clear(self, tr: Transaction, name: str) -> None:
        payload = self.keys.payload_of(name)
        tr.clear_range(payload.start, payload.stop)
        tr.clear(self.keys.element(name))
        tr.clear(self.keys.lock(name))
        tr.add(self.keys.count, COUNTER.pack(-1))


def is_readable(payload: bytes) -> bool:
    try:
        _from_bytes(payload)
    except DAMAGED:
        return False
    return True


def _joined(pieces: Sequence[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snapshot(tr: Any) -> Any:
    return getattr(tr, "snapshot", tr)
