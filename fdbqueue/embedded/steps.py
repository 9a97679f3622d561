"""The steps of a transaction, and on them the reading half of a transaction.

The steps are its conversation with the store, which a subclass may replace. Each method named `step_...`
stands for one message to a cluster and its reply. The simulation replaces these methods and no others, to
delay a message, lose it, or answer it with an error (testing/engine.py).

The reading half is shared with the snapshot of a transaction, and has the binding's names and futures.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.limits import KEY_BYTES_MAX, RETRY_DELAY_FIRST_S, RETRY_DELAY_GROWTH, WATCHES_MAX
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import TRIED_AGAIN, FDBError
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.surface import (
    USER_END,
    Future,
    Key,
    PendingFuture,
    PendingKey,
    StreamingMode,
    TransactionSettings,
    Value,
    key_bytes,
)
from fdbqueue.embedded.view import (
    NOTHING,
    Anchor,
    Batch,
    KeySelector,
    KeyValue,
    RangeQuery,
    Snapshot,
    View,
    anchor_of,
    bytes_wanted,
    conflict_range,
    first_from,
    read_batch,
)
from fdbqueue.embedded.writes import MISSING, CommitRequest, Flush, KeySet, Pending, WriteBuffer, seen

_TOO_OLD, _FUTURE_VERSION = 1007, 1009


class Backoff(msgspec.Struct):
    """Exponential back-off with full jitter; it grows over all attempts of a transaction."""

    _ceiling_s: float = RETRY_DELAY_FIRST_S

    def next_delay_s(self, code: int, delay_max_s: float, random: float) -> float | None:
        """Return the seconds to wait after error `code`; None if it is not retryable."""
        if code not in TRIED_AGAIN:
            return None
        if code in (_TOO_OLD, _FUTURE_VERSION):
            return min(RETRY_DELAY_FIRST_S, delay_max_s)  # a new read version is enough
        delay_s = min(self._ceiling_s, delay_max_s) * random
        self._ceiling_s = min(self._ceiling_s * RETRY_DELAY_GROWTH, delay_max_s)
        return delay_s


# FoundationDB counts the size of its own structure for each conflict range.
RANGE_BYTES = 24
# Too old, future version, unreadable key, no reader slot: errors that a read does not find before it asks.
_FAILS_THE_COMMIT = frozenset({1007, 1009, 1036, 1037})


class OpenStore:
    """An open store, as the transactions of one database use it."""

    def __init__(self, store: Store, runtime: Runtime, flush: Flush = Flush.NOW) -> None:
        self._store = store
        self._runtime = runtime
        self._transaction_defaults = TransactionSettings(flush=flush)
        self._watches, self._watches_max = 0, WATCHES_MAX

    def commit(self, request: CommitRequest) -> None:
        self._store.committer.commit_all([request])

    def new_watch(self, key: bytes) -> PendingFuture:
        """Return the future of a watch, counted until it is ready or dropped. Raises: FDBError 1032."""
        if self._watches >= self._watches_max:
            raise FDBError(1032)
        self._watches += 1
        watches, future_id = self._store.watches, 0

        def done() -> None:
            self._watches -= 1
            watches.disarm(key, future_id)

        future = PendingFuture(self._runtime, done)
        future_id = id(future)
        return future


class Steps:
    """The state of a transaction, the checks before each call, and the steps. Errors come when the binding
    raises them. A failed read or commit raises from its future. A refused write (a key too long) raises from
    the next future. Only a wrong type and an inverted conflict range raise at once.
    """

    def __init__(self, database: OpenStore) -> None:
        self._database = database
        self._store = database._store
        self._runtime = database._runtime
        # Shared with the database until an option is set. A later database option counts after a reset only.
        self._settings = self._defaults = database._transaction_defaults
        self._created_s = self._runtime.monotonic()
        self._retries = 0
        self._backoff = Backoff()
        self.step_begin()

    # -- the steps --------------------------------------------------------------------------------------

    def step_begin(self) -> None:
        """Begin an attempt: forget the reads, the writes and the outcome of the attempt before."""
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

    def step_read_version(self) -> int:
        if self._deferred is not None:
            raise self._deferred
        self._require_not_ended()  # but it may be asked during the commit
        if self._snapshot is None and self._wanted_version is not None:
            return self._wanted_version  # not checked: the first read fails if the version is gone
        snapshot = self._snapshot or self._open_snapshot()
        self._store.handed_out.keep(snapshot)
        return snapshot.version

    def step_read(self, key: bytes, is_snapshot: bool) -> bytes | None:
        if self._guarded:
            self._check()
        if key >= USER_END and key >= self._settings.read_end:
            raise FDBError(2004)
        if len(key) > KEY_BYTES_MAX:
            return None
        self._has_read = True
        snapshot = self._open_snapshot()
        buffer = self._own_writes(is_snapshot)
        known = MISSING if buffer is None else buffer.known(key)
        if (
            known is MISSING
            and buffer is not None
            and key in buffer.unreadable
            and not self._settings.bypass_unreadable
        ):
            raise FDBError(1036)
        existing = None
        if known is MISSING or (isinstance(known, Pending) and not known.independent):
            if not is_snapshot:
                self._reads.points.add(key)
                self._size_bytes += 2 * len(key) + 1 + RANGE_BYTES
            existing = snapshot.get(key)
        return existing if known is MISSING else seen(known, existing)

    def step_find_key(self, anchor: Anchor, is_snapshot: bool) -> bytes:
        if self._guarded:
            self._check()
        if anchor.given > self._settings.read_end:
            raise FDBError(2004)
        found, _ = self._view(is_snapshot).locate(anchor)
        if not is_snapshot:
            if anchor.offset <= 0:
                self._add_read(found, anchor.key)
            else:
                self._add_read(anchor.key, found + b"\x00")
        return found

    def step_read_range(self, query: RangeQuery, is_snapshot: bool) -> Batch:
        if self._guarded:
            self._check()
        if max(query.begin.given, query.end.given) > self._settings.read_end:
            raise FDBError(2004)
        if query.limit < 0:
            raise FDBError(2012)
        batch = read_batch(self._view(is_snapshot), query)
        if not is_snapshot and batch is not NOTHING:
            self._add_read(*conflict_range(query, batch))
        return batch

    def step_commit(self, request: CommitRequest) -> None:
        """Have `request` committed, and its version set. Only for a transaction with writes."""
        now_s = self._runtime.monotonic()
        if self._snapshot is not None and self._snapshot.expires_s <= now_s and self._reads:
            raise FDBError(1007)  # the log may lack commits after the read version
        self._store.end_expired(now_s)
        request.deadline_s = now_s + self._time_left_s()
        self._database.commit(request)
        error = request.late or request.error
        if error is not None:
            raise error

    def step_new_watch(self, key: bytes) -> PendingFuture:
        """Return the future of a new watch on `key`, which is not armed yet. Raises: FDBError 1032."""
        return self._database.new_watch(key)

    def step_arm_watch(self, key: bytes, seen: bytes | None, watch: PendingFuture) -> None:
        """Arm `watch` after the commit; `seen` is the value that its transaction read."""
        known = self._buffer.known(key)
        if known is not MISSING and (isinstance(known, Pending) or known != seen):
            watch.complete()  # this transaction changed the value after it had asked for the watch
            return
        try:
            self._store.watches.arm(key, seen, watch)
        except (FDBError, FdbQueueError) as error:
            watch.complete(error=error)  # not raised, since the commit itself has succeeded

    # -- checks -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the first error of an earlier call, 2017 after the commit, or the error that ended this."""
        if self._deferred is not None:
            raise self._deferred
        if self._is_in_commit():
            raise FDBError(2017)
        self._require_not_ended()

    def _is_in_commit(self) -> bool:
        """True once the commit has begun; a call then ends the transaction, unless an option allows it."""
        if self._commit_started and not self._settings.reuse_during_commit:
            self._fire_timeout()
            self._ended = self._ended or FDBError(2017)
        return self._commit_started

    def _require_not_ended(self) -> None:
        self._fire_timeout()
        if self._ended is not None:
            raise self._ended

    def _read_failed(self, error: FDBError) -> None:
        """Note a failed read: the commit fails as well."""
        if error.code in _FAILS_THE_COMMIT:
            self._failed_read = self._failed_read or error

    def _time_left_s(self) -> float:
        """Return the seconds until the timeout, which counts from the creation; inf without a timeout."""
        timeout_s = self._settings.timeout_ms / 1000
        return timeout_s - (self._runtime.monotonic() - self._created_s) if timeout_s > 0 else math.inf

    def _fire_timeout(self) -> None:
        """End the transaction if its timeout has passed; only a reset revives it."""
        if self._ended is None and self._time_left_s() <= 0:
            self._end(FDBError(1031))

    def _defer(self, error: FDBError) -> None:
        """Have each later future raise `error`; later calls without a future have no effect."""
        self._deferred = self._deferred or error
        self._guarded = True

    def _end(self, error: FDBError) -> None:
        self._ended = self._ended or error
        self._guarded = True
        self._cancel_pending(error)

    def _cancel_pending(self, error: Exception) -> None:
        """Fail the futures that wait for the commit: unarmed watches, and the versionstamp."""
        for _, _, future in self._watches:
            future.complete(error=error)
        self._watches = []
        if self._stamp is not None:
            self._stamp.complete(error=error)

    # -- parts of a read ---------------------------------------------------------------------------------

    @property
    def has_read_version(self) -> bool:
        return self._snapshot is not None

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

    def _own_writes(self, is_snapshot: bool) -> WriteBuffer | None:
        """Return the buffer that a read must consider; None without writes, or if an option forbids it."""
        if not self._buffer.has_writes or not self._settings.read_your_writes:
            return None
        return None if is_snapshot and self._settings.snapshot_ryw <= 0 else self._buffer

    def _view(self, is_snapshot: bool) -> View:
        self._has_read = True
        return View(self._open_snapshot(), self._own_writes(is_snapshot), self._settings.read_end)

    def _add_read(self, begin: bytes, end: bytes) -> None:
        """Add a read conflict on [begin, end), except for the parts that this transaction set or cleared."""
        if begin >= end:
            return
        parts = [(begin, end)]
        if self._buffer.has_writes and self._settings.read_your_writes:
            parts = list(self._buffer.dependent_parts(begin, end))
        for part_begin, part_end in parts:
            self._reads.add_range(part_begin, part_end)
            self._size_bytes += len(begin) + len(end) + RANGE_BYTES

    def _range_bytes(self, begin: bytes, end: bytes) -> int:
        self._check_range(begin, end)
        # Like a cluster's estimate, it counts the newest version, and fixes no read version.
        now = self._store.snapshot(self._runtime.monotonic())
        return sum(len(k) + len(v) for k, v in now.scan(begin, end, False))

    def _check_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise FDBError(2005)
        if self._guarded:
            self._check()

    def _split_points(self, begin: bytes, end: bytes, chunk_bytes: int) -> list[bytes]:
        self._check_range(begin, end)
        if end > self._settings.read_end:
            raise FDBError(2004)
        points, size_bytes = [begin], 0
        for key, value in self._store.snapshot(self._runtime.monotonic()).scan(begin, end, False):
            if size_bytes >= chunk_bytes:
                points.append(key)
                size_bytes = 0
            size_bytes += len(key) + len(value)
        return [*points, end]


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
        first = self._first
        if isinstance(first, Batch) and (not first.more or len(first.records) == self._limit):
            return list(first.records)
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
