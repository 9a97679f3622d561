"""The checks at the door: each public call checks its arguments here, before it reads or writes anything.

One rule for numbers. A span (ttl, ttr, the limit of an attempt) is above 0, and inf is for ever. A timeout is
0 or more, and inf is for ever; a take's timeout of 0 or less is one attempt. A delay below 0 is 0. Any other
length of time is finite. A count is whole, and 1 or more; that of a kick may be 0. A bool and a nan are no
numbers.

A text can be written as UTF-8. A refusal names the argument and shows a short form of its value.

A *deferred* body has not run: a call of a coroutine function or a generator function runs no line of it.
Called as a plain function, such a handler does nothing and looks as if it had succeeded. So a function is
checked where it is handed over. A plain function may still return a coroutine, as a decorated one does: its
result is checked at each call.
"""

import contextlib
import inspect
import os
from base64 import b32hexdecode
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import is_transaction
from fdbqueue.core.errors import (
    DeferredBody,
    DeferredResult,
    InvalidArgument,
    NotADatabase,
    PayloadTooLarge,
    TooMuchForOneTransaction,
    WrongType,
)
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Transaction
from fdbqueue.core.visible import counted, shown

T = TypeVar("T")

WHOLE_MAX = 2**62
"""The bound of whole numbers without a bound of their own."""


def writable(tr: Any) -> Transaction:
    """Raises NotADatabase for a snapshot, where a transaction is wanted."""
    if not hasattr(tr, "commit"):
        raise NotADatabase(got="a snapshot")
    transaction: Transaction = tr
    return transaction


# Texts, and places in the key space.


def checked_text(name: str, text: Any, bytes_max: int) -> str:
    """A text of 1 to `bytes_max` bytes. Raises InvalidArgument."""
    if not isinstance(text, str) or not 0 < _size_bytes(text) <= bytes_max:
        raise InvalidArgument(name=name, wanted=f"a text of 1 to {bytes_max} bytes", got=text)
    return str.__str__(text)  # a subclass of str may encode itself in another way: this makes a plain str


def _size_bytes(text: str) -> int:
    """The length as UTF-8; 0 for a text with half a surrogate pair, which has none."""
    try:
        return len(str.encode(text))
    except UnicodeEncodeError:
        return 0


def checked_bytes(name: str, value: Any, bytes_max: int) -> bytes:
    if not isinstance(value, bytes) or len(value) > bytes_max:
        raise InvalidArgument(name=name, wanted=f"at most {bytes_max} bytes", got=value)
    return bytes(value)


def checked_path(name: str, path: Any) -> Path:
    """The path of a file. Raises WrongType, InvalidArgument for a path that no file system can have."""
    if not isinstance(path, str | os.PathLike):
        raise WrongType(name=name, wanted="a path", got=path)
    try:
        written = os.fsencode(path)
    except UnicodeEncodeError:
        written = b"\x00"
    if b"\x00" in written or not written:
        raise InvalidArgument(name=name, wanted="a path that the file system can have", got=path)
    return Path(os.fsdecode(written))


def checked_prefix(name: str, subspace: Any) -> bytes:
    """The key of a subspace, whatever its class. Raises WrongType, InvalidArgument for a long one."""
    key = getattr(subspace, "key", None)
    prefix = key() if callable(key) and not isinstance(subspace, type) else None
    if not isinstance(prefix, bytes):
        raise WrongType(name=name, wanted="a Subspace", got=subspace)
    if len(prefix) > limits.SUBSPACE_BYTES_MAX:
        wanted = f"a Subspace of at most {limits.SUBSPACE_BYTES_MAX} bytes"
        raise InvalidArgument(name=name, wanted=wanted, got=subspace)
    return prefix


def checked_instance(name: str, value: Any, wanted: type[T]) -> T:
    if not isinstance(value, wanted):
        raise WrongType(name=name, wanted=f"a {wanted.__name__}", got=value)
    return value


# Numbers.


def is_number(value: Any) -> bool:
    """True if `value` is an int or a float; not for a bool, not for nan."""
    # A comparison, not math.isnan: that overflows on an int that is too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def checked_fraction(name: str, value: Any) -> float:
    """A number from 0 to 1. Raises InvalidArgument."""
    if not is_number(value) or not 0 <= value <= 1:
        raise InvalidArgument(name=name, wanted="a number from 0 to 1", got=value)
    return float(value)


