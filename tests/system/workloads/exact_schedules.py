"""Schedules in one process with a clock that stands still in each call: each due time, task and status equals
that of a plain model over datetimes.

Passes are steps: on time, late, and after an outage. Queues are full, dropped, and made again. Some changes
come from a clock that is a little behind.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from random import Random
from typing import Any

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
from tests.system.workloads.exact_calls import Caller, earliest, known, micro, require_equal, step_by_step
from tests.system.workloads.exact_schedules_model import (
    FAST,
    SECOND,
    SLOW,
    Every,
    Model,
    Plan,
    Put,
    local,
    zone_of,
)

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
