"""Futures with the binding's surface, and `Value` and `Key`: futures of bytes that behave as bytes.

This engine answers a read at once, so the future of a read is ready when it is returned. Waiting for it
raises the error of a failed read, as in the binding. Watches and versionstamps are `PendingFuture`s.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.runtime import RealRuntime, Runtime, wait_any
from fdbqueue.core.trouble import Troubles
from fdbqueue.core.visible import SURVIVED

log = logging.getLogger("fdbqueue.embedded")

Callback = Callable[[Any], None]


class Future:
    """A future that is ready: a result, or an error that `wait` raises."""

    __slots__ = ("_error", "_result")

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self._result = result
        self._error = error

    def wait(self) -> Any:
        """Block until ready, and return the result.

        Raises: FDBError.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def is_ready(self) -> bool:
        return True

    def block_until_ready(self) -> None:
        """Wait, and ignore the result."""

    def on_ready(self, callback: Callback) -> None:
        """Call `callback(self)` once ready; its exceptions are logged, since no caller waits for them."""
        _call_back(callback, self)

    def cancel(self) -> None:
        """Do nothing: a ready future cannot be cancelled."""

    def done(self) -> bool:
        return self.is_ready()

    def result(self) -> Any:
        if not self.done():
            raise RuntimeError("Future result not available")
        return self.wait()

    def exception(self) -> Exception | None:
        if not self.done():
            raise RuntimeError("Future result not available")
        return self._error

    def cancelled(self) -> bool:
        return self.done() and getattr(self.exception(), "code", 0) == _CANCELLED

    @staticmethod
    def wait_for_any(*futures: "Future") -> int:
        """Wait until a future is ready, and return its index."""
        if not futures:
            raise ValueError("wait_for_any requires at least one future")
        while True:
            for index, future in enumerate(futures):
                if future.is_ready():
                    return index
            wait_any(_REAL, futures, None)


_CANCELLED = 1101
_REAL = RealRuntime()
_troubles = Troubles(_REAL)


def _call_back(callback: Callback, future: Future) -> None:
    try:
        callback(future)
    except SURVIVED as error:  # later callbacks must run: waiting threads depend on them
        _troubles.met(log, "Discarding uncaught exception from user FDB callback", error)


class PendingFuture(Future):
    """A future that another thread, or a later call, will complete. Dropping the last reference cancels it,
    unless a callback waits for it. The binding has this rule too; it keeps abandoned watches from piling up.
    """

    __slots__ = ("__weakref__", "_callbacks", "_on_done", "_ready", "_runtime")

    def __init__(self, runtime: Runtime, on_done: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._runtime = runtime
        self._ready = False
        self._callbacks: list[Callback] = []
        self._on_done = on_done

    def complete(self, result: Any = None, error: Exception | None = None) -> None:
        """Only the first call has an effect."""
        with _outcome_lock:
            if self._ready:
                return
            self._result, self._error, self._ready = result, error, True
            callbacks, self._callbacks = self._callbacks, []
            _waited_for.pop(id(self), None)
        if self._on_done is not None:
            self._on_done()
        for callback in callbacks:
            _call_back(callback, self)

    def is_ready(self) -> bool:
        return self._ready

    def on_ready(self, callback: Callback) -> None:
        with _outcome_lock:
            if not self._ready:
                self._callbacks.append(callback)
                _waited_for[id(self)] = self
                return
        _call_back(callback, self)

    def block_until_ready(self) -> None:
        if not self._ready:
            wait_any(self._runtime, [self], None)

    def wait(self) -> Any:
        self.block_until_ready()
        return super().wait()

    def cancel(self) -> None:
        """Complete it with FDBError 1101, if it is not ready."""
        self.complete(error=FDBError(_CANCELLED))

    def __del__(self) -> None:
        if not self._ready:
            self._ready = True
            if self._on_done is not None:
                self._on_done()


# Destructors run at any allocation and may complete a future. So no code under this lock may drop the last
# reference to another future.
_outcome_lock = RealRuntime.lock()
_waited_for: dict[int, PendingFuture] = {}  # by id: a future of bytes hashes as its bytes


def _after_fork_in_child() -> None:
    global _outcome_lock
    _outcome_lock = RealRuntime.lock()  # a thread of the parent may hold the parent's lock for ever here


os.register_at_fork(after_in_child=_after_fork_in_child)


class DelayFuture(Future):
    """A future that is ready after `delay_s` of the runtime's clock: the back-off of `on_error`."""

    __slots__ = ("_due_s", "_runtime")

    def __init__(self, runtime: Runtime, delay_s: float, error: Exception | None = None) -> None:
        super().__init__(error=error)
        self._runtime = runtime
        self._due_s = runtime.monotonic() + delay_s

    def is_ready(self) -> bool:
        return self._runtime.monotonic() >= self._due_s

    def block_until_ready(self) -> None:
        left_s = self._due_s - self._runtime.monotonic()
        if left_s > 0:
            self._runtime.sleep(left_s)

    def wait(self) -> Any:
        self.block_until_ready()
        return super().wait()

    def on_ready(self, callback: Callback) -> None:
        def later() -> None:
            self.block_until_ready()
            _call_back(callback, self)

        self._runtime.spawn(later, "fdbqueue-delay")


class _BytesLike:
    """The methods that a future of bytes has beside those of a future: those of its bytes."""

    __slots__ = ()
    _error: Exception | None
    _result: Any

    @property  # type: ignore[misc]  # object's can be assigned, this one cannot
    def __class__(self) -> type:  # isinstance(value, bytes) holds, as in the binding
        return bytes

    @property
    def value(self) -> Any:
        """The bytes, or None for an absent key. Raises: FDBError."""
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self) -> Any:
        self.value  # noqa: B018  # raises the error of a failed read
        return self

    def present(self) -> bool:
        return self.value is not None

    def as_foundationdb_key(self) -> Any:
        return self.value

    def as_foundationdb_value(self) -> Any:
        return self.value

    def __str__(self) -> str:
        return str(self.value)

    def __bytes__(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __add__(self, other: Any) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return _plain(other) + self.value

    def __mul__(self, count: Any) -> Any:
        return self.value * count

    def __rmul__(self, count: Any) -> Any:
        return count * self.value

    def __lt__(self, other: Any) -> Any:
        return self.value < _plain(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= _plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > _plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= _plain(other)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __int__(self) -> int:
        return int(self.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)


def _plain(other: Any) -> Any:
    return other.value if _BytesLike in type(other).__mro__ else other


class Value(_BytesLike, Future):
    """The value of a key, or None."""

    __slots__ = ()


class Key(Value):
    """The key that a key selector named."""

    __slots__ = ()


class PendingKey(_BytesLike, PendingFuture):
    """A versionstamp, ready after the commit."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        return PendingFuture.wait(self)


def key_bytes(key: Any) -> bytes:
    """Return the bytes of a key argument: bytes, a Subspace, or a Value. Raises: TypeError."""
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key if type(key) is bytes else bytes(key)  # the commit log cannot encode a subclass of bytes


def value_bytes(value: Any) -> bytes:
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value if type(value) is bytes else bytes(value)
