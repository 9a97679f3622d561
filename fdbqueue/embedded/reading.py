"""The reading half of a transaction, shared with its snapshot: the binding's names and futures."""

from collections.abc import Callable, Iterator
from typing import Any

from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded.futures import Future, Key, Value, key_bytes
from fdbqueue.embedded.options import USER_END, StreamingMode
from fdbqueue.embedded.steps import Steps
from fdbqueue.embedded.view import (
    Anchor,
    Batch,
    KeySelector,
    KeyValue,
    RangeQuery,
    anchor_of,
    bytes_wanted,
    first_from,
)


def strinc(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`. Raises: ValueError if there is none."""
    prefix = prefix.rstrip(b"\xff")
    if not prefix:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return prefix[:-1] + bytes([prefix[-1] + 1])


class FDBRange:
    """The reply to a range read. The first batch is read at once, each later one when iteration needs it."""

    def __init__(
        self,
        steps: Steps,
        is_snapshot: bool,
        begin: Anchor,
        end: Anchor,
        limit: int,
        reverse: bool,
        mode: int,
    ) -> None:
        self._steps = steps
        self._is_snapshot = is_snapshot
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = bool(reverse)
        self._mode = mode
        self._first = self._read(begin, end, limit, mode, 1)

    def to_list(self) -> list[KeyValue]:
        """Return all records. Raises: FDBError."""
        if self._mode != StreamingMode.iterator:
            return list(self._iterate(self._mode))
        return list(self._iterate(StreamingMode.exact if self._limit > 0 else StreamingMode.want_all))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._iterate(self._mode)

    def _iterate(self, mode: int) -> Iterator[KeyValue]:
        begin, end, limit = self._begin, self._end, self._limit
        batch, iteration = self._first, 1
        while True:
            if isinstance(batch, FDBError):
                raise batch
            yield from batch.records
            count = len(batch.records)
            if not batch.more or count == 0 or count == limit:
                return
            limit = limit - count if limit > 0 else limit
            last = batch.records[-1].key
            if self._reverse:
                end = first_from(last)
            else:
                begin = first_from(last + b"\x00")
            iteration += 1
            batch = self._read(begin, end, limit, mode, iteration)

    def _read(self, begin: Anchor, end: Anchor, limit: int, mode: int, iteration: int) -> Batch | FDBError:
        """Return one batch, or the error of a failed read, which only iteration raises."""
        try:
            wanted = bytes_wanted(mode, iteration, limit)
            query = RangeQuery(begin, end, limit, wanted, self._reverse)
            return self._steps.step_read_range(query, self._is_snapshot)
        except FDBError as error:
            self._steps._read_failed(error)
            return error


class ReadTransaction:
    """The reading half, shared by a transaction and its snapshot."""

    _tr: Steps
    _is_snapshot: bool

    @property
    def db(self) -> Any:
        """The database that has made the transaction."""
        return self._tr._database

    def get_read_version(self) -> Future:
        """Return a future of the read version."""
        return answer(self._tr.step_read_version)

    def get(self, key: Any) -> Value:
        """Return a future of the value of `key`, None if it is absent.

        Conflicts: writes to `key`, except for a snapshot read.
        """
        if type(key) is not bytes:
            key = key_bytes(key)
        try:
            return Value(self._tr.step_read(key, self._is_snapshot))
        except FDBError as error:
            self._tr._read_failed(error)
            return Value(None, error)

    def get_key(self, key_selector: KeySelector) -> Key:
        """Return a future of the key that a selector names.

        Conflicts: writes that could change the answer, except for a snapshot read.
        """
        anchor = anchor_of(key_selector)
        try:
            return Key(self._tr.step_find_key(anchor, self._is_snapshot))
        except FDBError as error:
            self._tr._read_failed(error)
            return Key(None, error)

    def get_range(
        self,
        begin: Any,
        end: Any,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.iterator,
    ) -> FDBRange:
        """Return the records of [begin, end), keys or selectors; None stands for the first key, or the end.

        Conflicts: writes to the part that was read, except for a snapshot read.
        """
        first = anchor_of(b"" if begin is None else begin)
        last = anchor_of(USER_END if end is None else end)
        return FDBRange(self._tr, self._is_snapshot, first, last, limit, reverse, streaming_mode)

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> FDBRange:
        prefix = key_bytes(prefix)
        return self.get_range(prefix, strinc(prefix), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def get_estimated_range_size_bytes(self, begin_key: Any, end_key: Any) -> Future:
        """Return a future of the bytes of the records in a range: counted here, sampled on a cluster."""
        begin, end = key_bytes(begin_key), key_bytes(end_key)
        return answer(lambda: self._tr._range_bytes(begin, end))

    def get_range_split_points(self, begin_key: Any, end_key: Any, chunk_size: int) -> Future:
        """Return a future of keys that cut a range into chunks of about `chunk_size` bytes."""
        if begin_key is None or end_key is None or chunk_size <= 0:
            raise ValueError("Invalid begin key, end key or chunk size")
        begin, end = key_bytes(begin_key), key_bytes(end_key)
        return answer(lambda: self._tr._split_points(begin, end, chunk_size))


class SnapshotReads(ReadTransaction):
    """`tr.snapshot`: reads at the same version that conflict with nothing."""

    _is_snapshot = True

    def __init__(self, tr: Steps) -> None:
        self._tr = tr


def answer(compute: Callable[[], Any]) -> Future:
    try:
        return Future(compute())
    except FDBError as error:
        return Future(None, error)
