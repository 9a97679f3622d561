"""The reading half of a transaction, shared with its snapshot: the binding's names and futures."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.options import USER_END, StreamingMode
from fdbqueue.embedded.rangeread import FDBRange
from fdbqueue.embedded.selectors import KeySelector, anchor_of
from fdbqueue.embedded.values import Key, Value, key_bytes
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.database import Database
    from fdbqueue.embedded.steps import Steps


def strinc(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`.

    Raises: ValueError if there is none.
    """
    prefix = prefix.rstrip(b"\xff")
    if not prefix:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return prefix[:-1] + bytes([prefix[-1] + 1])


class ReadTransaction:
    """The reading half, shared by a transaction and its snapshot."""

    _tr: "Steps"
    _is_snapshot: bool

    @property
    def db(self) -> "Database":
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
        return FDBRange(self, first, last, limit, reverse, streaming_mode)

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

    def __init__(self, tr: "Steps") -> None:
        self._tr = tr


def answer(compute: Callable[[], Any]) -> Future:
    try:
        return Future(compute())
    except FDBError as error:
        return Future(None, error)
