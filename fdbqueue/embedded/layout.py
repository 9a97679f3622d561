"""The layout of keys in LMDB: the key map, keys that are too long for LMDB, and the commit log.

    00 "format"             "MAJOR.MINOR" of this layout; raise MAJOR when an older release must not open it
    01 <version: 8 B>       the commit log: the writes of the commit at this version
    02 <key>                data; the value is the user's
    02 <first 502 B> <label: 8 B>   data of a key longer than that; the value is
                                    <length of the rest: 2 B> <rest of the key> <the user's value>

LMDB takes keys of 1 to 511 bytes, FoundationDB keys of 0 to 10,000. A long key is cut, and a *label* keeps
the records of one cut prefix in the order of their rests. A search bisects the labels. An insert takes a
label between those of its neighbours; if none is left, the prefix gets new labels. Short keys cost nothing
more.

The conflict checks of all processes read the commit log. Each commit adds one record under its version, in
the same LMDB transaction as its data, so log and data never disagree, even if a process dies. As the log
grows, records older than any transaction are deleted. Each process keeps the newest records decoded, so a
process that commits alone never reads the log.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded.journal import NOWHERE, Place
from fdbqueue.embedded.processes import Answer
from fdbqueue.embedded.writes import KeySet

FORMAT_MAJOR, FORMAT_MINOR = 2, 0
FORMAT = f"{FORMAT_MAJOR}.{FORMAT_MINOR}".encode()
FORMAT_KEY = b"\x00format"


def knows(found: bytes) -> bool:
    return int(found.split(b".")[0]) <= FORMAT_MAJOR


LOG_PREFIX = b"\x01"
LOG_END = b"\x02"
DATA_PREFIX = b"\x02"

_CUT = 502
_LABEL_BYTES = 8
_LONG_RECORD_KEY_BYTES = 1 + _CUT + _LABEL_BYTES  # 511; an uncut key is shorter
_LABEL_MAX = (1 << 64) - 1  # reserved: a search past the last record ends there
_LABEL_STEP = 1 << 32  # appends are the common case: 2**31 of them fit before a new labelling

KeyAndValue = tuple[bytes, bytes]
Txn = Any  # lmdb.Transaction


def log_key(version: int) -> bytes:
    return LOG_PREFIX + version.to_bytes(8, "big")


def get(txn: Txn, key: bytes) -> bytes | None:
    if len(key) <= _CUT:
        value: bytes | None = txn.get(DATA_PREFIX + key)
        return value
    place = _find(txn, key)
    return txn.get(place)[2 + len(key) - _CUT :] if place is not None else None


def put(txn: Txn, key: bytes, value: bytes) -> None:
    if len(key) <= _CUT:
        txn.put(DATA_PREFIX + key, value)
        return
    rest = key[_CUT:]
    place = _find(txn, key) or _new_place(txn, key)
    txn.put(place, len(rest).to_bytes(2, "big") + rest + value)


def delete(txn: Txn, key: bytes) -> None:
    place = DATA_PREFIX + key if len(key) <= _CUT else _find(txn, key)
    if place is not None:
        txn.delete(place)


def write(txn: Txn, values: Mapping[bytes, bytes | None]) -> None:
    """Put the values, and delete the keys of None."""
    for key, value in values.items():
        if value is None:
            delete(txn, key)
        elif len(key) > _CUT:
            put(txn, key, value)
        else:
            txn.put(DATA_PREFIX + key, value)  # as `put`, with one call less


def delete_range(txn: Txn, begin: bytes, end: bytes) -> Iterator[bytes]:
    """Delete the records of [begin, end) during iteration; yield their keys."""
    cursor = txn.cursor()
    found = cursor.set_range(_seek(txn, begin))
    while found and (key := _key_of(cursor.key(), cursor.value)) < end:
        cursor.delete()
        yield key
        found = bool(cursor.key())


def scan(txn: Txn, begin: bytes, end: bytes, reverse: bool = False) -> Iterator[KeyAndValue]:
    """Yield the records of [begin, end) in key order, or backwards; each is read when it is due."""
    cursor = txn.cursor()
    found = cursor.set_range(_seek(txn, end if reverse else begin))
    if reverse:
        found = cursor.prev() if found else cursor.last()
    if not found:
        return
    for place, value in cursor.iterprev() if reverse else cursor.iternext():
        key = place[1:]
        if len(place) == _LONG_RECORD_KEY_BYTES:
            key, value = _unpack(place, value)
        if (key < begin or place < DATA_PREFIX) if reverse else key >= end:
            return
        yield key, value


# -- long keys ------------------------------------------------------------------------------------


def _unpack(place: bytes, record: bytes) -> KeyAndValue:
    rest_end = 2 + int.from_bytes(record[:2], "big")
    return place[1 : 1 + _CUT] + record[2:rest_end], record[rest_end:]


def _key_of(place: bytes, read_record: Any) -> bytes:
    return _unpack(place, read_record())[0] if len(place) == _LONG_RECORD_KEY_BYTES else place[1:]


def _seek(txn: Txn, key: bytes) -> bytes:
    """Return the LMDB key from which a cursor's set_range finds the first record at or after `key`."""
    if len(key) <= _CUT:
        return DATA_PREFIX + key
    bucket = DATA_PREFIX + key[:_CUT]
    return bucket + _label_bytes(_first_label_from(txn, bucket, key))


