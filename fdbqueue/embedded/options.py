"""The binding's options and atomic operations, from its own tables.

A known option is accepted, an unknown one is an AttributeError. Most options tune a cluster's network and
have no effect here. The others are stored in a settings value. The atomic operations are methods of a
transaction and of a database.
"""

import weakref
from collections.abc import Callable
from typing import Any

import fdb.fdboptions as _tables
from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.limits import (
    RETRY_DELAY_MAX_S,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_SIZE_LIMIT_MIN_BYTES,
    WATCHES_LIMIT_MAX,
    WATCHES_MAX,
)
from fdbqueue.embedded.request import Flush

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


class DatabaseSettings(Struct):
    watches_max: int = WATCHES_MAX


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


def _bounded(low: int, high: int, value: Any) -> int:
    if not low <= value <= high:
        raise FDBError(2006)
    return int(value)


_INT_MAX = 2**31 - 1

Setter = Callable[[TransactionSettings, Any], None]


def _set(name: str, value: Any) -> Setter:
    return lambda settings, _: setattr(settings, name, value)


def _set_bounded(name: str, low: int, high: int, scale: float = 1) -> Setter:
    def setter(settings: TransactionSettings, value: Any) -> None:
        bounded = _bounded(low, high, value)
        setattr(settings, name, bounded if scale == 1 else bounded * scale)

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

# A database option that sets a default for transactions is this prefix and the transaction option's name.
_DEFAULT_PREFIX = "transaction_"


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


def apply_database_option(
    settings: DatabaseSettings, defaults: TransactionSettings, name: str, param: Any
) -> None:
    if name == "max_watches":
        settings.watches_max = _bounded(0, WATCHES_LIMIT_MAX, param)
    apply_transaction_option(defaults, name.removeprefix(_DEFAULT_PREFIX), param)


def options_for(owner: Any, options: type[_Options]) -> _Options:
    reference = weakref.WeakMethod(owner._set_option)

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
