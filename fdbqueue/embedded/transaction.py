"""The binding's Transaction and Database: writes, options, watches, the commit, retries, and conveniences.

`transactional` has the binding's own contract, for programs written for the binding. New code takes
`fdbqueue.transactional`, which has limits and accepts keywords. This one must not be stricter than the
binding's, and knows only the classes of the engine.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from fdbqueue.core.errors import DatabaseClosed, FdbQueueError
from fdbqueue.core.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX, WATCHES_LIMIT_MAX
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.core.seam import TIMED_OUT, FDBError, NotDirect
from fdbqueue.embedded import steps, store, writes
from fdbqueue.embedded.direct import Direct
from fdbqueue.embedded.steps import RANGE_BYTES, OpenStore, ReadTransaction, SnapshotReads, Steps, strinc
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.surface import (
    USER_END,
    DatabaseOptions,
    DelayFuture,
    Future,
    Key,
    PendingKey,
    StreamingMode,
    TransactionOptions,
    add_mutations,
    apply_transaction_option,
    bounded,
    for_another_attempt,
    key_bytes,
    options_for,
    value_bytes,
)
from fdbqueue.embedded.view import KeySelector, KeyValue
from fdbqueue.embedded.writes import CommitRequest, Flush, KeySet, has_place, split, stamp

# FoundationDB counts the size of its own structure for each mutation.
_MUTATION_BYTES = 44
_STAMPED = (writes.SET_VERSIONSTAMPED_KEY, writes.SET_VERSIONSTAMPED_VALUE)


class WriteTransaction(Steps, ReadTransaction):
    """The writing half of a transaction; `Transaction` adds its options and its end."""

    _is_snapshot = False

    @property
    def _tr(self) -> Steps:  # type: ignore[override]
        return self

    @property
    def snapshot(self) -> SnapshotReads:
        return SnapshotReads(self)

    def set(self, key: Any, value: Any) -> None:
        if type(key) is not bytes:
            key = key_bytes(key)
        if type(value) is not bytes:
            value = value_bytes(value)
        if not self._is_refused(self._flaw_of(key, value)):
            self._buffer.set(key, value)
            self._wrote(key, len(value))

    def clear(self, key: Any) -> None:
        """Clear one key. A KeySelector is resolved first, by a read."""
        if type(key) is not bytes:
            key = key_bytes(self.get_key(key) if isinstance(key, KeySelector) else key)
        if self._is_refused(self._flaw_of(key[:KEY_BYTES_MAX], b"")):
            return
        if len(key) > KEY_BYTES_MAX:  # no such key can exist
            self._next_conflicts()
            return
        self._buffer.put(key, None)
        # FoundationDB counts a clear as a range with two ends.
        self._wrote(key, len(key) + 1 + RANGE_BYTES - _MUTATION_BYTES)

    def clear_range(self, begin: Any, end: Any) -> None:
        """Clear the keys of [begin, end); None stands for the first key, or the end of all keys."""
        begin = b"" if begin is None else self.get_key(begin) if isinstance(begin, KeySelector) else begin
        end = USER_END if end is None else self.get_key(end) if isinstance(end, KeySelector) else end
        begin, end = key_bytes(begin), key_bytes(end)
        if begin > end:
            self._defer(FDBError(2005))
            return
        conflicts = self._next_conflicts()
        if not self._is_refused(2004 if end > self._settings.write_end else 0) and begin < end:
            self._buffer.clear_range(begin, end)
            conflicts.add_range(begin, end)
            self._size_bytes += 2 * (len(begin) + len(end)) + _MUTATION_BYTES + RANGE_BYTES

    def clear_range_startswith(self, prefix: Any) -> None:
        prefix = key_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def _is_refused(self, flaw: int) -> bool:
        """True if a call has no effect: each later future raises the first reason, such as its `flaw`."""
        if self._guarded and (self._deferred is not None or self._is_in_commit()):
            self._defer(FDBError(2017))
        elif flaw:
            self._defer(FDBError(flaw))
        else:
            return False
        return True

    def _flaw_of(self, key: bytes, value: bytes) -> int:
        """Return the code of an error that a write has by itself; 0 without one."""
        if key >= USER_END and key >= self._settings.write_end:
            return 2004
        if len(key) > KEY_BYTES_MAX:
            return 2102
        return 2103 if len(value) > VALUE_BYTES_MAX else 0

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
        if self._is_refused(self._flaw_of_operation(opcode, key, param)):
            return
        if opcode == writes.SET_VERSIONSTAMPED_KEY:
            self._set_stamped_key(key, param)
        else:
            self._buffer.operate(opcode, key, param)
            self._wrote(key, len(param))

    def _flaw_of_operation(self, opcode: int, key: bytes, param: bytes) -> int:
        flaw = self._flaw_of(key, param)
        if opcode in writes.OPERATIONS or flaw == 2004:
            return flaw
        if opcode not in _STAMPED:
            return 2018
        template = key if opcode == writes.SET_VERSIONSTAMPED_KEY else param
        return flaw or (0 if has_place(template) else 2000)

    def _set_stamped_key(self, key: bytes, value: bytes) -> None:
        body, offset = split(key)
        self._next_conflicts()  # uses the option up; the conflicting key is known at the commit only
        version_min = self._snapshot.version if self._snapshot is not None else 0
        self._buffer.set_stamped_key(body, offset, value, version_min)
        self._size_bytes += len(key) + len(value) + _MUTATION_BYTES

    def add_read_conflict_range(self, begin: Any, end: Any) -> None:
        """Conflict with writes in the range, as if it had been read. Raises: FDBError 2005, at once."""
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
        if not self._is_refused(2004 if end > end_max else 0) and begin < end:
            add(begin, end)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)


# Codes that on_error answers with another one: a broken promise, and "no error".
_TOLD_AS = {1100: 1025, 0: 2000}
_COMMITTED = Future()


class Transaction(WriteTransaction):
    """See the binding's Transaction: the same methods, arguments and errors."""

    @property
    def options(self) -> TransactionOptions:
        return options_for(self, TransactionOptions)  # type: ignore[return-value]

    def step_option(self, name: str, param: Any) -> None:
        if self._deferred is not None:
            return
        has_written = self._buffer.has_writes and self._settings.read_your_writes
        if name == "read_your_writes_disable" and (has_written or self._has_read):
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
                raise FDBError(2004 if key >= self._settings.read_end else 2102)
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
        if isinstance(error, FDBError) and error.code == TIMED_OUT:
            self._end(error)
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
        has_committed = self._commit_started and self._buffer.writes_anything()  # at a version, then
        if has_committed or self._snapshot is not None or self._wanted_version is not None:
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
            self._end(FDBError(TIMED_OUT))
            return DelayFuture(self._runtime, left_s, FDBError(TIMED_OUT))
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
        self._backoff = steps.Backoff()
        self.step_begin()

    def cancel(self) -> None:
        """End this transaction: each later call fails with 1025."""
        self._end(FDBError(1025))


