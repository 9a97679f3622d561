"""The plain model of the workload `exact_schedules`: schedules, and the tasks that they have put."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from fdbqueue.core import limits
from fdbqueue.tasks.firing import ScheduleStatus
from tests.system.workloads.exact_calls import added, is_over, micro, seconds

LAST = (2**63, "")
"""Behind all due schedules."""
NICKNAMES = {"@daily": "0 0 * * *"}
SECOND = 1_000_000
Test = Callable[[datetime], bool]


@dataclass
class Put:
    """A task of a schedule."""

    data: Any
    pri: int
    headers: Mapping[str, str]
    created: int
    expires: int | None


class Daily(NamedTuple):
    """Fixed times of some days. If a time does not exist on a day, the end of the gap stands for it; if it
    exists twice, the first one does.
    """

    minutes: tuple[int, ...]
    """Of the day."""
    fits: Callable[[date], bool]

    def after(self, time: int, zone: tzinfo) -> int:
        day = local(time, zone).date() - timedelta(days=1)
        while True:
            found = [at for at in self._of(day, zone) if at > time] if self.fits(day) else []
            if found:
                return found[0]
            day += timedelta(days=1)

    def _of(self, day: date, zone: tzinfo) -> Iterator[int]:
        for minute in self.minutes:
            wall = datetime(day.year, day.month, day.day, *divmod(minute, 60), tzinfo=zone)
            at = round(wall.timestamp()) * SECOND
            while local(at, zone).replace(tzinfo=None) < wall.replace(tzinfo=None):
                at += 60 * SECOND
            if wall.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall.replace(tzinfo=None):
                at = self._end_of_gap(at, zone)
            yield at

    def _end_of_gap(self, at: int, zone: tzinfo) -> int:
        """The first minute after the change of the clock, near `at`."""
        offset = local(at, zone).utcoffset()
        while local(at - 60 * SECOND, zone).utcoffset() == offset:
            at -= 60 * SECOND
        return at


@dataclass(frozen=True)
class Every:
    """Times with the same distance."""

    span: int
    anchor: int

    def after(self, time: int, _: tzinfo) -> int:
        return self.anchor + ((time - self.anchor) // self.span + 1) * self.span


class Passing(NamedTuple):
    """Times that go by the time that passes: of each step, those with the right local time."""

    step: int
    fits: Test

    def after(self, time: int, zone: tzinfo) -> int:
        at = (time // self.step + 1) * self.step
        while not self.fits(local(at, zone)):
            at += self.step
        return at


Rule = Every | Passing | Daily


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


def zone_of(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def local(time: int, zone: tzinfo) -> datetime:
    whole, rest = divmod(time, SECOND)
    return datetime.fromtimestamp(whole, zone).replace(microsecond=rest)


def every_day(_: date) -> bool:
    return True


MINUTE = 60 * SECOND


SLOW: dict[str, Rule] = {
    "30 2 * * *": Daily((150,), every_day),
    "0,30 2 * * *": Daily((120, 150), every_day),
    "@daily": Daily((0,), every_day),
    "15 3 * * MON": Daily((195,), lambda day: day.weekday() == 0),
    "0 12 1,29 * *": Daily((720,), lambda day: day.day in (1, 29)),
    "0 0 L * *": Daily((0,), lambda day: (day + timedelta(days=1)).day == 1),
    "7 */6 * * *": Passing(MINUTE, lambda at: at.minute == 7 and at.hour % 6 == 0),
    "*/30 2 * * *": Passing(MINUTE, lambda at: at.minute % 30 == 0 and at.hour == 2),
}


FAST: dict[str, Rule] = {
    "* * * * *": Passing(MINUTE, lambda _: True),
    "*/20 * * * *": Passing(MINUTE, lambda at: at.minute % 20 == 0),
    "7 * * * *": Passing(MINUTE, lambda at: at.minute == 7),
    "* * * * * *": Passing(SECOND, lambda _: True),
    "*/15 * * * * *": Passing(SECOND, lambda at: at.second % 15 == 0),
}
