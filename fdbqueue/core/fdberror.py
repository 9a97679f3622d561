"""FDBError with the binding's codes, for an engine that has no C library to ask.

The binding's class needs `libfdb_c` to describe a code; this one carries the sentences. It is not a
`FdbQueueError`: see `fdbqueue/core/errors.py`. Codes, sentences and answers are those of FoundationDB 7.3.79
(flow/error_definitions.h, fdb_error_predicate, Transaction::onError).
"""

import sys

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
