"""Keys of the Taskiq room: the only file that builds or parses them (root_keys.py knows their shapes).

R is the root. Values are bytes.

    R["taskiq", 0, id]  schedule     by the serializer of its source  read by schedulers, and by its firing
    R["taskiq", 1, id]  last firing  microseconds, 8 bytes            the same; no key before the first

A schedule and its last firing go together.
"""

import struct
from typing import Any

from fdbqueue.root_keys import DEFAULT_ROOT, TASKIQ

SCHEDULE, FIRED = range(2)
_TIME = struct.Struct("<Q")


def schedule(schedule_id: str) -> bytes:
    return _key(SCHEDULE, schedule_id)


def schedules_after(schedule_id: str) -> slice:
    """The schedules behind that id; all for an empty one."""
    under = DEFAULT_ROOT.range((TASKIQ, SCHEDULE))
    return slice(schedule(schedule_id) + b"\x00" if schedule_id else under.start, under.stop)


def schedule_id_of(key: bytes) -> str:
    schedule_id: str = DEFAULT_ROOT.unpack(key)[-1]
    return schedule_id


def fired(schedule_id: str) -> bytes:
    return _key(FIRED, schedule_id)


def time(time_us: int) -> bytes:
    return _TIME.pack(time_us)


def time_of(value: bytes) -> int:
    time_us: int = _TIME.unpack(value)[0]
    return time_us


def _key(*parts: Any) -> bytes:
    key: bytes = DEFAULT_ROOT.pack((TASKIQ, *parts))
    return key
