"""Wishes: the arguments of a caller, checked, as stored parts of a schedule."""

from collections.abc import Mapping
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text, is_number
from fdbqueue.core.errors import InvalidArgument, PayloadTooLarge
from fdbqueue.tasks.options import PutOptions
from fdbqueue.tasks.schedules.puts import NAME_HEADER, TIME_HEADER
from fdbqueue.tasks.schedules.records import MISSED, Rule
from fdbqueue.tasks.schedules.times import SECOND_US
from fdbqueue.tasks.shape import Shape

NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Those of crontab(5), which the library does not know. A schedule stores the fields."""


def rule_for(expression: Any, every: Any, timezone: Any, missed: Any, now_us: int) -> Rule:
    """Raises: InvalidArgument; ModuleNotFoundError for an expression, without the extra."""
    if (expression is None) == (every is None):
        between = "the seconds between two due times, without an `expression`"
        wanted = between if every is None else "None beside an `expression`"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    checked_missed(missed)
    zone = checked_text("timezone", timezone, limits.SCHEDULE_TIMEZONE_BYTES_MAX)
    if expression is None:
        if zone != "UTC":
            raise InvalidArgument(name="timezone", wanted="UTC with `every`", got=timezone)
        anchor_us = now_us // SECOND_US * SECOND_US
        return Rule(None, _checked_every_us(every), anchor_us, zone, missed)
    text = checked_text("expression", expression, limits.SCHEDULE_EXPRESSION_BYTES_MAX)
    rule = Rule(NICKNAMES.get(text, text), 0, 0, zone, missed)
    if rule.times().after(now_us) is None:
        wanted = "an expression with a time within the next fifty years"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression)
    return rule


def checked_missed(missed: Any) -> str:
    if missed not in MISSED:
        raise InvalidArgument(name="missed", wanted='"once", "all" or "skip"', got=missed)
    return str(missed)


def _checked_every_us(every: Any) -> int:
    if not is_number(every) or not limits.SCHEDULE_EVERY_MIN_S <= every < limits.SPAN_MAX_S:
        wanted = f"{limits.SCHEDULE_EVERY_MIN_S:g} or more seconds, less than a hundred years"
        raise InvalidArgument(name="every", wanted=wanted, got=every)
    return round(float(every) * SECOND_US)


def payload_for(shape: Shape, data: Any) -> bytes:
    """Raises: PayloadTooLarge; TypeError for data that the codec of the queue cannot carry."""
    payload = shape.codec.encode(data)
    if len(payload) > limits.SCHEDULE_DATA_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.SCHEDULE_DATA_BYTES_MAX)
    return payload


def options_for(given: Mapping[str, Any]) -> PutOptions:
    """Raises: as PutOptions.of; InvalidArgument for headers that the schedule gives its tasks."""
    options = PutOptions.of(given)
    if {NAME_HEADER, TIME_HEADER} & set(options.headers or ()):
        wanted = f"without {NAME_HEADER!r} and {TIME_HEADER!r}, which the schedule gives its tasks"
        raise InvalidArgument(name="headers", wanted=wanted, got=given["headers"])
    return options
