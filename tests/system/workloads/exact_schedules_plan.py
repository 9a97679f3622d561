"""A schedule of the workload `exact_schedules`, as plain Python."""

from dataclasses import dataclass, field
from typing import Any

from fdbqueue.core import limits
from fdbqueue.tasks.schedules.times import ScheduleStatus
from tests.system.workloads.exact_schedules_times import SECOND, Every, Rule, zone_of
from tests.system.workloads.exact_times import added, micro, seconds

NICKNAMES = {"@daily": "0 0 * * *"}


@dataclass
class Plan:
    """A schedule. Times are microseconds, None for never."""

    name: str
    rule: Rule
    expression: str | None
    timezone: str
    missed: str
    queue: str
    created: int
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    paused: bool = False
    due: int | None = None
    tries_at: int | None = None
    fired: int = 0
    last_due: int | None = None
    last_fired: int | None = None
    last_task: str | None = None
    tries: int = 0
    error: str | None = None

    @property
    def is_missed_at(self) -> int | None:
        """The last moment at which its due time is late and not missed."""
        late = micro(limits.SCHEDULE_MISSED_AFTER_S)
        return added(self.due, late)

    def after(self, time: int) -> int:
        return self.rule.after(time, zone_of(self.timezone))

    def begin(self, now: int) -> None:
        """Begin with the first due time after now, and after those that a faster clock has fired."""
        skew = micro(limits.CLOCK_SKEW_S) or 0
        fired = self.last_due or 0
        self.due = None if self.paused else self.after(max(now, fired) if fired <= now + skew else now)
        self.go_on()

    def go_on(self) -> None:
        self.tries_at, self.tries, self.error = self.due, 0, None

    def turn(self, now: int, most: float) -> list[int]:
        """The due times that get a task, at most `most`. The next due time is behind them."""
        due, late = self.due or 0, now - (micro(limits.SCHEDULE_MISSED_AFTER_S) or 0)
        passed = [due]
        while passed[-1] <= now:
            passed.append(self.after(passed[-1]))
        if due < late and self.missed == "once":
            passed = passed[-2:]
        elif due < late and self.missed == "skip":
            passed = [at for at in passed if at >= late]
        chosen = passed[:-1][: round(most)]
        self.due = passed[len(chosen)]
        return chosen

    def status(self) -> ScheduleStatus:
        every = self.rule.span / SECOND if isinstance(self.rule, Every) else None
        return ScheduleStatus(
            self.name,
            self.queue,
            NICKNAMES.get(self.expression or "", self.expression),
            every,
            self.timezone,
            self.missed,
            self.data,
            self.options,
            self.paused,
            self.created / SECOND,
            seconds(self.due),
            self.fired,
            seconds(self.last_due),
            seconds(self.last_fired),
            self.last_task,
            self.error,
            self.tries,
            seconds(self.tries_at),
        )
