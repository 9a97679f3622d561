"""The firing of a schedule: its message is put in the transaction that notes the firing.

Each scheduler of Taskiq decides for itself that a schedule is due, and then sends the message by the broker.
The source notes the schedule in the context of that send. So the put of the broker finds it, and asks in its
own transaction whether another scheduler was first.
"""

from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from taskiq import BrokerMessage, ScheduledTask

from fdbqueue.aio.database import Database
from fdbqueue.aio.transaction import Transaction as AioTransaction
from fdbqueue.seam import ReadTransaction, Transaction
from fdbqueue.taskiq import keys

_SECOND_US = 1_000_000
_MINUTE_US = 60 * _SECOND_US


def fires_once(schedule: ScheduledTask) -> bool:
    """True for a schedule with a time: it is gone after its firing."""
    return schedule.time is not None


def turn_of(schedule: ScheduledTask, last_us: int | None, now_us: int) -> int | None:
    """The time to note for a firing at `now_us`; None if it is that of the last firing, or too early.

    A cron expression has a turn in each minute. An interval is counted in whole seconds, as schedulers do.
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
    """One decision of a scheduler that a schedule is due."""

    def __init__(self, schedule: ScheduledTask, now_us: int) -> None:
        self.schedule = schedule
        self._now_us = now_us
        self.has_come = False
        """True once a broker has got its message."""

    async def put(self, target: Database | AioTransaction, put: Callable[[Any], object]) -> None:
        """Put the message, unless another scheduler has fired this turn.

        Reads: the schedule, its last firing. Writes: the last firing, or clears the schedule; the task.
        Conflicts: another firing of the schedule, its change.
        """

        def body(tr: Transaction) -> None:
            if self._claim(tr):
                put(tr)

        if isinstance(target, Database):
            await target.run(body)
        else:
            await target.run_blocking(body)

    def is_open(self, tr: ReadTransaction) -> bool:
        """True if no scheduler has fired this turn."""
        return self._turn(tr) is not None

    def _turn(self, tr: ReadTransaction) -> int | None:
        schedule_id = self.schedule.schedule_id
        stored, last = tr.get(keys.schedule(schedule_id)), tr.get(keys.fired(schedule_id))
        if not stored.present():  # deleted, or fired for good
            return None
        last_us = keys.time_of(bytes(last.value)) if last.present() else None
        return turn_of(self.schedule, last_us, self._now_us)

    def _claim(self, tr: Transaction) -> bool:
        turn_us, schedule_id = self._turn(tr), self.schedule.schedule_id
        if turn_us is None:
            return False
        if fires_once(self.schedule):
            tr.clear(keys.schedule(schedule_id))
        else:
            tr.set(keys.fired(schedule_id), keys.time(turn_us))
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
