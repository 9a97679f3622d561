"""Names of elements: `DDDDDDDD/EEEEEEEEEEEEEE`, hexadecimal, in order of time (elements.md 1).

The second part has eight digits for the second of the add, five for the microsecond, and one digit of the
queue object. The first part, a directory in dirq, is the second rounded down to a minute. dirq counts its
directories up; here they follow from the time, so that names of different queues compare.
"""

import re

from fdbqueue.errors import NoNameAtThatTime

GRANULARITY_S = 60
_NAME = re.compile("[0-9a-f]{8}/[0-9a-f]{8}[0-9a-f]{5}[0-9a-f]")
_US_PER_S = 1_000_000
_END_US = 2**32 * _US_PER_S  # eight hexadecimal digits of seconds end in the year 2106
_SECONDS, _MICROSECONDS = slice(9, 17), slice(17, 22)


def is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def name_at(time_us: int, digit: int, granularity_s: int = GRANULARITY_S) -> str:
    """The name of an element added at `time_us`. Raises NoNameAtThatTime."""
    if not 0 <= time_us < _END_US:
        raise NoNameAtThatTime(seconds=time_us / _US_PER_S)
    seconds, microseconds = divmod(time_us, _US_PER_S)
    directory = seconds - seconds % granularity_s if granularity_s > 1 else seconds
    return f"{directory:08x}/{seconds:08x}{microseconds:05x}{digit:x}"


def following(name: str) -> str:
    """The same name a microsecond later."""
    time_us = int(name[_SECONDS], 16) * _US_PER_S + int(name[_MICROSECONDS], 16) + 1
    seconds, microseconds = divmod(time_us, _US_PER_S)
    return f"{name[:9]}{seconds:08x}{microseconds:05x}{name[-1]}"


def by_time(name: str) -> str:
    """A key that sorts names by their time.

    The directory comes last, because that of a real dirq is a count.
    """
    return name[9:] + name[:9]