def is_whole(value: Any) -> bool:
    """True if `value` is an int; not for a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def checked_int(name: str, number: Any) -> int:
    """Raises WrongType, with the message of dirq."""
    if not is_whole(number):
        message = f"{name!r} should be an int, not {shown(number)}"
        raise WrongType(message, name=name, wanted="an int", got=number)
    return int(number)


def checked_whole(name: str, number: Any, low: int, high: int = WHOLE_MAX) -> int:
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
        raise too_many(number)
    return int(number)


def require_verb_batch(count: int) -> None:
    """Raises: TooMuchForOneTransaction for more tasks than a verb changes in one transaction."""
    if count > limits.VERB_BATCH:
        raise too_many(count, limits.VERB_BATCH)


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
    seconds = 0.0 if type(timeout) is int and not timeout else checked_timeout(timeout)
    if seconds and is_transaction(target):
        raise InvalidArgument(name="timeout", wanted="0 in a transaction, which cannot wait", got=timeout)
    return seconds


def checked_overtake(overtake: Any, target: Any) -> int:
    """A number of older items that a take may leave behind. Raises InvalidArgument."""
    number = checked_whole("overtake", overtake, 0, limits.OVERTAKE_MAX)
    if number and is_transaction(target):
        raise InvalidArgument(name="overtake", wanted="0 in a transaction: it takes the first", got=overtake)
    return number


def checked_stop(stop: Stop | None, target: Any) -> None:
    """Raises InvalidArgument for a `stop` that is no event, or that stands beside a transaction."""
    if stop is None:
        return
    if is_transaction(target):
        raise InvalidArgument(name="stop", wanted="None in a transaction, which cannot wait", got=stop)
    checked_event("stop", stop)


def checked_event(name: str, event: Any) -> None:
    """Raises WrongType unless the argument is None or an event."""
    if event is not None and (isinstance(event, type) or not callable(getattr(event, "is_set", None))):
        raise WrongType(name=name, wanted="an event, such as db.runtime.event()", got=event)


def checked_take_timeout(timeout: Any) -> float:
    """The timeout of a take: 0 is one attempt, limits.SPAN_MAX_S is for ever. Raises InvalidArgument."""
    if timeout is None:
        return limits.SPAN_MAX_S
    if type(timeout) is not int and not is_number(timeout):
        wanted = "seconds (0 or less: one attempt), or None or inf for ever"
        raise InvalidArgument(name="timeout", wanted=wanted, got=timeout)
    return float(min(max(timeout, 0), limits.SPAN_MAX_S))


def checked_delay(delay: Any) -> float:
    """A delay; a negative one becomes 0. Raises InvalidArgument."""
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

NO_BATCHES = (type, str, bytes, bytearray, memoryview, Mapping)
"""Classes of objects that can be iterated, and are one value all the same."""


def checked_items(name: str, items: Iterable[T]) -> list[T]:
    """The items of a batch; reads at most one beyond the limit.

    Raises WrongType for an object that cannot be iterated, and for a text, bytes or a mapping: its letters,
    numbers or keys are not what its caller meant. TooMuchForOneTransaction.
    """
    if not isinstance(items, Iterable) or isinstance(items, NO_BATCHES):
        raise WrongType(name=name, wanted="several values, such as a list", got=items)
    few = list(islice(items, limits.BATCH_ITEMS_MAX + 1))
    if len(few) > limits.BATCH_ITEMS_MAX:
        raise too_many(len(few))
    return few


def checked_batch(payloads: list[bytes]) -> list[bytes]:
    size_bytes = sum(map(len, payloads))
    if len(payloads) > limits.BATCH_ITEMS_MAX or (len(payloads) > 1 and size_bytes > limits.BATCH_BYTES_MAX):
        raise too_much(len(payloads), size_bytes)
    return payloads


def checked_payload(payload: bytes) -> bytes:
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
    return payload


def too_many(count: int, count_max: int = limits.BATCH_ITEMS_MAX) -> TooMuchForOneTransaction:
    """Make the error for `count` items or more, without their bytes."""
    found, most = f"{counted(count, 'item')} or more", counted(count_max, "item")
    return TooMuchForOneTransaction(found=found, most=most, count=count, count_max=count_max)


def too_much(
    count: int, size_bytes: int, size_bytes_max: int = limits.BATCH_BYTES_MAX
) -> TooMuchForOneTransaction:
    found = f"{counted(count, 'item')} of {counted(size_bytes, 'byte')}"
    most = f"{counted(limits.BATCH_ITEMS_MAX, 'item')} of {counted(size_bytes_max, 'byte')}"
    return TooMuchForOneTransaction(
        found=found, most=most, count=count, size_bytes=size_bytes, size_bytes_max=size_bytes_max
    )


def checked_id(name: str, text: Any, size_bytes: int, wanted: str) -> bytes:
    """The bytes of a printed id (base32 with the extended hex alphabet). Raises InvalidArgument."""
    try:
        id_ = b32hexdecode(text)
    except (TypeError, ValueError):
        id_ = b""
    if len(id_) != size_bytes or not isinstance(text, str):
        raise InvalidArgument(name=name, wanted=wanted, got=text)
    return id_


def key_bytes(key: Any, name: str = "key") -> bytes:
    """The packed task key, or unique key. Raises: InvalidArgument."""
    if isinstance(key, tuple | list) and (wanted := _missing_in(key)):
        raise InvalidArgument(name=name, wanted=wanted, got=key)
    # The tuple layer keeps values of different types apart: 1, "1", True and None are four keys.
    try:
        packed: bytes = layer.pack((key,))
    except Exception as reason:  # the tuple layer raises struct.error, RecursionError and others besides
        raise InvalidArgument(name=name, wanted="a value that the tuple layer can pack", got=key) from reason
    if len(packed) > limits.TASK_KEY_BYTES_MAX:
        wanted = f"at most {limits.TASK_KEY_BYTES_MAX} bytes when packed"
        raise InvalidArgument(name=name, wanted=wanted, got=key)
    return packed


def _missing_in(key: Any) -> str:
    """The rule that a tuple or list breaks, or nothing.

    The tuple layer packs a list as a tuple, so [1] and (1,) would be one key. It recurses, too, so a deep
    key may exhaust any stack.
    """
    level = [key]
    for _ in range(limits.TASK_KEY_DEPTH_MAX):
        if any(isinstance(value, list) for value in level):
            return "a tuple in place of each list"
        level = [part for value in level if isinstance(value, tuple) for part in value]
        if not level or len(level) > limits.TASK_KEY_BYTES_MAX:
            return ""  # a key that is too wide is refused for its size
    deep = any(isinstance(value, tuple | list) for value in level)
    return f"nested at most {limits.TASK_KEY_DEPTH_MAX} levels deep" if deep else ""


F = TypeVar("F", bound=Callable[..., Any])

IN_A_PLAIN_FUNCTION = "A plain function may run a coroutine with asyncio.run()."
NOT_YIELDING = "A plain function returns, and does not yield."

_BODIES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.isasyncgenfunction, "an asynchronous generator function"),
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
# The code of a function that contextlib.contextmanager has made.
_MANAGERS = (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager)


def checked_function(name: str, function: F, wanted: str = "a function") -> F:
    """`function`. Raises InvalidArgument if it cannot be called, DeferredBody if a call runs no body."""
    if not callable(function):
        raise InvalidArgument(name=name, wanted=wanted, got=function)
    kind = deferred_body(function)
    if kind is not None:
        raise DeferredBody(name=name, kind=kind, got=function, cure=_cure(kind, IN_A_PLAIN_FUNCTION))
    return function


def deferred_body(function: Any) -> str | None:
    """The kind of function, if a call of it runs no body; None for a plain one."""
    while isinstance(function, partial):
        function = function.func
    # A call of an object runs a method of its class; a call of a class runs __init__.
    called = (function, inspect.getattr_static(type(function), "__call__", None))
    return next((kind for test, kind in _BODIES for part in called if test(part)), None)


def require_finished(name: str, result: T, cure: str = IN_A_PLAIN_FUNCTION) -> T:
    """`result`. Raises DeferredResult for a coroutine, another awaitable or a generator, which is closed."""
    kind = _deferred_result(result)
    if kind is None:
        return result
    try:
        # Python warns of a coroutine that is never awaited, unless it is closed.
        close = getattr(getattr(result, "gen", result), "close", None)
        if callable(close):
            close()
    finally:
        raise DeferredResult(name=name, kind=kind, cure=_cure(kind, cure))


def is_of_generator(kind: str) -> bool:
    """True for the kind of a generator function, and of its result."""
    return "generator" in kind


def _cure(kind: str, of_coroutine: str) -> str:
    return NOT_YIELDING if is_of_generator(kind) else of_coroutine


def _deferred_result(result: object) -> str | None:
    if inspect.iscoroutine(result):
        return "a coroutine"
    if inspect.isawaitable(result):
        return f"an awaitable ({type(result).__name__})"
    if isinstance(result, Generator | AsyncGenerator):
        return "a generator"
    return "a context manager of a generator" if isinstance(result, _MANAGERS) else None