def _find(txn: Txn, key: bytes) -> bytes | None:
    place = _seek(txn, key)
    record = txn.get(place)
    return place if record is not None and _unpack(place, record)[0] == key else None


def _first_label_from(txn: Txn, bucket: bytes, key: bytes) -> int:
    """Return the label of the bucket's first record at or after `key`; _LABEL_MAX if there is none."""
    low, high = 0, _LABEL_MAX
    while low < high:
        middle = (low + high) // 2
        label, found = _record_from(txn, bucket, middle)
        if found is None or found >= key:
            high = middle
        else:
            low = label + 1
    return _record_from(txn, bucket, low)[0]


def _record_from(txn: Txn, bucket: bytes, label: int) -> tuple[int, bytes | None]:
    cursor = txn.cursor()
    if cursor.set_range(bucket + _label_bytes(label)):
        place = cursor.key()
        if (label := _label_in(bucket, place)) >= 0:
            return label, _unpack(place, cursor.value())[0]
    return _LABEL_MAX, None


def _label_in(bucket: bytes, place: bytes) -> int:
    """Return the label of a record of the bucket; -1 of another record."""
    is_in = place.startswith(bucket) and len(place) == _LONG_RECORD_KEY_BYTES
    return int.from_bytes(place[-_LABEL_BYTES:], "big") if is_in else -1


def _new_place(txn: Txn, key: bytes) -> bytes:
    bucket = DATA_PREFIX + key[:_CUT]
    after = _first_label_from(txn, bucket, key)
    before = _label_before(txn, bucket, after)
    label = _label_between(before, after)
    if label is None:
        _relabel(txn, bucket)
        return _new_place(txn, key)
    return bucket + _label_bytes(label)


def _label_before(txn: Txn, bucket: bytes, label: int) -> int:
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(bucket + _label_bytes(label)) else cursor.last()
    return _label_in(bucket, cursor.key()) if found else -1


def _label_between(before: int, after: int) -> int | None:
    """Return a label between two, or None; near `before` at a bucket's end, near `after` at its start."""
    if before < 0 and after == _LABEL_MAX:
        return _LABEL_MAX // 2
    if after == _LABEL_MAX and before + _LABEL_STEP < after:
        return before + _LABEL_STEP
    if before < 0 and after >= _LABEL_STEP:
        return after - _LABEL_STEP
    middle = (before + after) // 2
    return middle if before < middle < after else None


def _relabel(txn: Txn, bucket: bytes) -> None:
    records = []
    cursor = txn.cursor()
    found = cursor.set_range(bucket + _label_bytes(0))
    while found and cursor.key().startswith(bucket):
        records.append(cursor.value())
        cursor.delete()
        found = bool(cursor.key())
    spacing = _LABEL_MAX // (len(records) + 1)
    for number, record in enumerate(records, start=1):
        txn.put(bucket + _label_bytes(number * spacing), record)


def _label_bytes(label: int) -> bytes:
    return label.to_bytes(_LABEL_BYTES, "big")


# Twice the age of a transaction, since two processes do not read their clocks at the same instant.
_KEPT_US = int(2 * limits.TRANSACTION_AGE_MAX_S * 1_000_000)

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Written:
    """The writes of one commit: `conflicts` for readers and watches, `silent` for watches only."""

    version: int
    conflicts: KeySet
    silent: KeySet
    removed: set[bytes] = field(default_factory=set)  # keys in cleared ranges; not in the log

    def keys(self) -> set[bytes]:
        return self.conflicts.points | self.silent.points | self.removed


class _Record(msgspec.Struct, array_like=True):
    committed_us: int
    points: set[bytes]
    ranges: list[tuple[bytes, bytes]]
    silent_points: set[bytes]
    silent_ranges: list[tuple[bytes, bytes]]
    answers: Sequence[Answer] = ()
    asked_in: int = 0
    place: tuple[int, int, int] = (0, 0, 0)


_decode = msgspec.msgpack.Decoder(_Record).decode


def append(
    txn: Txn,
    written: Written,
    now_us: int,
    answers: Sequence[Answer] = (),
    asked_in: int = 0,
    place: Place = NOWHERE,
) -> None:
    """Add the record of a commit, and its place. `answers`: to requests in the pool's file `asked_in`."""
    conflicts, silent = written.conflicts, written.silent
    record = _Record(
        now_us, conflicts.points, conflicts.ranges, silent.points, silent.ranges, answers, asked_in, place
    )
    txn.put(log_key(written.version), _encode(record))
    if written.version % limits.LOG_TRIMMED_EVERY_VERSIONS == 0:
        _trim(txn, now_us)


