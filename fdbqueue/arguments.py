"""The checks at the door: each public call checks its arguments here, before it reads or writes anything.

One rule for numbers. A span (ttl, ttr, the limit of an attempt) is above 0, and inf is for ever. A timeout is
0 or more, and inf is for ever; a take's timeout of 0 or less is one attempt. A delay below 0 is 0. Any other
length of time is finite. A count is whole, and 1 or more. A bool and a nan are no numbers.
"""

from typing import Any

from fdbqueue import limits
from fdbqueue.database import is_transaction
from fdbqueue.errors import InvalidArgument, NotADatabase, PayloadTooLarge, TooMuchForOneTransaction
from fdbqueue.runtime import Stop
from fdbqueue.seam import Transaction

WHOLE_MAX = 2**62
"""The bound of whole numbers that have no other."""


def writable(tr: Any) -> Transaction:
    """Raises NotADatabase for a snapshot, which has no way to write."""
    if not hasattr(tr, "commit"):
        raise NotADatabase(got="a snapshot")
    transaction: Transaction = tr
    return transaction


# Numbers.


def is_number(value: Any) -> bool:
    """True if `value` is an int or a float; not for a bool, not for nan."""
    # A comparison, not math.isnan: that overflows on an int that is too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_whole(value: Any) -> bool:
    """True if `value` is an int; not for a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def checked_whole(name: str, number: Any, low: int, high: int = WHOLE_MAX) -> int:
    """Raises InvalidArgument."""
    if not is_whole(number) or not low <= number <= high:
        bounds = f", {low} or more" if high == WHOLE_MAX else f" from {low} to {high}"
        wanted = f"a whole number{bounds}"
        raise InvalidArgument(name=name, wanted=wanted, got=number)
    return int(number)


def checked_count(name: str, number: Any, high: int = WHOLE_MAX) -> int:
    """A count of items. Raises InvalidArgument."""
    return checked_whole(name, number, 1, high)


def checked_batch_count(name: str, number: Any) -> int:
    """A count of items for one transaction. Raises InvalidArgument, TooMuchForOneTransaction."""
    if checked_count(name, number) > limits.BATCH_ITEMS_MAX:
        raise too_much(number, 0)
    return int(number)


# Lengths of time, in seconds.


def checked_span(name: str, seconds: Any) -> float:
    """At most limits.SPAN_MAX_S, which is for ever. Raises InvalidArgument."""
    if not is_number(seconds) or seconds <= 0:
        raise InvalidArgument(name=name, wanted="more than 0 seconds (inf is for ever)", got=seconds)
    return float(min(seconds, limits.SPAN_MAX_S))


def checked_timeout(timeout: Any, name: str = "timeout") -> float:
    """At most limits.SPAN_MAX_S, which is for ever. Raises InvalidArgument."""
    if not is_number(timeout) or timeout < 0:
        raise InvalidArgument(name=name, wanted="0 or more seconds (inf is for ever)", got=timeout)
    return float(min(timeout, limits.SPAN_MAX_S))


def checked_wait(timeout: Any, target: Any) -> float:
    """The timeout of a call that waits only if `target` is a database. Raises InvalidArgument."""
    seconds = checked_timeout(timeout)
    if seconds and is_transaction(target):
        raise InvalidArgument(name="timeout", wanted="0 in a transaction, which cannot wait", got=timeout)
    return seconds


def checked_stop(stop: Stop | None, target: Any) -> None:
    """Raises InvalidArgument for a `stop` beside a transaction."""
    if stop is not None and is_transaction(target):
        raise InvalidArgument(name="stop", wanted="None in a transaction, which cannot wait", got=stop)


def checked_take_timeout(timeout: Any) -> float:
    """0 for one attempt, limits.SPAN_MAX_S for ever. Raises InvalidArgument."""
    if timeout is None:
        return limits.SPAN_MAX_S
    if not is_number(timeout):
        wanted = "seconds (0 or less: one attempt), or None or inf for ever"
        raise InvalidArgument(name="timeout", wanted=wanted, got=timeout)
    return float(min(max(timeout, 0), limits.SPAN_MAX_S))


def checked_delay(delay: Any) -> float:
    """0 for a delay that is over. Raises InvalidArgument."""
    if not is_number(delay) or delay >= limits.SPAN_MAX_S or delay == -float("inf"):
        raise InvalidArgument(name="delay", wanted="seconds, less than a hundred years", got=delay)
    return float(max(delay, 0))


def checked_seconds(name: str, seconds: Any) -> float:
    """A finite length of time that may be 0: an age, a grace. Raises InvalidArgument."""
    if not is_number(seconds) or not 0 <= seconds < limits.SPAN_MAX_S:
        raise InvalidArgument(name=name, wanted="0 or more seconds, less than a hundred years", got=seconds)
    return float(seconds)


def checked_positive(name: str, number: Any, unit: str) -> float:
    """A finite number above 0. Raises InvalidArgument."""
    if not is_number(number) or not 0 < number < float("inf"):
        raise InvalidArgument(name=name, wanted=f"more than 0 {unit}, and finite", got=number)
    return float(min(number, WHOLE_MAX))


# Batches.


def checked_batch(payloads: list[bytes]) -> list[bytes]:
    """Raises TooMuchForOneTransaction."""
    size_bytes = sum(map(len, payloads))
    if len(payloads) > limits.BATCH_ITEMS_MAX or (len(payloads) > 1 and size_bytes > limits.BATCH_BYTES_MAX):
        raise too_much(len(payloads), size_bytes)
    return payloads


def checked_payload(payload: bytes) -> bytes:
    """Raises PayloadTooLarge."""
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
    return payload


def too_much(count: int, size_bytes: int) -> TooMuchForOneTransaction:
    return TooMuchForOneTransaction(
        count=count,
        size_bytes=size_bytes,
        count_max=limits.BATCH_ITEMS_MAX,
        size_bytes_max=limits.BATCH_BYTES_MAX,
    )
