"""Rule: the stored numbers of a limit. It is one of slots, or one of starts."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_items, checked_positive, checked_text, key_bytes
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, LimitNotFound, LimitUnreadable
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.limiting.keys import LimitKeys

_Whole = Annotated[int, msgspec.Meta(ge=0)]


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """A limit of `slots`: that number of tasks runs at a time. Or one of starts: `rate` tokens come in
    `per_us`, a bucket has room for `burst` of them, and each start takes one. Append values to `more`
    (records/extra.py).
    """

    slots: _Whole = 0
    rate: _Whole = 0
    per_us: _Whole = 0
    burst: _Whole = 0
    per_key: bool = False
    """True if each key that tasks name has slots, or tokens, of its own."""
    has_keys: bool = False
    """True if sweeps may have keys to look at: those of this rule, or of one before it."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""

    @property
    def is_of_slots(self) -> bool:
        return not self.rate


rule_to_bytes = msgspec.msgpack.Encoder().encode
_rule_of = msgspec.msgpack.Decoder(Rule).decode


@lru_cache(maxsize=256)
def rule_of(value: bytes | None) -> Rule | None:
    """None for a limit that does not exist, or that cannot be read: it limits nothing."""
    try:
        rule = None if value is None else _rule_of(value)
    except DAMAGED:
        return None
    return rule if rule is None or rule.is_of_slots or (rule.per_us and rule.burst) else None


def known_rule(name: str, value: bytes | None) -> Rule:
    rule = rule_of(value)
    if rule is None:
        raise error_of(name, value) or LimitNotFound(name=name)
    return rule


def error_of(name: str, value: bytes | None) -> LimitUnreadable | None:
    """The error of a limit that cannot be read; None for one that can, or that does not exist."""
    if value is None or rule_of(value) is not None:
        return None
    try:
        _rule_of(value)
    except DAMAGED as error:
        return LimitUnreadable(name=name, reason=f"it is damaged: {error}")
    return LimitUnreadable(name=name, reason="it is damaged: a rate with no span of time, or no burst")


def checked_rule(slots: Any, rate: Any, per: Any, burst: Any, per_key: Any = False) -> Rule:
    """Raises: InvalidArgument unless it has either slots, or a rate with its span of time."""
    if not isinstance(per_key, bool):
        raise InvalidArgument(name="per_key", wanted="True or False", got=per_key)
    return msgspec.structs.replace(
        _checked_numbers(slots, rate, per, burst), per_key=per_key, has_keys=per_key
    )


def _checked_numbers(slots: Any, rate: Any, per: Any, burst: Any) -> Rule:
    if (slots is None) == (rate is None):
        wanted = "a number beside no `rate`, or None beside a `rate`"
        raise InvalidArgument(name="slots", wanted=wanted, got=slots)
    if slots is not None:
        for name, value in (("per", per), ("burst", burst)):
            if value is not None:
                raise InvalidArgument(name=name, wanted="None beside `slots`", got=value)
        return Rule(slots=checked_count("slots", slots, limits.SLOTS_MAX))
    return _checked_rate(rate, per, burst)


def _checked_rate(rate: Any, per: Any, burst: Any) -> Rule:
    if per is None:
        raise InvalidArgument(name="per", wanted="the seconds in which `rate` tasks may start", got=per)
    per_us = round(min(checked_positive("per", per, "seconds"), limits.RATE_SPAN_MAX_S) * 1_000_000)
    most = max(1, per_us * limits.STARTS_PER_S_MAX // 1_000_000)
    rate = checked_count("rate", rate, most)
    default = max(1, rate // limits.BURST_SHARE)
    burst = default if burst is None else checked_count("burst", burst, limits.BURST_MAX)
    return Rule(rate=rate, per_us=max(1, per_us), burst=burst)


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
