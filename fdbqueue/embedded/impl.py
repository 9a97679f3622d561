"""The names that programs written for the binding import from `fdb.impl`."""

from fdbqueue.core.seam import FDBError, predicates
from fdbqueue.embedded.steps import FDBRange, strinc
from fdbqueue.embedded.steps import ReadTransaction as TransactionRead
from fdbqueue.embedded.surface import ConflictRangeType, Future, Key, StreamingMode, Value
from fdbqueue.embedded.surface import key_bytes as keyToBytes
from fdbqueue.embedded.surface import value_bytes as valueToBytes
from fdbqueue.embedded.transaction import Database, Transaction, transactional
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
