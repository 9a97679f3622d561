"""The names that programs written for the binding import from `fdb.impl`."""

from fdbqueue.embedded.database import Database
from fdbqueue.embedded.decorator import transactional
from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.options import ConflictRangeType, StreamingMode
from fdbqueue.embedded.rangeread import FDBRange, KeyValue
from fdbqueue.embedded.reading import ReadTransaction as TransactionRead
from fdbqueue.embedded.reading import strinc
from fdbqueue.embedded.selectors import KeySelector
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.embedded.values import Key, Value
from fdbqueue.embedded.values import key_bytes as keyToBytes
from fdbqueue.embedded.values import value_bytes as valueToBytes
from fdbqueue.fdberror import FDBError, predicates

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
