"""The names that programs written for the binding import from `fdb.impl`."""

from fdbqueue.core.fdberror import FDBError, predicates
from fdbqueue.embedded.database import Database, transactional
from fdbqueue.embedded.futures import Future, Key, Value
from fdbqueue.embedded.futures import key_bytes as keyToBytes
from fdbqueue.embedded.futures import value_bytes as valueToBytes
from fdbqueue.embedded.options import ConflictRangeType, StreamingMode
from fdbqueue.embedded.reading import FDBRange, strinc
from fdbqueue.embedded.reading import ReadTransaction as TransactionRead
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.embedded.view import KeySelector, KeyValue

__all__ = [
    "ConflictRangeType",
    "Database",
    "FDBError",
    "FDBRange",
    "Future",
    "Key",
    "KeySelector",
    "KeyValue",
    "StreamingMode",
    "Transaction",
    "TransactionRead",
    "Value",
    "keyToBytes",
    "predicates",
    "strinc",
    "transactional",
    "valueToBytes",
]
