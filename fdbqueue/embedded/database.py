"""A database of the embedded engine, with the conveniences of the binding's.

`transactional` has the binding's own contract, for programs written for the binding. New code takes
`fdbqueue.transactional`, which has limits and accepts keywords. This one must not be stricter than the
binding's, and knows only the classes of the engine.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.embedded import store
from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.options import (
    DatabaseOptions,
    StreamingMode,
    add_mutations,
    apply_database_option,
    options_for,
)
from fdbqueue.embedded.request import Flush
from fdbqueue.embedded.steps import OpenStore
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.embedded.view import KeyValue

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


class Database(OpenStore):
    """The database of one directory. Each call on it is one transaction, retried until it commits."""

    _closed = False

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

    def _set_option(self, name: str, param: Any) -> None:
        self._transaction_defaults = replace(self._transaction_defaults)
        apply_database_option(self._settings, self._transaction_defaults, name, param)

    def create_transaction(self) -> Transaction:
        """Raises: DatabaseClosed."""
        self.require_open()
        return Transaction(self)

    def require_open(self) -> None:
        if self._closed:
            raise DatabaseClosed

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
        return self._in_one(lambda tr: (tr.get(key), tr.watch(key)))

    def set_and_watch(self, key: Any, value: Any) -> Future:
        def change(tr: Transaction) -> Future:
            tr.set(key, value)
            return tr.watch(key)

        return self._in_one(change)

    def clear_and_watch(self, key: Any) -> Future:
        def change(tr: Transaction) -> Future:
            tr.clear(key)
            return tr.watch(key)

        return self._in_one(change)

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
