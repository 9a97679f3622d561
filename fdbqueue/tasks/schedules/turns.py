"""Turns: the due times for which a pass puts tasks, and the next due time. Pure.

The next due time follows from the due times, never from the clock of the process that passes: clocks that
differ by less than limits.CLOCK_SKEW_S leave out no due time, and give none twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.tasks.schedules.records import ONCE, SKIP
from fdbqueue.tasks.schedules.times import SECOND_US, Times


@dataclass(frozen=True)
class Turn:
    """The due times that get a task each, and the next due time; None if there is no other."""

    times_us: Sequence[int]
    next_us: int | None


def turn_of(times: Times, missed: str, due_us: int, now_us: int, most: int | None = None) -> Turn:
    """The turn of a schedule that is due.

    At most `most` due times get a task, by default limits.SCHEDULE_FIRED_MAX; the next turn goes on behind
    them. A due time is missed if it is over for more than limits.SCHEDULE_MISSED_AFTER_S.
    """
    late_us = now_us - round(limits.SCHEDULE_MISSED_AFTER_S * SECOND_US)
    first_us: int | None = due_us
    if due_us < late_us and missed == ONCE:
        last_us = times.last_until(now_us, due_us)
        return Turn((last_us,), times.after(last_us))
    if due_us < late_us and missed == SKIP:
        first_us = times.after(late_us - 1)
    chosen: list[int] = []
    most = limits.SCHEDULE_FIRED_MAX if most is None else most
    while first_us is not None and first_us <= now_us and len(chosen) < most:
        chosen.append(first_us)
        first_us = times.after(first_us)
    return Turn(chosen, first_us)


def retry_us(now_us: int, tries: int) -> int:
    waits = limits.SCHEDULE_RETRY_FIRST_S * 2.0 ** min(tries - 1, 30)
    return now_us + round(min(waits, limits.SCHEDULE_RETRY_MAX_S) * SECOND_US)
