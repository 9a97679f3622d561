"""Stored values that cannot be read: set aside unchanged, until a user removes them.

They lie under L, the prefix of the queue's waiting line, beside its columns.

    L[5] id           entry   key, reason, sizes   aside(); `fdbqueue aside`
    L[6] id, number   part    bytes                the same: a stored value, as it was
    L[7]              count   little-endian        unreadable(); statistics

`id` is the time in microseconds, 8 bytes, and 8 bytes of a hash of the key: in order of time. The first part
is the value of the key; those of its payload follow. An entry and its parts come and go together.
"""

import struct
from base64 import b32hexencode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.page import Page, place_text
from fdbqueue.core.seam import Transaction

ENTRY, PART, COUNT = 5, 6, 7
ID_BYTES = 16

_HASH_BYTES = 8
_NUMBER = struct.Struct(">I")
COUNTER = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class SetAside:
    """A value of a queue that could not be read, with its key."""

    id: str
    when: float
    """Time at which it was set aside, in seconds since the epoch."""
    key: bytes
    """The key of the value, without the prefix of the queue."""
    reason: str
    values: Sequence[bytes]
    """The value of the key, unchanged; then the values of its payload, if that had keys of its own."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """As stored. Append fields with a default; never reorder them."""

    key: bytes
    reason: str
    sizes: list[int]


DAMAGED = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of the decoder of a stored Struct for damaged bytes."""

_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Entry).decode


class Aside:
    def __init__(self, prefix: bytes, line: bytes) -> None:
        """`prefix` is that of the queue, `line` that of its waiting line."""
        self._prefix = prefix
        columns: list[bytes] = [layer.pack((n,), prefix=line) for n in (ENTRY, PART, COUNT, COUNT + 1)]
        self._entry, self._part, self.count_key, end = columns
        self.everything = slice(self._entry, end)

    def put(
        self, tr: Transaction, key: bytes, values: Sequence[bytes], reason: str, pieces: slice | None = None
    ) -> None:
        """Set `values` aside, which were found at `key` and beside it, and then the values of the keys in
        `pieces`. The caller clears them.

        Reads: `key`, serialisably; `pieces`, by snapshot.
        Writes: the entry, a key for each value, the count.
        Conflicts: any change of `key`.
        """
        tr.add_read_conflict_key(key)
        now = runtime_of(tr).now_us().to_bytes(ID_BYTES - _HASH_BYTES, "big")
        id_ = now + sha256(key).digest()[:_HASH_BYTES]
        kept = [*values, *_values_in(tr, pieces)][: limits.ASIDE_PARTS_MAX]
        shown = key.removeprefix(self._prefix)
        tr.set(self._entry + id_, _to_bytes(Entry(shown, reason, [len(value) for value in kept])))
        for number, value in enumerate(kept):
            tr.set(self._part + id_ + _NUMBER.pack(number), value)
        tr.add(self.count_key, COUNTER.pack(1))

    def page(self, tr: Transaction, limit: int, after: bytes) -> Page[SetAside]:
        """The next entries, up to `limit` and limits.BATCH_BYTES_MAX bytes, or one that is larger.

        Reads: the entries and their parts, by snapshot. Conflicts: none.
        """
        start = self._entry + after + b"\x00" if after else self._entry
        found = list(tr.snapshot.get_range(start, self._part, limit=limit + 1))
        entries = [(row.key[len(self._entry) :], entry_in(row.value) or _UNREADABLE) for row in found]
        count, total = 0, 0
        for _, entry in entries[:limit]:
            total += sum(entry.sizes)
            if count and total > limits.BATCH_BYTES_MAX:
                break
            count += 1
        asked = [(id_, entry, self._ask_parts(tr, id_)) for id_, entry in entries[:count]]
        rows = [
            SetAside(aside_text(id_), _when(id_), entry.key, entry.reason, parts())
            for id_, entry, parts in asked
        ]
        return Page(rows, place_text(entries[count - 1][0]) if count < len(entries) else None)

    def remove(self, tr: Transaction, ids: Iterable[bytes]) -> int:
        """Remove the entries of `ids`, and return their number; an id given twice counts once.

        Reads: the entries.
        Writes: clears the entries and their parts; the count.
        Conflicts: their removal.
        """
        asked = [(id_, tr.get(self._entry + id_)) for id_ in dict.fromkeys(ids)]
        there = [id_ for id_, entry in asked if entry.present()]
        for id_ in there:
            tr.clear(self._entry + id_)
            tr.clear_range(self._part + id_, self._part + id_ + b"\xff" * (_NUMBER.size + 1))
        if there:
            tr.add(self.count_key, COUNTER.pack(-len(there)))
        return len(there)

    def ask_count(self, tr: Transaction) -> Callable[[], int]:
        found = tr.snapshot.get(self.count_key)
        return lambda: count_in(found.value)

    def parts_of(self, key: bytes) -> tuple[int | None, bytes]:
        """The number of the key's column, None for an unknown one, and the part behind it."""
        columns = {ENTRY: self._entry, PART: self._part, COUNT: self.count_key}
        for number, column in columns.items():
            if key.startswith(column):
                return number, key[len(column) :]
        return None, b""

    def entry(self, id_: bytes) -> bytes:
        return self._entry + id_

    def part(self, id_: bytes) -> bytes:
        """The start of the keys of an entry's parts."""
        return self._part + id_

    @property
    def entries(self) -> slice:
        return slice(self._entry, self._part)

    def _ask_parts(self, tr: Transaction, id_: bytes) -> Callable[[], list[bytes]]:
        under = self._part + id_
        rows = tr.snapshot.get_range(under, under + b"\xff" * (_NUMBER.size + 1))
        return lambda: [bytes(row.value) for row in rows]


_UNREADABLE = Entry(b"", "the entry that describes this value cannot be read", [])


def entry_in(value: bytes) -> Entry | None:
    try:
        return _from_bytes(value)
    except DAMAGED:
        return None


def count_in(value: bytes | None) -> int:
    return int.from_bytes((value or b"")[: COUNTER.size], "little", signed=True)


def aside_text(id_: bytes) -> str:
    return b32hexencode(id_).decode()


def _when(id_: bytes) -> float:
    return int.from_bytes(id_[: ID_BYTES - _HASH_BYTES], "big") / 1_000_000


def _values_in(tr: Transaction, under: slice | None) -> list[bytes]:
    if under is None:
        return []
    rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.ASIDE_PARTS_MAX)
    return [bytes(row.value) for row in rows]
