"""The plain model of the workload `exact_schedules`: schedules, and the tasks that they have put."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from tests.system.workloads.exact_schedules_plan import Plan
from tests.system.workloads.exact_schedules_times import local, zone_of
from tests.system.workloads.exact_times import is_over, micro

LAST = (2**63, "")
"""Behind all due schedules."""


@dataclass
class Put:
    """A task of a schedule."""

    data: Any
    pri: int
    headers: Mapping[str, str]
    created: int
    expires: int | None


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.plans: dict[str, Plan] = {}
        self.queues: dict[str, list[Put]] = {}
        """The tasks of the queues that are there, in order of their puts."""
        self.room = 0
        """The capacity of each queue."""

    def fire_all(self) -> int:
        """One pass: page by page, and again from the first one while a batch was full."""
        after, tasks, has_more = (0, ""), 0, True
        while has_more:
            has_more = False
            while page := [one for one in self._due() if one > after][: limits.SCHEDULES_DUE_READ]:
                fired = [self._fire(self.plans[name]) for _, name in page]
                tasks, has_more = tasks + sum(fired), has_more or limits.SCHEDULE_FIRED_MAX in fired
                after = page[-1] if len(page) == limits.SCHEDULES_DUE_READ else LAST
            after = (0, "")
        return tasks

    def _due(self) -> list[tuple[int, str]]:
        plans = self.plans.values()
        return sorted((plan.tries_at or 0, plan.name) for plan in plans if is_over(plan.tries_at, self.now))

    def refusal(self, queue: str, count: int) -> str | None:
        if queue not in self.queues:
            return "QueueNotFound"
        return "QueueFull" if len(self.queues[queue]) + count > self.room else None

    def _fire(self, plan: Plan) -> int:
        """One firing of a schedule that is due."""
        before = plan.due
        times = plan.turn(self.now, limits.SCHEDULE_FIRED_MAX)
        plan.error = self.refusal(plan.queue, len(times)) if times else None
        if plan.error == "QueueFull":
            plan.due = before
            times = plan.turn(self.now, max(1, self.room - len(self.queues[plan.queue])))
            plan.error = self.refusal(plan.queue, len(times))
        if plan.error is not None:
            plan.due, plan.tries = before, plan.tries + 1
            waits = min(limits.SCHEDULE_RETRY_FIRST_S * 2 ** (plan.tries - 1), limits.SCHEDULE_RETRY_MAX_S)
            plan.tries_at = self.now + (micro(waits) or 0)
            return 0
        plan.go_on()
        self.put(plan, times)
        if times:
            plan.fired += len(times)
            plan.last_due, plan.last_fired = times[-1], self.now
        return len(times)

    def put(self, plan: Plan, times: Sequence[int | None]) -> None:
        for at in times:
            headers = {"schedule": plan.name}
            if at is not None:
                headers["scheduled-for"] = local(at, zone_of(plan.timezone)).isoformat()
            ttl = micro(plan.options.get("ttl"))
            expires = None if ttl is None else self.now + ttl
            task = Put(plan.data, plan.options.get("pri", 0), headers, self.now, expires)
            self.queues[plan.queue].append(task)
