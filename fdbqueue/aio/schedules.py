"""Schedules, awaited."""

from fdbqueue.aio.verbs import Face, Maker, awaited
from fdbqueue.tasks.schedules.schedule import Schedule as BlockingSchedule


class Schedule(Face[BlockingSchedule]):
    """`fdbqueue.Schedule`, awaited."""

    __slots__ = ()

    create = Maker(BlockingSchedule.create)
    open = Maker(BlockingSchedule.open)

    @property
    def name(self) -> str:
        return self._blocking.name

    status = awaited(BlockingSchedule.status)
    next_times = awaited(BlockingSchedule.next_times)
    change = awaited(BlockingSchedule.change)
    pause = awaited(BlockingSchedule.pause)
    resume = awaited(BlockingSchedule.resume)
    run = awaited(BlockingSchedule.run)
    delete = awaited(BlockingSchedule.delete)
