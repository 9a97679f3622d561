"""The keys and ranges that the rows of a slice name, read together in one or two round trips.

Rows that lie side by side mostly name keys that lie side by side, too: ids of tasks and places in an order
grow with the time of the put. So the keys of one column are read as one range, in place of one read each. If
strangers fill that range, the keys behind them are read one by one: these are the second round trip.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.seam import EXACT, Range, ReadTransaction, Value

_COLUMN_BYTES = 2
_ROWS_PER_KEY = 2
"""Rows that a range read may return for each of its keys."""


class Row(NamedTuple):
    key: bytes
    value: bytes


class Under(NamedTuple):
    """A range of keys, read up to `limit` rows; 0 is limits.VERIFIED_ROWS_MAX."""

    start: bytes
    stop: bytes
    limit: int = 0


Ask = bytes | Under


def under(keys: slice, limit: int = 0) -> Under:
    return Under(keys.start, keys.stop, limit)


class Seen:
    """The values of keys and ranges at the read version of a slice."""

    def __init__(self, values: Mapping[bytes, bytes | None], ranges: Mapping[Under, Sequence[Row]]) -> None:
        self._values = values
        self._ranges = ranges

    def value(self, key: bytes) -> bytes | None:
        return self._values[key]

    def rows(self, keys: Under) -> Sequence[Row]:
        return self._ranges[keys]


def ask(tr: ReadTransaction, prefix: bytes, asks: Collection[Ask]) -> Callable[[], Seen]:
    """Ask for all keys and ranges together. Keys that begin with `prefix` have their column behind it."""
    ranges = {wanted: _ask_range(tr, wanted) for wanted in asks if isinstance(wanted, Under)}
    keys = sorted(wanted for wanted in asks if isinstance(wanted, bytes))
    column_end = len(prefix) + _COLUMN_BYTES
    together = [_Together(tr, list(found)) for _, found in groupby(keys, lambda key: key[:column_end])]

    def answer() -> Seen:
        values: dict[bytes, bytes | None] = dict.fromkeys(keys)
        beyond = [key for one in together for key in one.answer(values)]
        asked = {key: tr.get(key) for key in beyond}
        values |= {key: _bytes_of(value) for key, value in asked.items()}
        return Seen(values, {wanted: list(rows_of(found)) for wanted, found in ranges.items()})

    return answer


class _Together:
    """One read of several keys in ascending order."""

    def __init__(self, tr: ReadTransaction, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._limit = _ROWS_PER_KEY * len(keys)
        self._one: Value | None = tr.get(keys[0]) if len(keys) == 1 else None
        self._range = _read(tr, keys[0], keys[-1] + b"\x00", self._limit) if len(keys) > 1 else None

    def answer(self, values: dict[bytes, bytes | None]) -> Iterator[bytes]:
        """Fill in the values that were read; yield the keys behind the rows that were read."""
        if self._one is not None:
            values[self._keys[0]] = _bytes_of(self._one)
        if self._range is None:
            return
        rows = list(rows_of(self._range))
        values.update((row.key, row.value) for row in rows if row.key in values)
        if len(rows) == self._limit:
            yield from (key for key in self._keys if key > rows[-1].key)


def rows_of(found: Range) -> Iterator[Row]:
    return (Row(bytes(row.key), bytes(row.value)) for row in found)


def _ask_range(tr: ReadTransaction, keys: Under) -> Range:
    return _read(tr, keys.start, keys.stop, keys.limit or limits.VERIFIED_ROWS_MAX)


def _read(tr: ReadTransaction, start: bytes, stop: bytes, limit: int) -> Range:
    return tr.get_range(start, stop, limit=limit, streaming_mode=EXACT)


def _bytes_of(value: Value) -> bytes | None:
    return bytes(value.value) if value.present() else None
