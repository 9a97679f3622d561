"""The firing of a schedule: its message is put in the transaction that notes the firing.

Each scheduler of Taskiq decides for itself that a schedule is due, and then sends the message by the broker.
The source notes the schedule in the context of that send. So the put of the broker finds it, and asks in its
own transaction whether another scheduler was first.

This is the only file that builds or parses the keys of this room, which are below R["taskiq"] (root_keys.py
knows their shapes). The comment of a column has its parts and its value, and behind the semicolon its
readers.

A schedule and its last firing go together.
"""

import struct
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from taskiq import BrokerMessage, ScheduledTask

from fdbqueue.aio.database import Database
from fdbqueue.aio.transaction import Transaction as AioTransaction
from fdbqueue.core.columns import Table
from fdbqueue.core.root_keys import DEFAULT_ROOT, TASKIQ
from fdbqueue.core.seam import ReadTransaction, Transaction

T = Table()
SCHEDULE = T.packed(0, str)  # id: bytes by the serializer of its source; schedulers, and its firing
FIRED = T.packed(1, str)  # id: microseconds of the last firing, no key before the first; the same
_TIME = struct.Struct("<Q")

_PREFIX = DEFAULT_ROOT.pack((TASKIQ,))
schedule_key, schedule_id_of = SCHEDULE.key(_PREFIX), SCHEDULE.first(_PREFIX)
fired_key = FIRED.key(_PREFIX)


def schedules_after(schedule_id: str) -> slice:
    """The schedules behind that id; all for an empty one."""
    under = SCHEDULE.all(_PREFIX)
    return slice(schedule_key(schedule_id) + b"\x00" if schedule_id else under.start, under.stop)


def time_bytes(time_us: int) -> bytes:
    return _TIME.pack(time_us)


def time_of(value: bytes) -> int:
    time_us: int = _TIME.unpack(value)[0]
    return time_us


_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US


def fires_once(schedule: ScheduledTask) -> bool:
    """True for a schedule with a time: it is gone after its firing."""
    return schedule.time is not None


def turn_of(schedule: ScheduledTask, last_us: int | None, now_us: int) -> int | None:
    """The time to note for a firing at `now_us`; None if it is that of the last firing, or too early. A cron
    expression has a turn in each minute. An interval is counted in whole seconds, as schedulers do.
    """
    if schedule.cron is not None:
        turn_us = now_us - now_us % _MINUTE_US
        return turn_us if last_us is None or turn_us > last_us else None
    if schedule.interval is not None and last_us is not None:
        wanted = schedule.interval
        wanted_s = wanted.total_seconds() if isinstance(wanted, timedelta) else wanted
        return now_us if round((now_us - last_us) / _SECOND_US) >= round(wanted_s) else None
    return now_us


class Firing:
    def __init__(self, schedule: ScheduledTask, now_us: int) -> None:
        self.schedule = schedule
        self._now_us = now_us
        self.has_come = False
        """True once a broker has got its message."""

    async def put(self, target: Database | AioTransaction, put: Callable[[Any], object]) -> None:
        """Put the message, unless another scheduler has fired this turn, or the schedule has changed."""

        def body(tr: Transaction) -> None:
            if self._claim(tr):
                put(tr)

        if isinstance(target, Database):
            await target.run(body)
        else:
            await target.run_blocking(body)

    def is_open(self, tr: ReadTransaction) -> bool:
        return self._turn(tr) is not None

    def _turn(self, tr: ReadTransaction) -> int | None:
        schedule_id = self.schedule.schedule_id
        stored, last = tr.get(schedule_key(schedule_id)), tr.get(fired_key(schedule_id))
        if not stored.present():  # deleted, or fired for good
            return None
        last_us = time_of(bytes(last.value)) if last.present() else None
        return turn_of(self.schedule, last_us, self._now_us)

    def _claim(self, tr: Transaction) -> bool:
        turn_us, schedule_id = self._turn(tr), self.schedule.schedule_id
        if turn_us is None:
            return False
        if fires_once(self.schedule):
            tr.clear(schedule_key(schedule_id))
        else:
            tr.set(fired_key(schedule_id), time_bytes(turn_us))
        return True


class FiringNow:
    """The firing that the running send belongs to."""

    def __init__(self) -> None:
        self._current: ContextVar[Firing | None] = ContextVar("fdbqueue_firing", default=None)

    def begin(self, firing: Firing) -> None:
        self._current.set(firing)

    def of(self, message: BrokerMessage) -> Firing | None:
        """The firing of `message`; None for a message that a program sends, also during a firing."""
        firing = self._current.get()
        if firing is None or message.labels.get("schedule_id") != firing.schedule.schedule_id:
            return None
        firing.has_come = True
        return firing

    def end(self) -> Firing | None:
        """The firing that has begun in this context."""
        firing = self._current.get()
        self._current.set(None)
        return firing
