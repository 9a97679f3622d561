"""The names that programs written for the binding take from `fdb.impl`."""

from fdbqueue.embedded.database import Database as Database
from fdbqueue.embedded.decorator import transactional as transactional
from fdbqueue.embedded.errors import FDBError as FDBError
from fdbqueue.embedded.errors import predicates as predicates
from fdbqueue.embedded.futures import Future as Future
from fdbqueue.embedded.options import ConflictRangeType as ConflictRangeType
from fdbqueue.embedded.options import StreamingMode as StreamingMode
from fdbqueue.embedded.rangeread import FDBRange as FDBRange
from fdbqueue.embedded.rangeread import KeyValue as KeyValue
from fdbqueue.embedded.selectors import KeySelector as KeySelector
from fdbqueue.embedded.transaction import ReadTransaction as TransactionRead
from fdbqueue.embedded.transaction import Transaction as Transaction
from fdbqueue.embedded.transaction import strinc as strinc
from fdbqueue.embedded.values import Key as Key
from fdbqueue.embedded.values import Value as Value
from fdbqueue.embedded.values import key_bytes as keyToBytes  # noqa: N813  # the binding's name
from fdbqueue.embedded.values import value_bytes as valueToBytes  # noqa: N813  # the binding's name
