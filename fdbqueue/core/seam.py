"""The seam between queue code and an engine: the methods of the official binding that queue code calls.

`fdb.Transaction` and `fdbqueue.embedded.Transaction` both have these methods. The binding has no type stubs,
so these protocols are also its types. The base of the databases and transactions of `fdbqueue.aio` is here,
too: blocking calls refuse it in a sentence, and `transactional` runs its function for it.

`FDBError` has the binding's codes, for an engine that has no C library to ask. The binding's class needs
`libfdb_c` to describe a code; this one carries the sentences. It is not a `FdbQueueError`: see
`fdbqueue/core/errors.py`. Codes, sentences and answers are those of FoundationDB 7.3.79
(flow/error_definitions.h, fdb_error_predicate, Transaction::onError).
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if not TYPE_CHECKING:
    from fdb.subspace_impl import Subspace as Subspace

if TYPE_CHECKING:  # last, because tools that read the source keep the last definition of a name

    class Subspace:
        """All keys under a prefix, which a tuple and a raw prefix make up."""

        rawPrefix: bytes  # noqa: N815  # the binding's name

        def __init__(self, prefixTuple: tuple[Any, ...] = (), rawPrefix: bytes = b"") -> None: ...  # noqa: N803
        def __getitem__(self, name: Any) -> "Subspace": ...
        def key(self) -> bytes: ...
        def pack(self, t: tuple[Any, ...] = ()) -> bytes: ...
        def pack_with_versionstamp(self, t: tuple[Any, ...] = ()) -> bytes: ...
        def unpack(self, key: bytes) -> tuple[Any, ...]: ...
        def range(self, t: tuple[Any, ...] = ()) -> slice: ...
        def contains(self, key: bytes) -> bool: ...
        def as_foundationdb_key(self) -> bytes: ...
        def subspace(self, tuple: tuple[Any, ...]) -> "Subspace": ...


Key = Any  # bytes, or anything with as_foundationdb_key (a Subspace, a Value)


class NotDirect(BaseException):
    """A body needs an ordinary transaction (embedded/direct.py). It passes all code that catches errors."""


def require_ordinary(tr: "Transaction") -> None:
    """Raise NotDirect in a direct transaction, which has no `commit`."""
    tr.commit  # noqa: B018


class Future(Protocol):
    def is_ready(self) -> bool: ...
    def on_ready(self, callback: Callable[[Any], None]) -> None: ...
    def wait(self) -> Any: ...
    def cancel(self) -> None: ...


class Value(Future, Protocol):
    """A key or a value that a read will deliver; `.value` waits for it."""

    @property
    def value(self) -> Any: ...
    def present(self) -> bool: ...


class KeyValue(Protocol):
    key: bytes
    value: bytes


class Range(Protocol):
    """The result of a range read. The first batch is requested at once; iteration waits for it."""

    def __iter__(self) -> Iterator[KeyValue]: ...
    def to_list(self) -> list[KeyValue]: ...


EXACT = 0
"""The streaming mode of a read that needs all rows up to its limit: they come in few replies."""

WANT_ALL = -2
"""The streaming mode of a read that may need all rows: each reply is large, and has a bound in bytes."""


class ReadTransaction(Protocol):
    def get_read_version(self) -> Future: ...
    def get(self, key: Key) -> Value: ...
    def get_key(self, key_selector: Any) -> Value: ...
    def get_range(
        self, begin: Key, end: Key, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Range: ...
    def __getitem__(self, key: Any) -> Any: ...


class Transaction(ReadTransaction, Protocol):
    """A transaction: the type for the parameter of a `@transactional` function.

    mypy then checks the body of the function, and lets its callers pass a `Database` or a transaction.
    """

    @property
    def options(self) -> Any: ...
    @property
    def db(self) -> Any: ...
    @property
    def snapshot(self) -> ReadTransaction: ...
    def set(self, key: Key, value: Any) -> None: ...
    def clear(self, key: Key) -> None: ...
    def clear_range(self, begin: Key, end: Key) -> None: ...
    def add(self, key: Key, param: bytes) -> None: ...
    def bit_and(self, key: Key, param: bytes) -> None: ...
    def max(self, key: Key, param: bytes) -> None: ...
    def compare_and_clear(self, key: Key, param: bytes) -> None: ...
    def set_versionstamped_key(self, key: Key, param: bytes) -> None: ...
    def set_versionstamped_value(self, key: Key, param: bytes) -> None: ...
    def add_read_conflict_key(self, key: Key) -> None: ...
    def add_read_conflict_range(self, begin: Key, end: Key) -> None: ...
    def add_write_conflict_key(self, key: Key) -> None: ...
    def add_write_conflict_range(self, begin: Key, end: Key) -> None: ...
    def watch(self, key: Key) -> Future: ...
    def set_read_version(self, version: int) -> None: ...
    def get_versionstamp(self) -> Value: ...
    def get_committed_version(self) -> int: ...
    def get_approximate_size(self) -> Future: ...
    def commit(self) -> Future: ...
    def on_error(self, error: Any) -> Future: ...
    def reset(self) -> None: ...
    def cancel(self) -> None: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...
    def __delitem__(self, key: Any) -> None: ...


class AnySession(Protocol):
    """A session of either face: `fdbqueue.Session`, and `fdbqueue.aio.Session` in a call of fdbqueue.aio."""

    @property
    def name(self) -> str | None: ...
    @property
    def ttr(self) -> float: ...
    @property
    def lost(self) -> bool: ...


class AnyDatabase(Protocol):
    """A database: ours, the binding's or the embedded engine's."""

    @property
    def options(self) -> Any: ...

    def create_transaction(self) -> Any: ...


class AnyTransaction(Protocol):
    """A transaction of the binding or of the embedded engine; a snapshot is none."""

    def get_read_version(self) -> Any: ...
    def commit(self) -> Any: ...


DatabaseOrTransaction = AnyDatabase | AnyTransaction
"""The first argument of a call on a queue.

