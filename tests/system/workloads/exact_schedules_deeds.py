"""The calls of the workload `exact_schedules`, each with the same call of the model."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.core.errors import QueueFull, QueueNotFound, ScheduleExists, ScheduleNotFound
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.tasks.schedules.schedule import Schedule
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_schedules_model import Model
from tests.system.workloads.exact_schedules_plan import Plan
from tests.system.workloads.exact_schedules_times import FAST, SECOND, SLOW, Every

NAMES, QUEUES = ("a", "b", "c"), ("one", "two")
ZONES = ("UTC", "Europe/Rome", "Europe/Rome", "Asia/Kolkata", "America/New_York")
MISSED = ("once", "all", "skip")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"pri": 3}, {"ttl": 1e8})


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


def _opened(tr: Any, name: str) -> Schedule:
    return Schedule(tr, name, Registry(DEFAULT_ROOT))
