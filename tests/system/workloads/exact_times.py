"""Times and spans of the workload `exact`: whole microseconds, None for never."""

from collections.abc import Iterable
from math import inf


def micro(span_s: float | None) -> int | None:
    return None if span_s is None or span_s == inf else round(span_s * 1_000_000)


def seconds(time: int | None) -> float | None:
    return None if time is None else time / 1_000_000


def added(time: int | None, span: int | None) -> int | None:
    return None if time is None or span is None else time + span


def earliest(*times: int | None) -> int | None:
    return min(known(times), default=None)


def known(times: Iterable[int | None]) -> Iterable[int]:
    return (time for time in times if time is not None)


def is_over(time: int | None, now: int) -> bool:
    """True if it is that time, or later."""
    return time is not None and time <= now
