"""A database of the embedded engine, with the conveniences of the binding's."""

from typing import Any

from msgspec.structs import replace

from fdbqueue.embedded import stores
from fdbqueue.embedded.decorator import transactional
from fdbqueue.embedded.flush import Flush
from fdbqueue.embedded.futures import Future, PendingFuture
from fdbqueue.embedded.mutations import add_mutations
from fdbqueue.embedded.options import (
    DatabaseOptions,
    DatabaseSettings,
    StreamingMode,
    TransactionSettings,
    apply_database_option,
    options_for,
)
from fdbqueue.embedded.rangeread import FDBRange, KeyValue
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.embedded.values import Value
from fdbqueue.errors import DatabaseClosed
from fdbqueue.fdberror import FDBError
from fdbqueue.runtime import RealRuntime, Runtime


class Database:
    """The database of one directory. Each call on it is one transaction, retried until it commits."""

    def __init__(self, store: Store, runtime: Runtime, flush: Flush = Flush.NOW) -> None:
        self._store = store
        self._runtime = runtime
        self._transaction_defaults = TransactionSettings(flush=flush)
        self._settings = DatabaseSettings()
        self._watches = 0
        self._closed = False

    @property
    def lmdb_store(self) -> Store:
        """The store of its directory, for programs that look after it."""
        return self._store

    @property
    def flush(self) -> Flush:
        """When its commits reach the disk, unless a transaction says otherwise."""
        return self._transaction_defaults.flush

    @property
    def options(self) -> DatabaseOptions:
        return options_for(self, DatabaseOptions)  # type: ignore[return-value]

    def _set_option(self, name: str, param: Any) -> None:
        self._transaction_defaults = replace(self._transaction_defaults)
        apply_database_option(self._settings, self._transaction_defaults, name, param)

    def create_transaction(self) -> Transaction:
        """Raises: DatabaseClosed."""
        self.require_open()
        return Transaction(self)

    def require_open(self) -> None:
        """Raises: DatabaseClosed."""
        if self._closed:
            raise DatabaseClosed

    def commit(self, request: CommitRequest) -> None:
        """Return when `request` is finished: `version` is set, or `error`."""
        self._store.committer.commit(request)

    def close(self) -> None:
        """Close this database; the store ends with its last database."""
        if not self._closed:
            self._closed = True
            stores.release(self._store)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def new_watch(self, key: bytes) -> PendingFuture:
        """Return the future of a watch, counted until it is ready or dropped.

        Raises: FDBError 1032 at the limit of watches.
        """
        if self._watches >= self._settings.watches_max:
            raise FDBError(1032)
        self._watches += 1
        watches, future_id = self._store.watches, 0

        def done() -> None:
            self._watches -= 1
            watches.disarm(key, future_id)

        future = PendingFuture(self._runtime, done)
        future_id = id(future)
        return future

    # -- one transaction each ---------------------------------------------------------------------------

    def get(self, key: Any) -> bytes | None:
        return _get(self, key)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return _get(self, key)

    def get_key(self, key_selector: Any) -> bytes:
        return _get_key(self, key_selector)

    def get_range(
        self,
        begin: Any,
        end: Any,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.want_all,
    ) -> list[KeyValue]:
        return _get_range(self, begin, end, limit, reverse, streaming_mode)

    def get_range_startswith(self, prefix: Any, *args: Any, **kwargs: Any) -> list[KeyValue]:
        return _get_range_startswith(self, prefix, *args, **kwargs)

    def set(self, key: Any, value: Any) -> None:
        _set(self, key, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        _set(self, key, value)

    def clear(self, key: Any) -> None:
        _delete(self, key)

    def clear_range(self, begin: Any, end: Any) -> None:
        _delete(self, slice(begin, end))

    def __delitem__(self, key_or_slice: Any) -> None:
        _delete(self, key_or_slice)

    def clear_range_startswith(self, prefix: Any) -> None:
        _clear_range_startswith(self, prefix)

    def get_and_watch(self, key: Any) -> tuple[Any, Future]:
        return _get_and_watch(self, key)

    def set_and_watch(self, key: Any, value: Any) -> Future:
        return _set_and_watch(self, key, value)

    def clear_and_watch(self, key: Any) -> Future:
        return _clear_and_watch(self, key)

    def _atomic_operation(self, opcode: int, key: Any, param: Any) -> None:
        _operate(self, opcode, key, param)


add_mutations(Database)


@transactional
def _get(tr: Any, key: Any) -> bytes | None:
    value: bytes | None = tr.get(key).value
    return value


@transactional
def _get_key(tr: Any, key_selector: Any) -> bytes:
    key: bytes = tr.get_key(key_selector).value
    return key


@transactional
def _get_range(tr: Any, begin: Any, end: Any, limit: int, reverse: bool, mode: int) -> list[KeyValue]:
    found: FDBRange = tr.get_range(begin, end, limit, reverse, mode)
    return found.to_list()


@transactional
def _get_range_startswith(tr: Any, prefix: Any, *args: Any, **kwargs: Any) -> list[KeyValue]:
    found: FDBRange = tr.get_range_startswith(prefix, *args, **kwargs)
    return found.to_list()


@transactional
def _set(tr: Any, key: Any, value: Any) -> None:
    tr.set(key, value)


@transactional
def _delete(tr: Any, key_or_slice: Any) -> None:
    del tr[key_or_slice]


@transactional
def _clear_range_startswith(tr: Any, prefix: Any) -> None:
    tr.clear_range_startswith(prefix)


@transactional
def _get_and_watch(tr: Any, key: Any) -> tuple[Value, Future]:
    return tr.get(key), tr.watch(key)


@transactional
def _set_and_watch(tr: Any, key: Any, value: Any) -> Future:
    tr.set(key, value)
    watch: Future = tr.watch(key)
    return watch


@transactional
def _clear_and_watch(tr: Any, key: Any) -> Future:
    tr.clear(key)
    watch: Future = tr.watch(key)
    return watch


@transactional
def _operate(tr: Any, opcode: int, key: Any, param: Any) -> None:
    tr._atomic_operation(opcode, key, param)


def open_directory(
    path: str, runtime: Runtime | None = None, *, shared: bool = False, flush: Flush = Flush.NOW
) -> Database:
    """Open the database of a directory, or make it: a commit that has returned survives a power cut.

    With `shared`, other users may write to the directory, and are trusted. With a later `flush`, a commit
    survives the death of its process, and a power cut may lose the last ones.

    Raises: UnsafePath, StorageInUse, StorageFormat (of a newer release), StorageFull.
    """
    runtime = runtime or RealRuntime()
    return Database(stores.acquire(path, runtime, shared), runtime, flush)


def open_private(runtime: Runtime | None = None) -> Database:
    """Open a new database in temporary files without names and without fsync; it ends when it is closed."""
    runtime = runtime or RealRuntime()
    return Database(stores.acquire_private(runtime), runtime)
