"""The writing half of a transaction: the binding's methods that set, clear, operate and add conflicts."""

from collections.abc import Callable
from typing import Any

from fdbqueue.embedded import atomic
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.options import USER_END
from fdbqueue.embedded.reading import strinc
from fdbqueue.embedded.selectors import KeySelector
from fdbqueue.embedded.steps import RANGE_BYTES, Steps
from fdbqueue.embedded.values import key_bytes, value_bytes
from fdbqueue.embedded.versionstamp import split
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX

# FoundationDB counts the size of its own structure for each mutation.
_MUTATION_BYTES = 44


class WriteTransaction(Steps):
    """The writing half of a transaction; transaction.py adds its options and its end."""

    def set(self, key: Any, value: Any) -> None:
        if type(key) is not bytes:
            key = key_bytes(key)
        if type(value) is not bytes:
            value = value_bytes(value)
        if self._may_write(key, value):
            self._buffer.set(key, value)
            self._wrote(key, len(value))

    def clear(self, key: Any) -> None:
        """Clear one key. A KeySelector is resolved first, by a read."""
        if type(key) is not bytes:
            key = key_bytes(self.get_key(key) if isinstance(key, KeySelector) else key)
        if len(key) > KEY_BYTES_MAX:
            return  # no such key can exist
        if self._may_write(key, b""):
            self._buffer.put(key, None)
            # FoundationDB counts a clear as a range with two ends.
            self._wrote(key, len(key) + 1 + RANGE_BYTES - _MUTATION_BYTES)

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys of [begin, end); None stands for the first key, or the end of all keys."""
        begin = b"" if begin is None else self.get_key(begin) if isinstance(begin, KeySelector) else begin
        end = USER_END if end is None else self.get_key(end) if isinstance(end, KeySelector) else end
        begin, end = key_bytes(begin), key_bytes(end)
        conflicts = self._next_conflicts()
        if self._range_refused(begin, end):
            return
        if begin < end:
            self._buffer.clear_range(begin, end)
            conflicts.add_range(begin, end)
            self._size_bytes += 2 * (len(begin) + len(end)) + _MUTATION_BYTES + RANGE_BYTES

    def clear_range_startswith(self, prefix: Any) -> None:
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def _may_write(self, key: bytes, value: bytes) -> bool:
        """True if a write may be buffered; otherwise the next future raises the reason."""
        try:
            if self._guarded:
                self._check_writable()
            if key >= USER_END and key >= self._settings.write_end:
                raise FDBError(2004)
            if len(key) > KEY_BYTES_MAX:
                raise FDBError(2102)
            if len(value) > VALUE_BYTES_MAX:
                raise FDBError(2103)
        except FDBError as error:
            self._defer(error)
            return False
        return True

    def _range_refused(self, begin: bytes, end: bytes) -> bool:
        try:
            if self._guarded:
                self._check_writable()
            if begin > end:
                raise FDBError(2005)
            if end > self._settings.write_end:
                raise FDBError(2004)
        except FDBError as error:
            self._defer(error)
            return True
        return False

    def _wrote(self, key: bytes, operand_bytes: int) -> None:
        if self._settings.next_write_silent:
            self._next_conflicts().points.add(key)
            self._size_bytes += len(key) + operand_bytes + _MUTATION_BYTES
        else:
            self._buffer.conflicts.points.add(key)
            self._size_bytes += 3 * len(key) + operand_bytes + 1 + _MUTATION_BYTES + RANGE_BYTES

    def _next_conflicts(self) -> KeySet:
        """Return the conflict set for a write, and use up the option next_write_no_write_conflict_range."""
        if not self._settings.next_write_silent:
            return self._buffer.conflicts
        self._settings.next_write_silent = False
        return self._buffer.silent

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        if type(key) is not bytes:
            key = key_bytes(key)
        if type(param) is not bytes:
            param = value_bytes(param)
        if not self._may_write(key, param):
            return
        try:
            if opcode == atomic.SET_VERSIONSTAMPED_KEY:
                self._set_stamped_key(key, param)
                return
            if opcode == atomic.SET_VERSIONSTAMPED_VALUE:
                split(param)
            elif opcode not in atomic.OPERATIONS:
                raise FDBError(2018)
        except FDBError as error:
            self._defer(error)
            return
        self._buffer.operate(opcode, key, param)
        self._wrote(key, len(param))

    def _set_stamped_key(self, key: bytes, value: bytes) -> None:
        body, offset = split(key)
        self._next_conflicts()  # uses the option up; the conflicting key is known at the commit only
        version_min = self._snapshot.version if self._snapshot is not None else 0
        self._buffer.set_stamped_key(body, offset, value, version_min)
        self._size_bytes += len(key) + len(value) + _MUTATION_BYTES

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with writes in the range, as if it had been read.

        Raises: FDBError 2005, at once.
        """
        self._conflict_range(begin, end, self._settings.read_end, self._add_read)

    def add_read_conflict_key(self, key: Any) -> None:
        key = key_bytes(key)
        self.add_read_conflict_range(key, key + b"\x00")

    def add_write_conflict_range(self, begin: Any, end: Any) -> None:
        """Make transactions that read in the range conflict, as if it had been written.

        Raises: FDBError 2005, at once.
        """
        self._conflict_range(begin, end, self._settings.write_end, self._add_write_conflict)

    def _add_write_conflict(self, begin: bytes, end: bytes) -> None:
        self._buffer.conflicts.add_range(begin, end)
        self._size_bytes += len(begin) + len(end) + RANGE_BYTES

    def add_write_conflict_key(self, key: Any) -> None:
        key = key_bytes(key)
        self.add_write_conflict_range(key, key + b"\x00")

    def _conflict_range(
        self, begin: Any, end: Any, end_max: bytes, add: Callable[[bytes, bytes], None]
    ) -> None:
        begin, end = key_bytes(begin), key_bytes(end)
        if begin > end:
            raise FDBError(2005)
        try:
            if self._guarded:
                self._check_writable()
            if end > end_max:
                raise FDBError(2004)
        except FDBError as error:
            self._defer(error)
            return
        if begin < end:
            add(begin, end)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)