Given a database, the call commits. Given a transaction, its caller commits.
"""


T = TypeVar("T")


class Awaited(ABC):
    """A database or a transaction whose calls are awaited."""

    __slots__ = ()

    @abstractmethod
    def run_blocking(self, function: Callable[[Any], T]) -> Coroutine[Any, Any, T]:
        """Run blocking code on its blocking counterpart, and await the end of it."""


DESCRIPTIONS = {
    1000: "Operation failed",
    1004: "Operation timed out",
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1039: "The protocol version of the cluster has changed",
    1042: "CommitProxy commit memory limit exceeded",
    1051: "Batch GRV request rate limit exceeded",
    1078: "GetReadVersion proxy memory limit exceeded",
    1079: "BlobGranule request failed",
    1101: "Asynchronous operation cancelled",
    1213: "Transaction tag is being throttled",
    1223: "Exceeded maximum proxy tag throttling duration",
    1510: "Disk i/o operation failed",
    1511: "File not found",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2007: "Option not valid in this context",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2015: "Future not ready",
    2017: "Operation issued while a commit was outstanding",
    2018: "Unrecognized atomic mutation type",
    2020: "Transaction does not have a valid commit version",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2210: "EXACT streaming mode requires limits, but none were given",
    4000: "An unknown error occurred",
    4100: "An internal error occurred",
}

RETRYABLE_NOT_COMMITTED = frozenset({1007, 1009, 1020, 1037, 1038, 1042, 1051, 1078, 1213, 1223})
TIMED_OUT, CLUSTER_VERSION_CHANGED = 1031, 1039
MAYBE_COMMITTED = frozenset({1021, CLUSTER_VERSION_CHANGED})
RETRYABLE = RETRYABLE_NOT_COMMITTED | MAYBE_COMMITTED
# `on_error` differs from the predicate. It tries again if a blob granule did not answer. It raises 1039: a
# client library tries that again only if it has others beside it, for an upgrade of the cluster.
TRIED_AGAIN = (RETRYABLE | {1079}) - {CLUSTER_VERSION_CHANGED}


class FDBError(Exception):
    """An error of the engine: `code` is FoundationDB's, `description` its sentence.

    `reason` tells the cause and the cure of this one; empty if the sentence says all.
    """

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason

    @property
    def description(self) -> str:
        return DESCRIPTIONS.get(self.code, "UNKNOWN_ERROR")

    def __str__(self) -> str:
        told = f"{self.description} ({self.code})"
        return f"{told}: {self.reason}" if self.reason else told

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


class ErrorPredicates:
    """`fdb.predicates`: questions about an error that decide whether to try again."""

    def is_retryable(self, error: FDBError) -> bool:
        return error.code in RETRYABLE

    def is_maybe_committed(self, error: FDBError) -> bool:
        return error.code in MAYBE_COMMITTED

    def is_retryable_not_committed(self, error: FDBError) -> bool:
        return error.code in RETRYABLE_NOT_COMMITTED


predicates = ErrorPredicates()


def engine_errors() -> tuple[type[FDBError], ...]:
    """The error classes that a retry loop hands to `on_error`, of every engine in this process.

    The binding's has what ours has, and mypy knows ours.
    """
    binding = sys.modules.get("fdb.impl")
    return (FDBError,) if binding is None else (FDBError, binding.FDBError)
