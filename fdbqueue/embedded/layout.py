"""The layout of keys in LMDB: the key map, and keys that are too long for LMDB.

    00 "format"             "MAJOR.MINOR" of this layout; raise MAJOR when an older release must not open it
    01 <version: 8 B>       the commit log: the writes of the commit at this version (commitlog.py)
    02 <key>                data; the value is the user's
    02 <first 502 B> <label: 8 B>   data of a key longer than that; the value is
                                    <length of the rest: 2 B> <rest of the key> <the user's value>

LMDB takes keys of 1 to 511 bytes, FoundationDB keys of 0 to 10,000. A long key is cut, and a *label* keeps
the records of one cut prefix in the order of their rests. A search bisects the labels. An insert takes a
label between those of its neighbours; if none is left, the prefix gets new labels. Short keys cost nothing
more.
"""

from collections.abc import Iterator
from typing import Any

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
    return _scan_back(txn, begin, end) if reverse else _scan_on(txn, begin, end)


def _scan_on(txn: Txn, begin: bytes, end: bytes) -> Iterator[KeyAndValue]:
    cursor = txn.cursor()
    if not cursor.set_range(_seek(txn, begin)):
        return
    for place, value in cursor.iternext():
        key = place[1:]
        if len(place) == _LONG_RECORD_KEY_BYTES:
            key, value = _unpack(place, value)
        if key >= end:
            return
        yield key, value


def _scan_back(txn: Txn, begin: bytes, end: bytes) -> Iterator[KeyAndValue]:
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(_seek(txn, end)) else cursor.last()
    if not found:
        return
    for place, value in cursor.iterprev():
        if place < DATA_PREFIX:
            return
        key = place[1:]
        if len(place) == _LONG_RECORD_KEY_BYTES:
            key, value = _unpack(place, value)
        if key < begin:
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
        if place.startswith(bucket) and len(place) == _LONG_RECORD_KEY_BYTES:
            return int.from_bytes(place[-_LABEL_BYTES:], "big"), _unpack(place, cursor.value())[0]
    return _LABEL_MAX, None


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
    place = cursor.key() if found else b""
    if place.startswith(bucket) and len(place) == _LONG_RECORD_KEY_BYTES:
        return int.from_bytes(place[-_LABEL_BYTES:], "big")
    return -1


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
