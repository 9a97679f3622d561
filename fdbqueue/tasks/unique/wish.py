"""Wishes of puts for unique keys: their options, checked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_positive, key_bytes
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.tasks.kinds import Kind, delay_us
from fdbqueue.tasks.options import QUEUED, UNFINISHED, OnConflict
from fdbqueue.tasks.records.keys import Unique


class Wish(NamedTuple):
    """The wish of a put for a unique key, beside the key."""

    span_us: int
    """A scope in seconds, as microseconds; 0 for another scope."""
    on_conflict: OnConflict
    latest_us: int = 0
    """Of `debounce`: the longest time from the first put to the due time."""


def asked(options: Mapping[str, Any], kind: Kind, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED. Raises: InvalidArgument, UnsupportedOption."""
    key, wait_us = key_bytes(options["unique"], "unique"), delay_us(options.get("delay", 0))
    scope, on_conflict = options.get("scope", UNFINISHED), options.get("on_conflict", OnConflict.SKIP)
    if on_conflict not in list(OnConflict):
        wanted = '"skip", "replace" or "debounce"'
        raise InvalidArgument(name="on_conflict", wanted=wanted, got=on_conflict)
    debounces = on_conflict == OnConflict.DEBOUNCE
    latest_us = _checked_latest_us(options.get("debounce_max"), debounces, wait_us)
    span_us = 0 if isinstance(scope, str) and scope in (QUEUED, UNFINISHED) else _checked_span_us(scope)
    if debounces:
        kind.require("delay")
    wish = Wish(span_us, OnConflict(on_conflict), latest_us)
    return {"unique": Unique(key, scope == QUEUED), "wish": wish}


def _checked_span_us(scope: Any) -> int:
    wanted = '"queued", "unfinished", or a positive number of seconds below a hundred years'
    if isinstance(scope, str):
        raise InvalidArgument(name="scope", wanted=wanted, got=scope)
    if (seconds := checked_positive("scope", scope, "seconds")) >= limits.SPAN_MAX_S:
        raise InvalidArgument(name="scope", wanted=wanted, got=scope)
    return max(1, round(seconds * 1_000_000))


def _checked_latest_us(debounce_max: Any, debounces: bool, wait_us: int) -> int:
    if not debounces:
        if debounce_max is not None:
            wanted = 'None without on_conflict="debounce"'
            raise InvalidArgument(name="debounce_max", wanted=wanted, got=debounce_max)
        return 0
    if debounce_max is None:
        wanted = "the longest time in seconds from the first put to the due time"
        raise InvalidArgument(name="debounce_max", wanted=wanted, got=None)
    latest_us = round(min(checked_positive("debounce_max", debounce_max, "seconds"), limits.SPAN_MAX_S) * 1e6)
    if latest_us < wait_us:
        wanted = "at least the delay of the put"
        raise InvalidArgument(name="debounce_max", wanted=wanted, got=debounce_max)
    return latest_us
