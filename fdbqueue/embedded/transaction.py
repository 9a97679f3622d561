"""The binding's Transaction: options, watches, the commit, and retries."""

from typing import Any

from msgspec.structs import replace

from fdbqueue.embedded import retry
from fdbqueue.embedded.futures import DelayFuture, Future
from fdbqueue.embedded.mutations import add_mutations
from fdbqueue.embedded.options import (
    TransactionOptions,
    apply_transaction_option,
    for_another_attempt,
    options_for,
)
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.values import Key, PendingKey, key_bytes
from fdbqueue.embedded.versionstamp import stamp
from fdbqueue.embedded.writing import WriteTransaction
from fdbqueue.errors import FdbQueueError
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import KEY_BYTES_MAX

# Codes that on_error answers with another one: a broken promise, and "no error".
_TOLD_AS = {1100: 1025, 0: 2000}
_COMMITTED = Future()


class Transaction(WriteTransaction):
    """See the binding's Transaction: the same methods, arguments and errors."""

    @property
    def options(self) -> TransactionOptions:
        return options_for(self, TransactionOptions)  # type: ignore[return-value]

    def _set_option(self, name: str, param: Any) -> None:
        if name == "read_your_writes_disable" and (self._buffer.has_writes or self._has_read):
            self._defer(FDBError(2000))
            return
        self._fire_timeout()  # the old timeout may have passed already
        self._settings = replace(self._settings)
        try:
            apply_transaction_option(self._settings, name, param)
        except FDBError as error:
            self._defer(error)
        self._guarded = self._guarded or self._settings.timeout_ms > 0

    # -- watches ----------------------------------------------------------------------------------------

    def watch(self, key: Any) -> Future:
        """Return a future that is ready once the value of `key` differs from the value that this read sees.

        The watch is armed when this transaction has committed.

        Reads: `key`.
        Conflicts: writes to `key`.
        """
        key = key_bytes(key)
        try:
            if self._guarded:
                self._check()
            if not self._settings.read_your_writes:
                raise FDBError(1034)
            if len(key) > KEY_BYTES_MAX:
                raise FDBError(2102)
            seen = self.step_read(key, is_snapshot=False)
            future = self.step_new_watch(key)
        except FDBError as error:
            return Future(None, error)
        self._watches.append((key, seen, future))
        return future

    # -- committing -------------------------------------------------------------------------------------

    def commit(self) -> Future:
        """Commit all writes or none; the future raises the reason of a failure (1020: a conflict)."""
        try:
            if self._guarded:
                self._check()
            self._commit_started = self._guarded = True
            if self._failed_read is not None:
                raise self._failed_read
            self._commit()
        except (FDBError, FdbQueueError) as error:
            self._fail(error)
            return Future(None, error)
        return _COMMITTED

    def _commit(self) -> None:
        if self._buffer.writes_anything():
            request = self._request()
            self.step_commit(request)
            assert request.version is not None
            self._committed_version = request.version
            if self._stamp is not None:
                self._stamp.complete(stamp(request.version, request.order))
        elif self._stamp is not None:
            self._stamp.complete(error=FDBError(2021))
        self._snapshot = None  # its pages may be reused
        watches, self._watches = self._watches, []
        for key, seen, watch in watches:
            self.step_arm_watch(key, seen, watch)

    def _request(self) -> CommitRequest:
        if self._size_bytes > self._settings.size_limit_bytes:
            raise FDBError(2101)
        # A version that was set counts even without a read: conflict ranges are checked from that version.
        read_version = self._snapshot.version if self._snapshot is not None else self._wanted_version
        return CommitRequest(
            self._buffer,
            self._reads,
            read_version,
            self._size_bytes,
            self._settings.bypass_storage_quota,
            self._settings.flush,
        )

    def _fail(self, error: Exception) -> None:
        self._snapshot = None
        self._cancel_pending(error)

    def get_committed_version(self) -> int:
        """Return the version of the commit; -1 before it, and for a transaction without writes."""
        if self._committed_version >= 0:
            self._store.hand_out(self._committed_version, self._runtime.monotonic())
        return self._committed_version

    def get_versionstamp(self) -> Key | PendingKey:
        """Return a future of the commit's versionstamp. Call it before the commit."""
        try:
            self._check()
        except FDBError as error:
            return Key(None, error)
        if self._stamp is None:
            self._stamp = PendingKey(self._runtime)
        return self._stamp

    def get_approximate_size(self) -> Future:
        """Return a future of the size that the commit would have now."""
        # It answers in an ended transaction too; only a refused write makes it fail.
        return Future(self._size_bytes, self._deferred)

    def set_read_version(self, version: int) -> None:
        """Read at `version` (of another transaction) instead of the newest one."""
        if self._snapshot is not None or self._wanted_version is not None:
            self._defer(FDBError(2010))
        elif version <= 0:
            self._defer(FDBError(2011))
        else:
            self._wanted_version = version

    # -- trying again -----------------------------------------------------------------------------------

    def on_error(self, error: Any) -> Future:
        """Reset for another attempt, after a back-off. The future raises an error that is not retryable."""
        if isinstance(error, FDBError):
            error = error.code
        if not isinstance(error, int):
            raise error
        failure = FDBError(_TOLD_AS.get(error, error))
        self._fire_timeout()
        if self._ended is not None:
            return Future(None, self._ended)
        limit_reached = 0 <= self._settings.retry_limit <= self._retries
        self._retries += 1
        delay_s = (
            None
            if limit_reached
            else self._backoff.next_delay_s(error, self._settings.max_retry_delay_s, self._runtime.random())
        )
        if delay_s is None:
            self._end(FDBError(1025))
            return Future(None, failure)
        left_s = self._time_left_s()
        if left_s <= delay_s:
            self._end(FDBError(1031))
            return DelayFuture(self._runtime, left_s, FDBError(1031))
        self._start_again()
        return DelayFuture(self._runtime, delay_s)

    def _start_again(self) -> None:
        self._cancel_pending(FDBError(1025))
        self._settings = for_another_attempt(
            self._settings, self._defaults, self._database._transaction_defaults
        )
        self.step_begin()

    def reset(self) -> None:
        """Return to the state of a new transaction; unarmed watches are cancelled."""
        self._cancel_pending(FDBError(1025))
        self._settings = self._defaults = self._database._transaction_defaults
        self._created_s = self._runtime.monotonic()
        self._retries = 0
        self._backoff = retry.Backoff()
        self.step_begin()

    def cancel(self) -> None:
        """End this transaction: each later call fails with 1025."""
        self._end(FDBError(1025))


add_mutations(Transaction)
