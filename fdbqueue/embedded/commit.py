"""Committing: check for conflicts, apply, one LMDB transaction for all who wait.

Whoever finds nobody committing becomes the leader, and commits for everyone who has queued up meanwhile:
one fsync for all. Each is still all or nothing on its own: what can refuse a transaction is checked before
its first write, and what can fail afterwards (no room, a broken disk) fails the whole LMDB transaction.
A batch has one version; its transactions are ordered within it, and see each other as conflicts.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import lmdb

from fdbqueue.embedded import commitlog, layout
from fdbqueue.embedded.commitlog import RecentCommits, Written
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.errors import FDBError
from fdbqueue.embedded.versionstamp import place, stamp
from fdbqueue.embedded.writes import Pending, WriteBuffer, resolve
from fdbqueue.limits import TRANSACTION_BYTES_MAX
from fdbqueue.runtime import Lock, RealRuntime

if TYPE_CHECKING:
    from fdbqueue.embedded.store import Store

_BATCH_BYTES_MAX = 2 * TRANSACTION_BYTES_MAX
_READER_CHECK_EVERY_VERSIONS = 64


class CommitRequest:
    """One transaction's commit: what it read and writes, and what came of it."""

    __slots__ = ("buffer", "error", "order", "read_version", "reads", "size_bytes", "turn", "version")

    def __init__(self, buffer: WriteBuffer, reads: KeySet, read_version: int | None, size_bytes: int) -> None:
        self.buffer = buffer
        self.reads = reads
        self.read_version = read_version
        self.size_bytes = size_bytes
        self.turn: Lock | None = None
        self.version: int | None = None
        self.order = 0
        self.error: Exception | None = None

    @property
    def finished(self) -> bool:
        return self.version is not None or self.error is not None

    def wake(self) -> None:
        """Let the thread that waits go on; it waits once, so waking it twice is waking it once."""
        if self.turn is not None:
            with suppress(RuntimeError):  # released already
                self.turn.release()


class Committer:
    """The commit line of one store in one process; LMDB's writer lock orders the processes."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._lock = RealRuntime.lock()
        self._waiting: list[CommitRequest] = []
        self._leader: CommitRequest | None = None
        self._batch: list[CommitRequest] = []  # what the leader is at
        self._decided = False  # whether what came of the batch stands
        self._recent = RecentCommits()

    def commit(self, request: CommitRequest) -> None:
        """Return when `request` is finished: `version` is set, or `error`."""
        try:
            self._join(request)
            if request.turn is not None:
                request.turn.acquire()  # released when it is finished, or has become the leader
            if not request.finished:
                self._lead()
        except BaseException:
            # An interrupt, between any two steps: nobody else may wait for this thread. A request that
            # somebody else's batch has already is unknown.
            self._leave(request)
            raise

    def _join(self, request: CommitRequest) -> None:
        with self._lock:
            if self._leader is None:
                self._leader = request
            else:
                request.turn = RealRuntime.lock()
                request.turn.acquire()
            self._waiting.append(request)

    def _lead(self) -> None:
        self._take_batch()
        written = self._commit_batch(self._batch)
        with self._lock:
            self._decided = True
            self._hand_over()
        if written is not None:
            self._tell(written)  # last: a callback of a watch may take its time, or commit itself

    def _leave(self, request: CommitRequest) -> None:
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
            if self._leader is request:
                if not self._decided:
                    for member in self._batch:
                        member.version, member.error = None, FDBError(1021)
                self._hand_over()
            elif self._leader is not None:
                self._leader.wake()  # it was named, and its wake-up cut short

    def _take_batch(self) -> None:
        with self._lock:
            count, size_bytes = 0, 0
            for request in self._waiting:
                size_bytes += request.size_bytes
                if count and size_bytes > _BATCH_BYTES_MAX:
                    break
                count += 1
            self._decided = False
            self._batch, self._waiting = self._waiting[:count], self._waiting[count:]

    def _hand_over(self) -> None:
        """Wake those who are finished and the next leader. Under the lock; repeating it does no harm."""
        for request in self._batch:
            request.wake()
        self._batch = []
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.wake()

    # -- one batch --------------------------------------------------------------------------------------

    def _commit_batch(self, batch: list[CommitRequest]) -> Written | None:
        try:
            while True:
                try:
                    return self._try_batch(batch)
                except lmdb.MapFullError:
                    self._store.grow()
        except Exception as error:
            failure = self._store.storage_error(error) if isinstance(error, lmdb.Error) else error
            for request in batch:
                request.version, request.error = None, failure
            return None

    def _try_batch(self, batch: list[CommitRequest]) -> Written | None:
        txn = self._store.begin(write=True)
        try:
            if txn.id() % _READER_CHECK_EVERY_VERSIONS == 0:
                self._store.forget_dead_readers()
            written = self._apply_batch(txn, batch)
            if written is None:
                txn.abort()
                return None
            txn.commit()
        except BaseException:
            txn.abort()  # without effect after a commit that failed: it has aborted itself
            raise
        self._recent.add(written)
        return written

    def _apply_batch(self, txn: Any, batch: list[CommitRequest]) -> Written | None:
        version = txn.id()
        self._recent.catch_up(txn, version - 1)
        self._recent.forget_before(self._oldest_asked(batch, version))
        written = Written(version, KeySet(), KeySet())
        accepted = 0
        for request in batch:
            request.version, request.error = None, self._refusal(txn, request, written.conflicts)
            if request.error is None:
                request.version, request.order = version, accepted
                apply(txn, request.buffer, stamp(version, accepted))
                _note(written, request, accepted)
                accepted += 1
        if not accepted:
            return None
        commitlog.append(txn, written, int(self._store.runtime.now() * 1_000_000))
        return written

    def _oldest_asked(self, batch: list[CommitRequest], version: int) -> int:
        asked = [r.read_version for r in batch if r.read_version is not None]
        live = self._store.oldest_live_version()
        return min([*asked, version - 1 if live is None else live])

    def _refusal(self, txn: Any, request: CommitRequest, earlier: KeySet) -> FDBError | None:
        if request.read_version is None or not request.reads:
            return None
        try:
            conflict = request.reads.meets(earlier) or self._recent.conflict(
                txn, request.reads, request.read_version
            )
        except FDBError as error:
            return error
        return FDBError(1020) if conflict else None

    def _tell(self, written: Written) -> None:
        self._store.watches.notify(written)
        if self._store.watches.doorbell is not None:
            self._store.watches.doorbell.ring()


def _note(written: Written, request: CommitRequest, order: int) -> None:
    buffer = request.buffer
    written.conflicts.update(buffer.conflicts)
    written.silent.update(buffer.silent)
    for body, offset, _ in buffer.stamped_keys:
        written.conflicts.points.add(place(body, offset, stamp(written.version, order)))


def apply(txn: Any, buffer: WriteBuffer, stamp_bytes: bytes) -> None:
    """Write one transaction's buffer: clears first, since what is set inside them is newer."""
    for begin, end in buffer.cleared:
        layout.delete_range(txn, begin, end)
    for key, entry in buffer.entries.items():
        value = resolve(entry, layout.get(txn, key), stamp_bytes) if isinstance(entry, Pending) else entry
        if value is None:
            layout.delete(txn, key)
        else:
            layout.put(txn, key, value)
    for body, offset, value in buffer.stamped_keys:
        layout.put(txn, place(body, offset, stamp_bytes), value)
