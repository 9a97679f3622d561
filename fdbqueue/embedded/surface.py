"""What the binding's classes hand out: futures, options and atomic operations.

This engine answers a read at once, so the future of a read is ready when it is returned. Waiting for it
raises the error of a failed read, as in the binding. `Value` and `Key` are futures of bytes that behave as
bytes. Watches and versionstamps are `PendingFuture`s.

Options and atomic operations come from the binding's own tables. A known option is accepted, an unknown one
is an AttributeError. Most options tune a cluster's network and have no effect here. The others are stored in
a settings value. The atomic operations are methods of a transaction and of a database.
"""

import logging
import operator
import os
import weakref
from collections.abc import Callable
from typing import Any

import fdb.fdboptions as _tables
from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core.limits import RETRY_DELAY_MAX_S, TRANSACTION_BYTES_MAX, TRANSACTION_SIZE_LIMIT_MIN_BYTES
from fdbqueue.core.logger import Troubles
from fdbqueue.core.runtime import RealRuntime, Runtime, wait_any
from fdbqueue.core.seam import FDBError
from fdbqueue.core.visible import SURVIVED
from fdbqueue.embedded.writes import Flush

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


def _plain(other: Any) -> Any:
    return other.value if _BytesLike in type(other).__mro__ else other


def _of_its_bytes(function: Callable[..., Any]) -> Any:
    """Return `function` as a method of a future of bytes: it gets the bytes."""
    return lambda self, *others: function(self.value, *map(_plain, others))


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

    as_foundationdb_value = __bytes__ = as_foundationdb_key

    __str__ = _of_its_bytes(str)
    __repr__ = _of_its_bytes(repr)
    __hash__ = _of_its_bytes(hash)
    __len__ = _of_its_bytes(len)
    __int__ = _of_its_bytes(int)
    __getitem__ = _of_its_bytes(operator.getitem)
    __add__ = _of_its_bytes(operator.add)
    __radd__ = _of_its_bytes(lambda value, other: other + value)
    __mul__ = __rmul__ = _of_its_bytes(operator.mul)
    __lt__ = _of_its_bytes(operator.lt)
    __le__ = _of_its_bytes(operator.le)
    __gt__ = _of_its_bytes(operator.gt)
    __ge__ = _of_its_bytes(operator.ge)
    __eq__ = _of_its_bytes(operator.eq)
    __ne__ = _of_its_bytes(operator.ne)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)


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


USER_END, SYSTEM_END = b"\xff", b"\xff\xff"


class TransactionSettings(Struct):
    timeout_ms: int = 0
    retry_limit: int = -1
    max_retry_delay_s: float = RETRY_DELAY_MAX_S
    size_limit_bytes: int = TRANSACTION_BYTES_MAX
    snapshot_ryw: int = 1  # enabled while positive: enable and disable count up and down
    read_your_writes: bool = True
    next_write_silent: bool = False
    bypass_unreadable: bool = False
    read_end: bytes = USER_END  # the first key out of reach
    write_end: bytes = USER_END
    reuse_during_commit: bool = False
    bypass_storage_quota: bool = False
    flush: Flush = Flush.NOW


# The options of the retry loop, which on_error keeps (API version 610).
_PERSISTENT = ("timeout_ms", "retry_limit", "max_retry_delay_s")


def for_another_attempt(
    settings: TransactionSettings, defaults: TransactionSettings, database: TransactionSettings
) -> TransactionSettings:
    """Return the settings of a transaction after on_error. `defaults` are the database's settings when the
    transaction was created or reset. `database` are its present ones; like a cluster's client, this takes
    only `snapshot_ryw` from them.
    """
    kept = {name: getattr(settings, name) for name in _PERSISTENT}
    return replace(defaults, snapshot_ryw=database.snapshot_ryw, **kept)


def bounded(low: int, high: int, value: Any) -> int:
    if not low <= value <= high:
        raise FDBError(2006)
    return int(value)


_INT_MAX = 2**31 - 1

Setter = Callable[[TransactionSettings, Any], None]


def _set(name: str, value: Any) -> Setter:
    return lambda settings, _: setattr(settings, name, value)


def _set_bounded(name: str, low: int, high: int, scale: float = 1) -> Setter:
    def setter(settings: TransactionSettings, value: Any) -> None:
        number = bounded(low, high, value)
        setattr(settings, name, number if scale == 1 else number * scale)

    return setter


def _count_snapshot_ryw(step: int) -> Setter:
    def setter(settings: TransactionSettings, _: Any) -> None:
        settings.snapshot_ryw += step

    return setter


