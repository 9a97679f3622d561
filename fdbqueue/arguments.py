"""What calls of every queue refuse before they read or write anything."""

import math
from typing import Any

from fdbqueue import limits
from fdbqueue.database import is_transaction
from fdbqueue.errors import InvalidArgument, NotADatabase, TooMuchForOneTransaction
from fdbqueue.seam import Transaction


def writable(tr: Any) -> Transaction:
    """Raises NotADatabase for a snapshot, which has no way to write."""
    if not hasattr(tr, "commit"):
        raise NotADatabase(got="a snapshot")
    transaction: Transaction = tr
    return transaction


def checked_timeout(timeout: float, target: Any) -> None:
    if not isinstance(timeout, int | float) or math.isnan(timeout) or timeout < 0:
        raise InvalidArgument(name="timeout", wanted="zero or more seconds", got=timeout)
    if timeout and is_transaction(target):
        raise InvalidArgument(name="timeout", wanted="0 in a transaction, which cannot wait", got=timeout)


def checked_count(n: int) -> None:
    if not isinstance(n, int) or n < 0:
        raise InvalidArgument(name="n", wanted="a whole number, zero or more", got=n)
    if n > limits.BATCH_ITEMS_MAX:
        raise too_much(n, 0)


def checked_batch(payloads: list[bytes]) -> list[bytes]:
    size_bytes = sum(map(len, payloads))
    if len(payloads) > limits.BATCH_ITEMS_MAX or (len(payloads) > 1 and size_bytes > limits.BATCH_BYTES_MAX):
        raise too_much(len(payloads), size_bytes)
    return payloads


def too_much(count: int, size_bytes: int) -> TooMuchForOneTransaction:
    return TooMuchForOneTransaction(
        count=count,
        size_bytes=size_bytes,
        count_max=limits.BATCH_ITEMS_MAX,
        size_bytes_max=limits.BATCH_BYTES_MAX,
    )
