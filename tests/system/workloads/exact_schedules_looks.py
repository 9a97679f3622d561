"""The looks of the workload `exact_schedules`."""

from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.page import every_row
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules.schedule import Schedule, list_schedules
from fdbqueue.tasks.schedules.times import ScheduleStatus
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_schedules_model import Model, Put
from tests.system.workloads.exact_schedules_plan import Plan
from tests.system.workloads.exact_schedules_times import local, zone_of
from tests.system.workloads.exact_times import micro

PAGE, TIMES = 2, 4


class Looks:
    def __init__(self, caller: Caller, model: Model) -> None:
        self._caller, self._model = caller, model

    def look(self) -> None:
        db = self._caller.client.db
        run(db, self._statuses)
        for queue in self._model.queues:
            run(db, partial(self._tasks, queue))

    def _statuses(self, tr: Any) -> None:
        found, after = list[ScheduleStatus](), ""
        while True:
            page = list_schedules(tr, PAGE, after=after)
            found += page
            if page.next is None:
                break
            after = page.next
        plans = sorted(self._model.plans.values(), key=attrgetter("name"))
        require_equal("schedules", [*map(_shown, found)], [plan.status() for plan in plans])
        for plan in plans[:1]:
            self._times(plan, tr)

    def _times(self, plan: Plan, tr: Any) -> None:
        schedule = Schedule(tr, plan.name, Registry(DEFAULT_ROOT))
        require_equal("status", _shown(schedule.status(tr)), plan.status())
        wanted, at = list[str](), self._model.now
        for _ in range(TIMES):
            at = plan.after(at)
            wanted.append(local(at, zone_of(plan.timezone)).isoformat())
        require_equal("next times", [at.isoformat() for at in schedule.next_times(tr, TIMES)], wanted)

    def _tasks(self, queue: str, tr: Any) -> None:
        found = list(every_row(partial(TaskQueue.open(tr, queue).tasks, tr, "r", 200)))
        puts = sorted(self._model.queues[queue], key=attrgetter("pri"))
        require_equal(f"the tasks of {queue}", [*map(_put, found)], puts)


def _shown(status: ScheduleStatus) -> ScheduleStatus:
    """The class of an error stands for it."""
    return replace(status, error=status.error and status.error.partition(":")[0])


def _put(task: Task) -> Put:
    return Put(task.data, task.pri, task.headers, micro(task.created) or 0, micro(task.expires))