def _flush_later(flush: Flush) -> Setter:
    def setter(settings: TransactionSettings, _: Any) -> None:
        settings.flush = max(settings.flush, flush)

    return setter


def _access_system_keys(settings: TransactionSettings, _: Any) -> None:
    settings.read_end = settings.write_end = SYSTEM_END


TRANSACTION_SETTERS: dict[str, Setter] = {
    "timeout": _set_bounded("timeout_ms", 0, _INT_MAX),
    "retry_limit": _set_bounded("retry_limit", -1, _INT_MAX),
    "max_retry_delay": _set_bounded("max_retry_delay_s", 0, _INT_MAX, 0.001),
    "size_limit": _set_bounded("size_limit_bytes", TRANSACTION_SIZE_LIMIT_MIN_BYTES, TRANSACTION_BYTES_MAX),
    "snapshot_ryw_enable": _count_snapshot_ryw(1),
    "snapshot_ryw_disable": _count_snapshot_ryw(-1),
    "read_your_writes_disable": _set("read_your_writes", False),
    "next_write_no_write_conflict_range": _set("next_write_silent", True),
    "bypass_unreadable": _set("bypass_unreadable", True),
    "read_system_keys": _set("read_end", SYSTEM_END),
    "access_system_keys": _access_system_keys,
    "used_during_commit_protection_disable": _set("reuse_during_commit", True),
    "bypass_storage_quota": _set("bypass_storage_quota", True),
    "durability_risky": _flush_later(Flush.SOON),
    "durability_dev_null_is_web_scale": _flush_later(Flush.NEVER),
}


class _Options:
    """`set_NAME(param)` for every option of one of the binding's tables."""

    _table: dict[str, Any] = {}

    def __init_subclass__(cls) -> None:
        for name, entry in cls._table.items():
            setter = _option_setter(name.lower(), entry[2])
            setattr(cls, setter.__name__, setter)

    def __init__(self, apply: Callable[[str, Any], None]) -> None:
        self._apply = apply


def _option_setter(name: str, parameter_type: type) -> Callable[..., None]:
    def setter(self: _Options, param: Any = None) -> None:
        _check_parameter(parameter_type, param)
        self._apply(name, param)

    setter.__name__ = f"set_{name}"
    return setter


def _check_parameter(wanted: type, given: Any) -> None:
    if wanted is type(None) and given is not None:
        raise TypeError("This option takes no argument")
    if wanted is int and not isinstance(given, int):
        raise TypeError("Value must be of type int")
    if wanted is bytes and given is not None and not isinstance(given, bytes):
        raise TypeError("Value must be of type bytes")
    if wanted is str and given is not None and not isinstance(given, str | bytes):
        raise TypeError("Parameter must be a string")


class TransactionOptions(_Options):
    # The binding 7.1 does not have this one.
    _table = {"bypass_storage_quota": (304, "", type(None), None)} | _tables.TransactionOption


class DatabaseOptions(_Options):
    _table = _tables.DatabaseOption


class NetworkOptions(_Options):
    """`fdb.options`: all are accepted, and none has an effect, since there is no network."""

    _table = _tables.NetworkOption


network_options = NetworkOptions(lambda _name, _param: None)


def apply_transaction_option(settings: TransactionSettings, name: str, param: Any) -> None:
    setter = TRANSACTION_SETTERS.get(name)
    if setter is not None:
        setter(settings, param)


def options_for(owner: Any, options: type[_Options]) -> _Options:
    reference = weakref.WeakMethod(owner.step_option)

    def apply(name: str, param: Any) -> None:
        method = reference()
        if method is not None:
            method(name, param)

    return options(apply)


def _enum(table: dict[str, Any]) -> Any:
    return type("Enum", (), {"__slots__": (), **{name.lower(): entry[0] for name, entry in table.items()}})()


StreamingMode = _enum(_tables.StreamingMode)
ConflictRangeType = _enum(_tables.ConflictRangeType)
MUTATIONS: dict[str, int] = {name.lower(): entry[0] for name, entry in _tables.MutationType.items()}


def _mutation(name: str, opcode: int) -> Callable[..., None]:
    def operation(self: Any, key: Any, param: Any) -> None:
        self._atomic_operation(opcode, key, param)

    operation.__name__ = name
    operation.__doc__ = f"The atomic operation {name}: see the binding's documentation."
    return operation


def add_mutations(owner: type) -> None:
    """Add a method for each atomic operation to a class, and its alias with `bit_`, as the binding does."""
    for name, opcode in MUTATIONS.items():
        setattr(owner, name, _mutation(name, opcode))
        setattr(owner, f"bit_{name}", _mutation(f"bit_{name}", opcode))
