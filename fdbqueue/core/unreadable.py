"""What cannot be read: stored values set aside unchanged, and data that only this process cannot read.

Stored values that nobody can read are set aside, until a user removes them. They lie under L, the prefix of
the queue's waiting line, beside its columns.

    L[5] id           entry   key, reason, sizes   aside(); `fdbqueue aside`
    L[6] id, number   part    bytes                the same: a stored value, as it was
    L[7]              count   little-endian        unreadable(); statistics

`id` is the time in microseconds, 8 bytes, and 8 bytes of a hash of the key: in order of time. The first part
is the value of the key; those of its payload follow. An entry and its parts come and go together.

Data that this process cannot read are reported by a listing, and passed over by a take. A codec, a class or a
release is missing here, or the handle has another type: another process may decode such an item. It stays in
its place, and takes go on behind it. They raise its error only if there is no other item.

A queue that is not registered stores no codec: the handle names one. Until a handle has put or read an item
there, bytes that its codec refuses may as well be those of another codec, and are passed over, too.
"""

import struct
from base64 import b32hexencode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_id, checked_items, writable
from fdbqueue.core.codec import NOT_HERE, PayloadCodec
from fdbqueue.core.database import run, runtime_of
from fdbqueue.core.errors import FdbQueueError, InvalidArgument, PayloadUnreadable
from fdbqueue.core.once import run_in
from fdbqueue.core.page import Page, checked_limit, no_place, place_bytes, place_text
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction

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


NOT_READ = (PayloadUnreadable, *NOT_HERE)
"""Errors of decoding a stored payload."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The data of a task, or an item, that cannot be read here."""

    error: FdbQueueError = field(compare=False)  # an error is equal to itself only
    payload: bytes
    """The stored bytes; empty if some of them are missing."""

    def __str__(self) -> str:
        return f"unreadable: {self.error}"


def shown(codec: PayloadCodec, payload: Callable[[], bytes]) -> Any:
    raw = b""
    try:
        raw = payload()
        return codec.decode(raw)
    except NOT_READ as error:
        return Unreadable(error, raw)


Stored = tuple[bytes, str, Callable[[], bytes]]
"""The id of an item, its key for messages, and the reply to the read of its payload."""

Head = Callable[[int], Iterable[bytes]]
"""Reads the ids of the first items of a queue, up to a number."""


@dataclass(frozen=True)
class Sorted:
    data: Mapping[bytes, Any]
    damaged: Mapping[bytes, FdbQueueError]
    """No process can read them."""
    passed: Collection[bytes]
    """Other processes may read them: they stay."""


class Passed(dict[bytes, FdbQueueError]):
    """The ids of passed-over items, with their errors.

    Each handle has its own, because another handle may read them.
    """

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.codec_is_known = registered
        """True if the codec of the handle is that of the queue: bytes that it refuses are damaged."""

    def learn_codec(self) -> None:
        """The handle has put an item, or has read one."""
        self.codec_is_known = True
        for id_, error in list(self.items()):
            if isinstance(error, PayloadUnreadable):
                self.pop(id_, None)

    def is_damage(self, error: FdbQueueError) -> bool:
        """True if no process can read the item, false if it is to be passed over."""
        return self.codec_is_known and isinstance(error, PayloadUnreadable)

    def sort_out(self, codec: PayloadCodec, queue: str, payloads: Sequence[Stored], head: Head) -> Sorted:
        """Decode each payload, and note the items to pass over. Reads the `head` only to forget old ones.

        Raises: the error of an item if there are too many of them to look for another item behind them all.
        """
        data: dict[bytes, Any] = {}
        errors: dict[bytes, FdbQueueError] = {}
        for id_, _, payload in payloads:
            try:
                data[id_] = codec.decode(payload())
            except NOT_READ as error:
                errors[id_] = error
        if data and not self.codec_is_known:
            self.learn_codec()
        damaged = {id_: error for id_, error in errors.items() if self.is_damage(error)}
        passed = [(id_, key) for id_, key, _ in payloads if id_ in errors and id_ not in damaged]
        if len(self) + len(passed) > limits.PASSED_OVER_MAX:
            # Forget all others: other processes have taken them, or a look meets them again.
            there = set(head(len(self) + len(payloads)))
            for id_ in list(self):
                if id_ not in there:
                    self.pop(id_, None)
        for id_, key in passed:
            self.note(id_, located(errors[id_], queue, key))
        return Sorted(data, damaged, {id_ for id_, _ in passed})

    def note(self, id_: bytes, error: FdbQueueError) -> None:
        """Raises `error` if there are too many of them to look for another item behind them all."""
        if len(self) >= limits.PASSED_OVER_MAX:
            self.clear()
            raise error
        self[id_] = error

    def require_none_of(self, ids: Iterable[bytes]) -> None:
        """Raises the error of the first of `ids` that was passed over."""
        first = next((id_ for id_ in ids if id_ in self), None)
        if first is not None:
            raise self[first]


def located(error: FdbQueueError, queue: str, key: str) -> FdbQueueError:
    if not hasattr(error, "queue"):
        error.queue, error.key = queue, key  # type: ignore[attr-defined]
        error.args = (f"{error.args[0]} It is {key} in the queue {queue!r}.", *error.args[1:])
    return error


class KeepsAside:
    """The calls of a queue for its values that were set aside."""

    __slots__ = ()

    _aside: Aside
    _ask_exists: Callable[[Transaction], Callable[[], None]]
    _receipts: RootKeys
    """The root with the receipts of this queue's calls."""

    def aside(self, tr: DatabaseOrTransaction, limit: int, *, after: str | None = None) -> Page[SetAside]:
        """A page of the values that were set aside, the oldest first: up to `limit`,
        limits.BATCH_ITEMS_MAX and limits.BATCH_BYTES_MAX bytes, or one that is larger. Its `next` is the
        `after` of the page that follows, None at the end.

        Reads: by snapshot. Conflicts: none. Raises: InvalidArgument.
        """
        most, place = checked_limit(limit), place_bytes(after) or b""
        if place and len(place) != ID_BYTES:
            raise no_place(after)
        return run(tr, lambda tr: self._there(writable(tr)).page(tr, most, place))

    def remove_aside(self, tr: DatabaseOrTransaction, ids: Iterable[str]) -> int:
        """Remove the entries of at most limits.VERB_BATCH ids, and return their number. An id that is gone
        is no error.

        Reads, writes: their entries. Conflicts: their removal. Raises: InvalidArgument.
        """
        wanted = "ids of what aside() lists"
        known = [checked_id("ids", id_, ID_BYTES, wanted) for id_ in checked_items("ids", ids)]
        if len(known) > limits.VERB_BATCH:
            wanted = f"at most {limits.VERB_BATCH} ids"
            raise InvalidArgument(name="ids", wanted=wanted, got=len(known))

        def body(tr: Transaction) -> int:
            return self._there(tr).remove(tr, known)

        return run_in(tr, self._receipts, body, wrote=bool)

    def unreadable(self, tr: DatabaseOrTransaction) -> int:
        """The number of stored values that are set aside because they could not be read.

        Reads: one key by snapshot. Conflicts: none.
        """
        return run(tr, lambda tr: self._there(writable(tr)).ask_count(tr)())

    def _there(self, tr: Transaction) -> Aside:
        self._ask_exists(tr)()
        return self._aside
