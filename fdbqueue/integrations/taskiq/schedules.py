"""The schedule source: schedules in the database, fired once by any number of schedulers."""

from functools import partial

from taskiq import ScheduledTask, ScheduleSource
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.exceptions import ScheduledTaskCancelledError

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_instance
from fdbqueue.core.errors import InvalidArgument, PayloadTooLarge
from fdbqueue.core.logger import logger
from fdbqueue.core.seam import Transaction
from fdbqueue.integrations.taskiq.broker import FdbQueueBroker
from fdbqueue.integrations.taskiq.firing import (
    Firing,
    fired_key,
    schedule_id_of,
    schedule_key,
    schedules_after,
)
from fdbqueue.integrations.taskiq.results import dumped

READ_AT_ONCE = 1_000
"""Schedules that one transaction reads."""

_log = logger("fdbqueue.taskiq")


class FdbQueueScheduleSource(ScheduleSource):
    """Schedules for `TaskiqScheduler`, with the same broker."""

    def __init__(self, broker: FdbQueueBroker, *, serializer: TaskiqSerializer | None = None) -> None:
        """`broker`: its database has the schedules. `serializer`: by default that of the broker."""
        self._broker = checked_instance("broker", broker, FdbQueueBroker)
        self._own_serializer = serializer

    @property
    def _serializer(self) -> TaskiqSerializer:
        return self._broker.serializer if self._own_serializer is None else self._own_serializer

    async def startup(self) -> None:
        """Open the database. Raises: as fdbqueue.open; DatabaseNotFound."""
        await self._broker.database()

    async def get_schedules(self) -> list[ScheduledTask]:
        """All schedules. One that this serializer cannot read is left out, and logged."""
        db = await self._broker.database()
        found: list[ScheduledTask] = []
        after = ""
        while True:
            rows = await db.run(partial(_read, after=after))
            found += [schedule for key, value in rows if (schedule := self._loaded(key, value)) is not None]
            if len(rows) < READ_AT_ONCE:
                return found
            after = schedule_id_of(rows[-1][0])

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Store a schedule, in place of one with its id. Within `broker.within(tr)`, it is part of `tr`.

        Writes: the schedule. Conflicts: its firing.
        Raises: InvalidArgument for several of cron, interval and time; PayloadTooLarge.
        """
        given = [schedule.cron, schedule.interval, schedule.time]
        if sum(each is not None for each in given) != 1:
            raise InvalidArgument(name="schedule", wanted="one of cron, interval and time", got=schedule)
        value = dumped(schedule, self._serializer)
        if len(value) > limits.PAYLOAD_PIECE_BYTES_MAX:
            raise PayloadTooLarge(size_bytes=len(value), limit_bytes=limits.PAYLOAD_PIECE_BYTES_MAX)
        key, current = schedule_key(schedule.schedule_id), self._broker.current()
        if current is not None:
            current.set(key, value)
        else:
            await (await self._broker.database()).set(key, value)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule. Messages that it has sent stay."""
        db = await self._broker.database()

        def body(tr: Transaction) -> None:
            tr.clear(schedule_key(schedule_id))
            tr.clear(fired_key(schedule_id))

        await db.run(body)

    async def pre_send(self, task: ScheduledTask) -> None:
        """Begin a firing. Raises: ScheduledTaskCancelledError if another scheduler has fired it."""
        db = await self._broker.database()
        firing = Firing(task, db.blocking.runtime.now_us())
        if not await db.run(lambda tr: firing.is_open(tr.snapshot)):
            raise ScheduledTaskCancelledError
        self._broker.firing.begin(firing)

    def post_send(self, task: ScheduledTask) -> None:
        """Raises: InvalidArgument if another broker has sent the message: each scheduler has sent one."""
        firing = self._broker.firing.end()
        if firing is not None and not firing.has_come:
            raise InvalidArgument(
                name="broker", wanted="in the scheduler, too, the one of its source", got=task.task_name
            )

    def _loaded(self, key: bytes, value: bytes) -> ScheduledTask | None:
        try:
            return ScheduledTask.model_validate(self._serializer.loadb(value))
        except Exception as error:  # of any serializer
            _log.warning("the schedule %s cannot be read: %s", schedule_id_of(key), error)
            return None


def _read(tr: Transaction, after: str) -> list[tuple[bytes, bytes]]:
    under = schedules_after(after)
    rows = tr.snapshot.get_range(under.start, under.stop, limit=READ_AT_ONCE)
    return [(bytes(row.key), bytes(row.value)) for row in rows]