add_mutations(Transaction)


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


@overload
def transactional(function: F, /) -> F: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[F], F]: ...


def transactional(function: F | None = None, /, *, parameter: str = "tr") -> F | Callable[[F], F]:
    """Run the function in a transaction of the database given as `tr`, retrying until it commits."""

    def decorate(inner: F) -> F:
        position = inspect.getfullargspec(inspect.unwrap(inner)).args.index(parameter)

        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if inspect.isgeneratorfunction(inner):
                raise ValueError("Generators can not be wrapped with fdb.transactional")
            if hasattr(args[position], "get_read_version"):
                return inner(*args, **kwargs)
            tr = args[position].create_transaction()
            return _until_committed(tr, inner, (*args[:position], tr, *args[position + 1 :]), kwargs)

        return wrapper  # type: ignore[return-value]  # functools.wraps keeps the signature

    return decorate if function is None else decorate(function)


def _until_committed(tr: Any, function: Callable[..., R], args: tuple[Any, ...], kwargs: Any) -> R:
    while True:
        try:
            result = function(*args, **kwargs)
            if inspect.isgenerator(result):
                raise ValueError("Generators can not be wrapped with fdb.transactional")
            tr.commit().wait()
            return result
        except FDBError as error:
            tr.on_error(error.code).wait()


_NO_WRITES, _NO_READS = writes.WriteBuffer(), KeySet()