def note_place(txn: Txn, place: Place, now_us: int) -> None:
    """Add the record of a commit without writes, so that the next one goes to `place` in the journal."""
    append(txn, Written(txn.id(), KeySet(), KeySet()), now_us, place=place)


def _trim(txn: Txn, now_us: int) -> None:
    cursor = txn.cursor()
    found = cursor.set_range(LOG_PREFIX)
    for _ in range(limits.LOG_TRIMMED_MAX):
        # A record from the future was written before the clock was set back. It is deleted: kept, it would
        # keep all later records. The newest record stays, as it shows how far back the log reaches.
        if not found or cursor.key() >= LOG_END:
            return
        if abs(now_us - _decode(cursor.value()).committed_us) <= _KEPT_US:
            return
        cursor.delete()
        found = bool(cursor.key())


def clear(txn: Txn) -> None:
    for _ in _deleted(txn, LOG_END):
        pass


def _deleted(txn: Txn, end: bytes) -> Iterator[None]:
    """Delete the records of the log before `end`, one at each step."""
    cursor = txn.cursor()
    found = cursor.set_range(LOG_PREFIX)
    while found and cursor.key() < end:
        cursor.delete()
        yield
        found = bool(cursor.key())


def last_place(txn: Txn) -> Place:
    newest = _newest(txn)
    return Place(*_decode(txn.get(newest)).place) if newest is not None else NOWHERE


def trim_before(txn: Txn, version: int) -> int:
    """Delete up to limits.LOG_TRIMMED_MAX records before `version`, never the newest; return their number."""
    end = min(log_key(version), _newest(txn) or LOG_PREFIX)
    return sum(1 for _ in islice(_deleted(txn, end), limits.LOG_TRIMMED_MAX))


def _newest(txn: Txn) -> bytes | None:
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(LOG_END) else cursor.last()
    return bytes(cursor.key()) if found and cursor.key() >= LOG_PREFIX else None


def read_since(txn: Txn, version: int) -> Iterator[Written]:
    """Oldest first."""
    cursor = txn.cursor()
    found = cursor.set_range(log_key(version + 1))
    while found and cursor.key() < LOG_END:
        record = _decode(cursor.value())
        yield Written(
            int.from_bytes(cursor.key()[1:], "big"),
            KeySet(record.points, record.ranges),
            KeySet(record.silent_points, record.silent_ranges),
        )
        found = cursor.next()


def answers_at(txn: Txn, version: int, asked_in: int) -> list[Answer] | None:
    """Return the answers of the commit at `version`, [] if there was none; None if the log is too short."""
    found = txn.get(log_key(version))
    if found is not None:
        record = _decode(found)
        return list(record.answers) if record.asked_in == asked_in else []
    oldest = oldest_version(txn)
    return None if oldest is not None and oldest > version else []


def oldest_version(txn: Txn) -> int | None:
    cursor = txn.cursor()
    if cursor.set_range(LOG_PREFIX) and cursor.key() < LOG_END:
        return int.from_bytes(cursor.key()[1:], "big")
    return None


class RecentCommits:
    """The decoded end of the log: each commit with floor < version <= last."""

    def __init__(self) -> None:
        self._commits: deque[Written] = deque()
        self._floor = self._last = -1

    def catch_up(self, txn: Txn, last: int, asked: int) -> None:
        """Add other processes' commits up to `last` with which a reader at version `asked` may conflict."""
        if self._last == last:
            return
        oldest, since = oldest_version(txn), max(self._last, asked)
        if oldest is None or oldest > since + 1:
            # The log was trimmed too far: a clock jumped, or this process waited long for its turn. The
            # missing commits must not count as commits without writes.
            since = last
        if since > self._last:
            self._floor = since  # first, since an interrupt may come between any two steps
            self._commits.clear()
        self._commits.extend(read_since(txn, since))
        self._last = last

    def add(self, written: Written) -> None:
        self._commits.append(written)
        self._last = written.version

    def forget_before(self, version: int) -> None:
        """Drop the commits up to `version`: all transactions of this process read at it or later."""
        while self._commits and self._commits[0].version <= version:
            self._floor = self._commits[0].version  # first, since an interrupt may come before the next step
            self._commits.popleft()

    def conflict(self, txn: Txn, reads: KeySet, read_version: int) -> bool:
        """True if a commit after `read_version` wrote a key of `reads`. Raises: FDBError 1007 (too old)."""
        if read_version < self._floor:
            self._reach_back(txn, read_version)
        for written in reversed(self._commits):
            if written.version <= read_version:
                return False
            if reads.meets(written.conflicts):
                return True
        return False

    def _reach_back(self, txn: Txn, read_version: int) -> None:
        oldest = oldest_version(txn)
        if oldest is None or oldest > read_version + 1:
            raise FDBError(1007)
        earlier = [w for w in read_since(txn, read_version) if w.version <= self._floor]
        self._commits.extendleft(reversed(earlier))
        self._floor = read_version
