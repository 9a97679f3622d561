"""Direct transactions: a leader (commit.py) runs the body of a call inside the LMDB transaction of a commit.

An ordinary transaction reads a snapshot and collects its reads and writes. A leader refuses it if another
commit came between. A direct one reads what the commits before it have left. So it meets no conflict, and
needs no snapshot, no set of reads and no request.

All other commits of the directory wait for a body. So only short calls of the library run so (`Short` in
core/once.py), without any code of the user, in their own thread, and only while no other thread or process
leads. A direct transaction has the steps that these take, by the binding's names. Another step, or one that
takes long, raises NotDirect before anything is written. Then the call begins again in an ordinary
transaction.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from fdbqueue.core.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from fdbqueue.core.seam import NotDirect
from fdbqueue.embedded import layout, writes
from fdbqueue.embedded.journal import Writes
from fdbqueue.embedded.layout import Written
from fdbqueue.embedded.surface import USER_END, Value
from fdbqueue.embedded.view import KeyValue
from fdbqueue.embedded.writes import Flush, KeySet

_BYTES_READ_MAX, _BYTES_WRITTEN_MAX = 1 << 17, 1 << 18
_CLEARED_MAX = 100
_add, _max = writes.OPERATIONS[writes.ADD], writes.OPERATIONS[writes.MAX]
_PLAIN = (bytes, type(None))  # a future of bytes is none of them


class Rows:
    """The rows of a range, which have been read."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[KeyValue]) -> None:
        self._rows = rows

    def to_list(self) -> list[KeyValue]:
        return self._rows

    def __iter__(self) -> Iterator[KeyValue]:
        return iter(self._rows)


class Direct:
    """One run of a body. Its writes are kept here until the body has ended: an error of it leaves none."""

    def __init__(self, txn: Any, order: int, db: Any, flush: Flush) -> None:
        self._txn = txn
        self._order = order
        self.db = db
        self.flush = flush
        self.values: dict[bytes, bytes | None] = {}
        self._touched = KeySet()

    @property
    def snapshot(self) -> "Direct":
        return self

    options = snapshot  # it has the one option that queue code sets, as a method

    @property
    def place(self) -> tuple[int, int]:
        """The version of its commit, and its order there; for the checkers of a simulation."""
        return self._txn.id(), self._order

    def __getattr__(self, name: str) -> NoReturn:
        raise NotDirect

    def get_read_version(self) -> NoReturn:
        raise NotDirect

    def get(self, key: bytes) -> Value:
        return Value(self._read(key))

    def _read(self, key: bytes) -> bytes | None:
        if key in self.values:
            return self.values[key]
        if key >= USER_END:
            raise NotDirect
        return layout.get(self._txn, key)

    def get_range(
        self,
        begin: bytes,
        end: bytes,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = 0,  # noqa: ARG002  # the rows lie in mapped memory
    ) -> Rows:
        if self.values and any(begin <= key < end for key in self.values):
            raise NotDirect  # its own writes are not in the LMDB transaction yet
        if end > USER_END:
            raise NotDirect
        rows, room_bytes = [], _BYTES_READ_MAX
        for key, value in layout.scan(self._txn, begin, end, reverse):
            rows.append(KeyValue(key, value))
            if len(rows) == limit:
                break
            room_bytes -= len(key) + len(value)
            if room_bytes < 0:
                raise NotDirect
        return Rows(rows)

    def add_read_conflict_key(self, key: bytes) -> None:
        """No commit can come between."""

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """As `add_read_conflict_key`."""

    def set(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def clear(self, key: bytes) -> None:
        self.values[key] = None

    def add(self, key: bytes, operand: bytes) -> None:
        self.values[key] = _add(self._read(key), operand)

    def max(self, key: bytes, operand: bytes) -> None:
        self.values[key] = _max(self._read(key), operand)

    def compare_and_clear(self, key: bytes, operand: bytes) -> None:
        if self._read(key) == operand:
            self.values[key] = None

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Clear the keys that are there: a reader of the others sees no difference."""
        for key in [key for key in self.values if begin <= key < end]:
            self.values[key] = None
        found = layout.scan(self._txn, begin, end)
        keys = [key for key, _ in islice(found, _CLEARED_MAX)]
        if len(keys) == _CLEARED_MAX:
            raise NotDirect
        self.values.update(dict.fromkeys(keys))

    def add_write_conflict_key(self, key: bytes) -> None:
        self._touched.points.add(key)

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._touched.add_range(begin, end)

    def set_durability_risky(self) -> None:
        self.flush = max(self.flush, Flush.SOON)

    def apply(self, written: Written) -> Writes | None:
        """Write, and add the conflicts to `written`; return None if there is nothing."""
        values = self.values
        layout.write(self._txn, values)
        written.conflicts.points.update(values)
        if self._touched:
            written.conflicts.update(self._touched)
        return Writes([], values) if values or self._touched else None

    def require_short(self) -> None:
        """Raise NotDirect for writes that are many, or that an ordinary transaction may refuse."""
        size_bytes = 0
        for key, value in self.values.items():
            value_bytes = 0 if value is None else len(value)
            if (
                type(value) not in _PLAIN
                or key >= USER_END
                or len(key) > KEY_BYTES_MAX
                or value_bytes > VALUE_BYTES_MAX
            ):
                raise NotDirect
            size_bytes += len(key) + value_bytes
        if size_bytes > _BYTES_WRITTEN_MAX:
            raise NotDirect
