"""Names of limits, as calls and queues give them: their checks, and the limits that they name."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_items, checked_text, key_bytes
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.tasks.limiting.keys import LimitKeys
from fdbqueue.tasks.limiting.rule import known_rule


def keys_of(name: Any, root: Any) -> LimitKeys:
    return LimitKeys(RootKeys(root).prefix, checked_limit_name(name))


def checked_limit_name(name: Any) -> str:
    return checked_text("limit", name, limits.QUEUE_NAME_BYTES_MAX)


def checked_limit_names(argument: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """The names of limits in order, each once. Raises InvalidArgument."""
    given = () if names is None else checked_items(argument, names)
    checked = tuple(sorted({checked_limit_name(name) for name in given}))
    if len(checked) > limits.LIMITS_PER_QUEUE_MAX:
        wanted = f"at most {limits.LIMITS_PER_QUEUE_MAX} names of limits"
        raise InvalidArgument(name=argument, wanted=wanted, got=given)
    return checked


def checked_named(argument: str, named: Any) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """The names of limits in order, each once, and the packed keys that some of them have."""
    names = checked_limit_names(argument, [*named] if isinstance(named, Mapping) else named)
    if not isinstance(named, Mapping):
        return names, {}
    keys = {name: key_bytes(key, argument) for name, key in named.items() if key is not None}
    if len(keys) > 1:
        wanted = "at most one limit with a key: a task waits for one key at a time"
        raise InvalidArgument(name=argument, wanted=wanted, got=named)
    return names, keys


def checked_limits(
    of_all: Iterable[str] | None, named: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits of all tasks of a queue, and those that its tasks may name. Raises InvalidArgument."""
    limits_of_all, task_limits = (
        checked_limit_names("limits", of_all),
        checked_limit_names("task_limits", named),
    )
    if not set(limits_of_all).isdisjoint(task_limits):
        wanted = "other names than those in `limits`, which hold for all tasks"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    if sum(len(name.encode()) for name in task_limits) > limits.TASK_LIMITS_BYTES_MAX:
        wanted = f"names of at most {limits.TASK_LIMITS_BYTES_MAX} bytes together"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    return limits_of_all, task_limits


def require_limits(target: DatabaseOrTransaction, prefix: bytes, names: Sequence[str]) -> None:
    """Reads: the limits, serialisably. LimitNotFound for a name that has none; LimitUnreadable."""
    run(target, partial(_require, keys=[LimitKeys(prefix, name) for name in names]))


def _require(tr: Transaction, keys: Sequence[LimitKeys]) -> None:
    asked = [(one, tr.get(one.row)) for one in keys]
    for one, row in asked:
        known_rule(one.name, row.value)
