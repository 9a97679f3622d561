"""One attempt of a transaction: what it has read, what it has buffered, and whether it may still be used.

Errors come when the binding brings them: those of reads with their futures, those of writes (a key too
long, say) with the next future, and only wrong types and inverted conflict ranges at once.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fdbqueue.embedded import atomic, retry
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.futures import Future, PendingFuture
from fdbqueue.embedded.rangeread import read_batch, reply_future
from fdbqueue.embedded.reading import USER_END, ReadTransaction, SnapshotReads, strinc
from fdbqueue.embedded.selectors import Anchor, KeySelector, View
from fdbqueue.embedded.store import Snapshot
from fdbqueue.embedded.values import PendingKey, key_bytes, value_bytes
from fdbqueue.embedded.versionstamp import split
from fdbqueue.embedded.writes import MISSING, Pending, WriteBuffer, resolve
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX

if TYPE_CHECKING:
    from fdbqueue.embedded.database import Database

_ENDED = frozenset({1025, 1031})  # cancelled, timed out
_SYSTEM_END = b"\xff\xff"
_UNREADABLE = 1036
# What FoundationDB counts beside the bytes of keys and values (sizes of its structures).
_MUTATION_BYTES, _RANGE_BYTES = 44, 24


class Attempt(ReadTransaction):
    """The reading and writing half of a transaction; its end is in transaction.py."""

    _is_snapshot = False

    def __init__(self, database: "Database") -> None:
        self._database = database
        self._store = database._store
        self._runtime = database._runtime
        # Shared until an option is set. A database option that is set later counts from the next reset.
        self._settings = self._defaults = database._transaction_defaults
        self._created_s = self._runtime.monotonic()
        self._retries = 0
        self._backoff = retry.Backoff()
        self._fresh()

    def _fresh(self) -> None:
        """What every attempt begins with."""
        self._buffer = WriteBuffer()
        self._reads = KeySet()
        self._snapshot: Snapshot | None = None
        self._has_read = False
        self._wanted_version: int | None = None
        self._size_bytes = 0
        self._watches: list[tuple[bytes, bytes | None, PendingFuture]] = []
        self._stamp: PendingKey | None = None
        self._committed_version = -1
        self._commit_started = False
        self._ended: FDBError | None = None  # cancelled, timed out, or used during its commit
        self._deferred: FDBError | None = None
        self._failed_read: FDBError | None = None
        self._guarded = self._settings.timeout_ms > 0

    @property
    def _tr(self) -> "Attempt":  # type: ignore[override]
        return self

    @property
    def snapshot(self) -> SnapshotReads:
        return SnapshotReads(self)

    # -- may it still be used? --------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise what ended this transaction, or what an earlier write did wrong."""
        if self._deferred is not None:
            raise self._deferred
        self._check_writable()

    def _check_writable(self) -> None:
        self._fire_timeout()
        if self._ended is not None:
            raise self._ended
        if self._commit_started:
            if not self._settings.reuse_during_commit:
                self._ended = FDBError(2017)
            raise FDBError(2017)

    def _read_failed(self, error: FDBError) -> None:
        """The commit waits for every read: one that met an unreadable key fails it as well."""
        if error.code == _UNREADABLE:
            self._failed_read = self._failed_read or error

    def _time_left_s(self) -> float:
        """Seconds until the timeout, which counts from the creation; inf without one."""
        timeout_s = self._settings.timeout_ms / 1000
        return timeout_s - (self._runtime.monotonic() - self._created_s) if timeout_s > 0 else math.inf

    def _fire_timeout(self) -> None:
        """End the transaction if its timeout has passed. No option takes that back, only a reset."""
        if self._ended is None and self._time_left_s() <= 0:
            self._end(FDBError(1031))

    def _defer(self, error: FDBError) -> None:
        # What a write meets in a transaction that was cancelled or timed out, the next future says by itself.
        if error.code not in _ENDED:
            self._deferred = self._deferred or error
        self._guarded = True

    def _end(self, error: FDBError) -> None:
        self._ended = self._ended or error
        self._guarded = True
        self._cancel_pending(error)

    def _cancel_pending(self, error: Exception) -> None:
        """Fail the futures that wait for a commit: watches that are not armed, and the versionstamp."""
        for _, _, future in self._watches:
            future.complete(error=error)
        self._watches = []
        if self._stamp is not None:
            self._stamp.complete(error=error)

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def _read_end(self) -> bytes:
        return _SYSTEM_END if self._settings.read_system_keys else USER_END

    def _open_snapshot(self) -> Snapshot:
        now_s = self._runtime.monotonic()
        snapshot = self._snapshot
        if snapshot is None:
            if self._wanted_version is None:
                snapshot = self._store.snapshot(now_s)
            else:
                snapshot = self._store.snapshot_at(self._wanted_version, now_s)
            self._snapshot = snapshot
        elif snapshot.expires_s <= now_s:
            raise FDBError(1007)
        return snapshot

    def _read_version(self) -> int:
        if self._guarded:
            self._check()
        if self._snapshot is None and self._wanted_version is not None:
            return self._wanted_version  # unchecked: the first read tells whether it can be read
        snapshot = self._snapshot or self._open_snapshot()
        self._store.handed_out.keep(snapshot)
        return snapshot.version

    def _own_writes(self, is_snapshot: bool) -> WriteBuffer | None:
        """The buffer that a read has to look through; None when it must not, or need not."""
        if not self._buffer or not self._settings.read_your_writes:
            return None
        return None if is_snapshot and self._settings.snapshot_ryw <= 0 else self._buffer

    def _read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        if self._guarded:
            self._check()
        if key >= USER_END and key >= self._read_end:
            raise FDBError(2004)
        self._has_read = True
        snapshot = self._open_snapshot()
        if len(key) > KEY_BYTES_MAX:
            return None
        buffer = self._own_writes(is_snapshot)
        if buffer is not None:
            return self._read_through(buffer, key, snapshot, is_snapshot)
        if not is_snapshot:
            self._reads.points.add(key)
            self._size_bytes += 2 * len(key) + 1 + _RANGE_BYTES
        return snapshot.get(key)

    def _read_through(
        self, buffer: WriteBuffer, key: bytes, snapshot: Snapshot, is_snapshot: bool
    ) -> bytes | None:
        known = buffer.known(key)
        if known is MISSING and not self._settings.bypass_unreadable and key in buffer.unreadable:
            raise FDBError(1036)
        if known is MISSING or (isinstance(known, Pending) and not known.independent):
            if not is_snapshot:
                self._reads.points.add(key)
                self._size_bytes += 2 * len(key) + 1 + _RANGE_BYTES
            existing = snapshot.get(key)
            return resolve(known, existing, None) if isinstance(known, Pending) else existing
        if isinstance(known, Pending):
            return resolve(known, None, None)
        return known  # type: ignore[return-value]

    def _view(self, is_snapshot: bool) -> View:
        self._has_read = True
        return View(self._open_snapshot(), self._own_writes(is_snapshot), self._read_end)

    def _locate(self, key: bytes, anchor: Anchor, is_snapshot: bool) -> bytes:
        if self._guarded:
            self._check()
        if key > self._read_end:
            raise FDBError(2004)
        found, _ = self._view(is_snapshot).locate(anchor)
        if not is_snapshot:
            if anchor.offset <= 0:
                self._add_read(found, anchor.key)
            else:
                self._add_read(anchor.key, found + b"\x00")
        return found

    def _read_range(
        self,
        ends: list[tuple[bytes, bool, int]],
        limit: int,
        byte_target: int | None,
        reverse: bool,
        is_snapshot: bool,
    ) -> Future:
        if self._guarded:
            self._check()
        if any(key > self._read_end for key, _, _ in ends):
            raise FDBError(2004)
        if limit < 0:
            raise FDBError(2012)
        begin, end = (Anchor.of(*selector) for selector in ends)
        batch = read_batch(self._view(is_snapshot), begin, end, limit, byte_target, reverse)
        if batch.read is not None and not is_snapshot:
            self._add_read(*batch.read)
        return reply_future(batch)

    def _add_read(self, begin: bytes, end: bytes) -> None:
        """A read conflict on [begin, end), save what this transaction has itself set or cleared."""
        if begin >= end:
            return
        parts = [(begin, end)]
        if self._buffer and self._settings.read_your_writes:
            parts = list(self._buffer.dependent_parts(begin, end))
        for part_begin, part_end in parts:
            self._reads.add_range(part_begin, part_end)
            self._size_bytes += len(begin) + len(end) + _RANGE_BYTES

    def _range_bytes(self, begin: bytes, end: bytes) -> int:
        if self._guarded:
            self._check()
        if begin > end:
            raise FDBError(2005)
        # Like an estimate of a cluster's, it is of now, and fixes no read version.
        now = self._store.snapshot(self._runtime.monotonic())
        return sum(len(k) + len(v) for k, v in now.scan(begin, end, False))

    def _split_points(self, begin: bytes, end: bytes, chunk_bytes: int) -> list[bytes]:
        if self._guarded:
            self._check()
        points, size_bytes = [begin], 0
        for key, value in self._store.snapshot(self._runtime.monotonic()).scan(begin, end, False):
            if size_bytes >= chunk_bytes:
                points.append(key)
                size_bytes = 0
            size_bytes += len(key) + len(value)
        return [*points, end]

    # -- writing ----------------------------------------------------------------------------------------

    def set(self, key: Any, value: Any) -> None:
        if type(key) is not bytes:
            key = key_bytes(key)
        if type(value) is not bytes:
            value = value_bytes(value)
        if self._may_write(key, value):
            self._buffer.set(key, value)
            self._wrote(key, len(value))

    def clear(self, key: Any) -> None:
        """Clear one key; a KeySelector is looked up first."""
        key = key_bytes(self.get_key(key) if isinstance(key, KeySelector) else key)
        if len(key) > KEY_BYTES_MAX:
            return  # there is no such key, so there is nothing to clear
        if self._may_write(key, b""):
            self._buffer.clear(key)
            # A clear is two ends, and counts as a range does.
            self._wrote(key, len(key) + 1 + _RANGE_BYTES - _MUTATION_BYTES)

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear every key from `begin` to before `end`; None is the first, the last."""
        begin = b"" if begin is None else self.get_key(begin) if isinstance(begin, KeySelector) else begin
        end = USER_END if end is None else self.get_key(end) if isinstance(end, KeySelector) else end
        begin, end = key_bytes(begin), key_bytes(end)
        conflicts = self._next_conflicts()
        if self._range_refused(begin, end):
            return
        self._buffer.clear_range(begin, end)
        if begin < end:
            conflicts.add_range(begin, end)
            self._size_bytes += 2 * (len(begin) + len(end)) + _MUTATION_BYTES + _RANGE_BYTES

    def clear_range_startswith(self, prefix: Any) -> None:
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def _may_write(self, key: bytes, value: bytes) -> bool:
        """Whether a write may be buffered; if not, the next future says why."""
        try:
            if self._guarded:
                self._check_writable()
            if key >= USER_END and key >= (_SYSTEM_END if self._settings.write_system_keys else USER_END):
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
        write_end = _SYSTEM_END if self._settings.write_system_keys else USER_END
        try:
            if self._guarded:
                self._check_writable()
            if begin > end:
                raise FDBError(2005)
            if end > write_end:
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
            self._size_bytes += 3 * len(key) + operand_bytes + 1 + _MUTATION_BYTES + _RANGE_BYTES

    def _next_conflicts(self) -> KeySet:
        """Where the next write is noted: readers conflict with it, unless the option said not this once."""
        if not self._settings.next_write_silent:
            return self._buffer.conflicts
        self._settings.next_write_silent = False
        return self._buffer.silent

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        key, param = key_bytes(key), value_bytes(param)
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
        self._next_conflicts()  # uses the option up: where the key will conflict, only its commit knows
        version_min = self._snapshot.version if self._snapshot is not None else 0
        self._buffer.set_stamped_key(body, offset, value, version_min)
        self._size_bytes += len(key) + len(value) + _MUTATION_BYTES

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with writes in the range, as if it had been read. Raises FDBError 2005 at once."""
        self._conflict_range(begin, end, self._read_end, self._add_read)

    def add_read_conflict_key(self, key: Any) -> None:
        key = key_bytes(key)
        self.add_read_conflict_range(key, key + b"\x00")

    def add_write_conflict_range(self, begin: Any, end: Any) -> None:
        """Make others that read in the range conflict, as if it had been written."""
        end_of_writes = _SYSTEM_END if self._settings.write_system_keys else USER_END
        self._conflict_range(begin, end, end_of_writes, self._add_write_conflict)

    def _add_write_conflict(self, begin: bytes, end: bytes) -> None:
        self._buffer.conflicts.add_range(begin, end)
        self._size_bytes += len(begin) + len(end) + _RANGE_BYTES

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
