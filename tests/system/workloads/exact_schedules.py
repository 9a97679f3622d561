"""Schedules in one process with a clock that stands still in each call, and a model over datetimes.

Passes are steps: on time, late, and after an outage. Queues are full, dropped, and made again. Some changes
come from a clock that is a little behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueFull, QueueNotFound, ScheduleExists, ScheduleNotFound
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule, fire_due, list_schedules
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import draw_limits, unswept
from tests.system.workloads.exact_model import (
    Caller,
    added,
    earliest,
    is_over,
    known,
    micro,
    require_equal,
    seconds,
    step_by_step,
)

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


NAME = "exact_schedules"
VERBS = (*("create",) * 4, *("change",) * 4, "pause", *("resume",) * 2, *("run",) * 2, "delete")
BEGINNING = ("create", "change", "resume", "resume")
PASSES = (*("fire",) * 6, "drop_or_make", *("empty",) * 2)
BEGINS = [
    datetime(2026, month, day, hour, tzinfo=UTC)
    for month, day, hour in ((3, 28, 20), (10, 24, 20), (10, 24, 20), (3, 7, 20), (10, 31, 20), (12, 30, 20))
]
"""Before changes of daylight saving in Rome and in New York, and before the end of a year."""
FAR = {True: (3_600, 20_000, 86_400, 300_000), False: (5, 90)}
"""Seconds, for slow and for fast schedules."""
BEHIND_S = (0.5, 4.0)
NAMES, QUEUES = ("a", "b", "c"), ("one", "two")
ZONES = ("UTC", "Europe/Rome", "Europe/Rome", "Asia/Kolkata", "America/New_York")
MISSED = ("once", "all", "skip")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"pri": 3}, {"ttl": 1e8})
PAGE, TIMES = 2, 4


@workload(clients=1, steps=50, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_schedules(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact schedules")
    unswept(simulation, None)
    simulation.limit(SCHEDULES_PASSED_EVERY_S=1e6, SCHEDULES_SOUGHT_EVERY_S=1e6)
    draw_limits(simulation, random, SCHEDULE_FIRED_MAX=(2, 10), SCHEDULES_DUE_READ=(1, 2, 100))
    is_slow, begin = random.random() < 0.5, random.choice(BEGINS)
    room = random.choice((3, 12))

    def made(client: Client) -> Process:
        caller, model = Caller(client), Model()
        caller.tick()
        caller.clock.move_to(round(begin.timestamp()) * SECOND + random.randrange(SECOND))
        model.now, model.room = caller.clock.now, room
        return Process(caller, model, is_slow)

    step_by_step(simulation, size, made)
    return [no_watch_left_behind]


# Calls.


class Deeds:
    """The verbs of schedules."""

    def __init__(self, caller: Caller, model: Model, is_slow: bool) -> None:
        self.caller, self.random, self.model, self._is_slow = caller, caller.random, model, is_slow
        self._answer = caller.answer

    def create(self) -> None:
        name, choice = self.random.choice(NAMES), self.random.choice
        parts, if_exists = {**self._times(), **self._rest()}, choice(("refuse", "keep", "change", "change"))
        options, paused = choice(OPTIONS), choice((False, False, True))
        make = partial(Schedule.create, name=name, paused=paused, if_exists=if_exists, **parts, **options)
        found, there = self._answer(make), self.model.plans.get(name)
        if there is not None and if_exists == "refuse":
            require_equal("create", found, ScheduleExists(name=name))
        elif there is not None and if_exists == "keep":
            assert isinstance(found, Schedule), f"create: {found!r}"
        elif self._require_made(found, parts["queue"]):
            self._change(there or self._new(name, parts, paused), parts, options, is_new=there is None)

    def _new(self, name: str, parts: dict[str, Any], paused: bool) -> Plan:
        plan = Plan(name, Every(1, 0), None, "UTC", "once", parts["queue"], self.model.now, paused=paused)
        self.model.plans[name] = plan
        return plan

    def _require_made(self, found: Any, queue: str) -> bool:
        if queue in self.model.queues:
            assert not isinstance(found, Exception), f"refused: {found!r}"
            return True
        assert isinstance(found, QueueNotFound), f"without the queue {queue}: {found!r}"
        return False

    def _times(self) -> dict[str, Any]:
        choice = self.random.choice
        if choice((True, False)):
            return {"every": choice((43_200, 100_000.5) if self._is_slow else (1, 2.5, 60))}
        zone = {"timezone": choice(ZONES)}
        return {"expression": choice([*(SLOW if self._is_slow else FAST)]), **zone}

    def _rest(self) -> dict[str, Any]:
        choice = self.random.choice
        return {"queue": choice(QUEUES), "data": self.random.random(), "missed": choice(MISSED)}

    def change(self) -> None:
        name, choice = self.random.choice(NAMES), self.random.choice
        rest = self._rest()
        parts = choice((self._times(), {key: rest[key] for key in [choice([*rest])]}, {}))
        options: dict[str, Any] = choice(({}, {"pri": 4}, {"pri": None}))
        found = self._answer(lambda tr: _opened(tr, name).change(tr, **parts, **options))
        plan = self._plan(name, found)
        if plan is not None and self._require_made(found, parts.get("queue", plan.queue)):
            kept = {key: value for key, value in {**plan.options, **options}.items() if value is not None}
            self._change(plan, parts, kept)

    def _change(
        self, plan: Plan, parts: dict[str, Any], options: dict[str, Any], is_new: bool = False
    ) -> None:
        plan.options = dict(options)
        for part in {"queue", "data", "missed"} & set(parts):
            setattr(plan, part, parts[part])
        before = (plan.expression, getattr(plan.rule, "span", None), plan.timezone)
        rule = plan.rule
        if "every" in parts:
            plan.expression, plan.timezone = None, "UTC"
            rule = Every(round(parts["every"] * SECOND), self.model.now // SECOND * SECOND)
        elif "expression" in parts:
            plan.expression, plan.timezone = parts["expression"], parts["timezone"]
            rule = (SLOW | FAST)[plan.expression]
        if is_new or (plan.expression, getattr(rule, "span", None), plan.timezone) != before:
            plan.rule = rule
            plan.begin(self.model.now)
        else:
            plan.go_on()

    def pause(self) -> None:
        name = self.random.choice(NAMES)
        plan = self._plan(name, self._on(name, lambda one, tr: one.pause(tr)))
        if plan is not None and not plan.paused:
            plan.paused, plan.due, plan.tries_at = True, None, None

    def resume(self) -> None:
        name = self.random.choice(NAMES)
        plan = self._plan(name, self._on(name, lambda one, tr: one.resume(tr)))
        if plan is not None and plan.paused:
            plan.paused = False
            plan.begin(self.model.now)

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        if self._plan(name, self._on(name, lambda one, tr: one.delete(tr))) is not None:
            del self.model.plans[name]

    def run(self) -> None:
        name = self.random.choice(NAMES)
        found = self._on(name, lambda one, tr: one.run(tr))
        plan = self._plan(name, found)
        if plan is not None:
            refusal = self.model.refusal(plan.queue, 1)
            if refusal is None:
                require_equal("the data of a task", found.data, plan.data)
                self.model.put(plan, [None])
            else:
                wanted = {"QueueFull": QueueFull, "QueueNotFound": QueueNotFound}[refusal]
                assert isinstance(found, wanted), f"run: {found!r}, and right is {refusal}"

    def _on(self, name: str, call: Callable[[Schedule, Any], Any]) -> Any:
        return self._answer(lambda tr: call(_opened(tr, name), tr))

    def _plan(self, name: str, found: Any) -> Plan | None:
        """The schedule that a call was about."""
        if name not in self.model.plans:
            require_equal("without a schedule", found, ScheduleNotFound(name=name))
        else:
            assert not isinstance(found, ScheduleNotFound), f"{found!r}"
        return self.model.plans.get(name)


class Passes:
    def __init__(self, caller: Caller, model: Model) -> None:
        self._caller, self._model, self._random = caller, model, caller.random
        self._queues: dict[str, TaskQueue] = {}
        for queue in QUEUES:
            self._make(queue)

    def _make(self, queue: str) -> None:
        db = self._caller.client.db
        self._queues[queue] = TaskQueue.create(db, queue, "limfifottl", capacity=self._model.room)
        self._model.queues[queue] = []

    def fire(self) -> None:
        """One pass of a process."""
        told = fire_due(self._caller.client.db)
        wanted = self._model.fire_all()
        self._note_last()
        require_equal("fired", told, wanted)

    def _note_last(self) -> None:
        """The model takes the ids of the last tasks from the queues."""
        last = {one.name: one.last_task for one in list_schedules(self._caller.client.db)}
        for plan in self._model.plans.values():
            plan.last_task = last.get(plan.name) if plan.fired else None

    def drop_or_make(self) -> None:
        queue = self._random.choice(QUEUES)
        if queue in self._model.queues:
            self._queues.pop(queue).drop(self._caller.client.db)
            del self._model.queues[queue]
        else:
            self._make(queue)

    def empty(self) -> None:
        for queue, handle in self._queues.items():
            handle.truncate(self._caller.client.db)
            self._model.queues[queue] = []


class Process:
    def __init__(self, caller: Caller, model: Model, is_slow: bool) -> None:
        self._caller, self._model, self._random, self._is_slow = caller, model, caller.random, is_slow
        self._deeds, self._passes = Deeds(caller, model, is_slow), Passes(caller, model)
        self._looks = Looks(caller, model)

    def step(self) -> None:
        random = self._random
        self._move()
        if random.random() < 0.5:
            self._call(self._passes, random.choice(PASSES))
        elif random.random() < 0.3:
            self._by_a_slower_clock(random.choice(BEGINNING))
        else:
            self._call(self._deeds, random.choice(VERBS))
        self._looks.look()

    def _call(self, user: Deeds | Passes, verb: str) -> None:
        self._caller.client.call(NAME, verb, self._model.now, getattr(user, verb))

    def _by_a_slower_clock(self, verb: str) -> None:
        """Let another process do it, the clock of which is a little behind."""
        model, runtime = self._model, self._caller.client.runtime
        now = model.now
        model.now -= round(self._random.uniform(*BEHIND_S) * SECOND)
        runtime.hold(model.now)
        self._call(self._deeds, verb)
        model.now = now
        runtime.hold(now)

    def _move(self) -> None:
        """Move the clock: to the next try of a schedule, to the moment at which its due time is missed, to
        just before or after these, or far.
        """
        model, random = self._model, self._random
        moments = [at for plan in model.plans.values() for at in (plan.tries_at, plan.is_missed_at)]
        following = earliest(*(at for at in known(moments) if at > model.now))
        to = model.now
        reach = 8 * max(FAR[self._is_slow]) * SECOND // 3  # further away, too many due times would pass
        if random.random() < 0.5 and following is not None and following < model.now + reach:
            to = following + random.choice((-1, 0, 0, 0, 1))
        elif random.random() < 0.3:
            to += round(random.random() * random.choice(FAR[self._is_slow]) * SECOND)
        model.now = max(model.now, to)
        self._caller.clock.move_to(model.now)


def _opened(tr: Any, name: str) -> Schedule:
    return Schedule(tr, name, Registry(DEFAULT_ROOT))


# Looks.


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