class Database(OpenStore):
    """The database of one directory. Each call on it is one transaction, retried until it commits."""

    starves = False
    """True if transactions of batch priority may wait for their read version."""
    _closed = False
    _has_options = False  # then a direct transaction could not keep to them

    def __init_subclass__(cls) -> None:
        """A class with transactions of its own has no direct ones: these have none of its steps."""
        if cls.create_transaction is not Database.create_transaction:
            cls.run_directly = None  # type: ignore[assignment, method-assign]

    @property
    def lmdb_store(self) -> Store:
        """The store of its directory, for programs that look after it."""
        return self._store

    def name_of_process(self) -> bytes:
        """Return the name by which `is_gone` knows this process; empty if no other process uses the files."""
        users = self._store._shared
        return b"" if users is None else users.name

    def is_gone(self, name: bytes) -> bool | None:
        """True if the process of `name` has ended; None for files without names, and as Users.is_gone."""
        users = self._store._shared
        return None if users is None else users.is_gone(name)

    def knows_processes(self) -> bool:
        """Return True: no process uses the files beside those that have names."""
        return True

    @property
    def flush(self) -> Flush:
        """When its commits reach the disk, unless a transaction says otherwise."""
        return self._transaction_defaults.flush

    @property
    def options(self) -> DatabaseOptions:
        return options_for(self, DatabaseOptions)  # type: ignore[return-value]

    def step_option(self, name: str, param: Any) -> None:
        self._has_options = True
        self._transaction_defaults = replace(self._transaction_defaults)
        if name == "max_watches":
            self._watches_max = bounded(0, WATCHES_LIMIT_MAX, param)
        apply_transaction_option(self._transaction_defaults, name.removeprefix("transaction_"), param)

    def create_transaction(self) -> Transaction:
        """Raises: DatabaseClosed."""
        self.require_open()
        return Transaction(self)

    def require_open(self) -> None:
        if self._closed:
            raise DatabaseClosed

    def run_directly(self, body: Callable[[Direct], object]) -> None:
        """Run a short `body` in a direct transaction, and commit. It may run more than once.

        Raises: the errors of the body; NotDirect if an ordinary transaction is needed, and nothing has
        happened; those of a commit; DatabaseClosed.
        """
        self.require_open()
        if self._has_options:
            raise NotDirect
        store, flush = self._store, self._transaction_defaults.flush
        store.end_expired(self._runtime.monotonic())

        def run(txn: Any, order: int) -> Direct:
            tr = Direct(txn, order, self, flush)
            body(tr)
            tr.require_short()
            return tr

        request = CommitRequest(_NO_WRITES, _NO_READS, None, 0, flush=flush, body=run)
        store.committer.commit_directly(request)
        if request.error is not None:
            raise request.error

    def close(self) -> None:
        """Close this database; the store ends with its last database."""
        if not self._closed:
            self._closed = True
            store.release(self._store)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- one transaction each ---------------------------------------------------------------------------

    def _in_one(self, function: Callable[[Transaction], R]) -> R:
        tr = self.create_transaction()
        return _until_committed(tr, function, (tr,), {})

    def get(self, key: Any) -> bytes | None:
        value: bytes | None = self._in_one(lambda tr: tr.get(key).value)
        return value

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)

    def get_key(self, key_selector: Any) -> bytes:
        key: bytes = self._in_one(lambda tr: tr.get_key(key_selector).value)
        return key

    def get_range(
        self,
        begin: Any,
        end: Any,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.want_all,
    ) -> list[KeyValue]:
        return self._in_one(lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list())

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> list[KeyValue]:
        return self._in_one(lambda tr: tr.get_range_startswith(prefix, *args, **kwargs).to_list())

    def set(self, key: Any, value: Any) -> None:
        self._in_one(lambda tr: tr.set(key, value))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def clear(self, key: Any) -> None:
        self._in_one(lambda tr: tr.clear(key))

    def clear_range(self, begin: Any, end: Any) -> None:
        self._in_one(lambda tr: tr.clear_range(begin, end))

    def __delitem__(self, key_or_slice: Any) -> None:
        if isinstance(key_or_slice, slice):
            self.clear_range(key_or_slice.start, key_or_slice.stop)
        else:
            self.clear(key_or_slice)

    def clear_range_startswith(self, prefix: Any) -> None:
        self._in_one(lambda tr: tr.clear_range_startswith(prefix))

    def get_and_watch(self, key: Any) -> tuple[Any, Future]:
        return self._and_watch(key, lambda tr: tr.get(key))

    def set_and_watch(self, key: Any, value: Any) -> Future:
        return self._and_watch(key, lambda tr: tr.set(key, value))[1]

    def clear_and_watch(self, key: Any) -> Future:
        return self._and_watch(key, lambda tr: tr.clear(key))[1]

    def _and_watch(self, key: Any, call: Callable[[Transaction], Any]) -> tuple[Any, Future]:
        return self._in_one(lambda tr: (call(tr), tr.watch(key)))

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        self._in_one(lambda tr: tr._atomic_operation(opcode, key, param))


add_mutations(Database)


def open_directory(
    path: str, runtime: Runtime | None = None, *, shared: bool = False, flush: Flush = Flush.NOW
) -> Database:
    """Open the database of a directory, or make it: a commit that has returned survives a power cut.

    With `shared`, other users may write to the directory, and are trusted. With a later `flush`, a commit
    survives the death of its process, and a power cut may lose the last ones.

    Raises: UnsafePath, StorageInUse, StorageFormat (of a newer release), StorageFull.
    """
    runtime = runtime or RealRuntime()
    return Database(store.acquire(path, runtime, shared), runtime, flush)


def open_private(runtime: Runtime | None = None) -> Database:
    """Open a new database in temporary files without names and without fsync; it ends when it is closed."""
    runtime = runtime or RealRuntime()
    return Database(store.acquire_private(runtime), runtime)
