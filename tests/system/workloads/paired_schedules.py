"""A schedule whose due time has come, and a queue near its capacity: firings beside every change of both."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules.schedule import Schedule, fire_due
from fdbqueue.tasks.schedules.times import ScheduleStatus
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_queues import Queues
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, text_of

NAMES = ("often", "often", "rarely")
MISSED = ("once", "all", "skip")
CAPACITY = 4
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"pri": 3}, {"delay": 1}, {"unique": "u"})


class Schedules(Queues):
    verbs = ("make", "change", "pause", "resume", "delete", "run", "fire", "put", "take", "drop")
    queues = ("paired",)

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._name = NAMES[0]
        self.top_up()

    def __str__(self) -> str:
        return "schedules"

    def opened(self, db: Any) -> Any:  # noqa: ARG002  # each call opens its queue
        return TaskQueue.open

    # The state.

    def top_up(self) -> None:
        """Leave a queue with some room, and a schedule."""
        own, choice = self.twins.own, self.random.choice
        queue = TaskQueue.create(own, self.queues[0], "limfifottl", capacity=CAPACITY, if_not_exists=True)
        if len(self.there) > choice((1, 2, 3, 4)):
            queue.truncate(own)
        self._name = choice(NAMES)
        if choice((True, True, False)):
            options: dict[str, Any] = {"queue": self.queues[0], **self._parts()}
            Schedule.create(own, self._name, if_exists="change", **{"every": 1, **options})
            caught(lambda db: _opened(db, self._name).resume(db), own)

    def next_time(self, now: int) -> int | None:
        """A due time, and at times one that was missed long ago."""
        late_s = self.random.choice((0, 0, 0, 1, 2, 100))
        found = [caught(lambda db, name=name: _opened(db, name).status(db), self.twins.own) for name in NAMES]  # type: ignore[misc]
        dues = [due for one in found if (due := getattr(one, "next", None)) is not None]
        return max(now, round((min(dues) + late_s) * 1_000_000)) if dues else None

    # Calls.

    def _parts(self) -> dict[str, Any]:
        choice, data = self.random.choice, self.data(1)[0]
        parts: dict[str, Any] = {"data": data, "missed": choice(MISSED), "every": choice((1, 1, 2.5))}
        some = {name: parts[name] for name in parts if name == "data" or choice((True, False))}
        return {**some, **choice(OPTIONS)}

    def _make(self) -> Call:
        name, options = self._name, {"every": 1, **self._parts()}
        if_exists = self.random.choice(("refuse", "keep", "change", "change"))
        given = {"queue": self.queues[0], "if_exists": if_exists, **options}

        def verb(_: Any, tr: Any) -> str:
            return Schedule.create(tr, name, **given).name

        return self._call("make", f"create the schedule {name} with {given}", verb)

    def _change(self) -> Call:
        name, parts = self._name, self._parts()
        verb = partial(_on, name, lambda one, tr: one.change(tr, **parts))
        return self._call("change", f"change {name} to {parts}", verb)

    def _verb(self, verb: str) -> Call:
        name = self._name
        return self._call(verb, f"{verb} {name}", partial(_on, name, lambda one, tr: getattr(one, verb)(tr)))

    def _pause(self) -> Call:
        return self._verb("pause")

    def _resume(self) -> Call:
        return self._verb("resume")

    def _run(self) -> Call:
        return self._verb("run")

    def _delete(self) -> Call:
        return self._verb("delete")

    def _fire(self) -> Call:
        return self._call("fire", "a pass", lambda _, db: fire_due(db), alone=True)

    def _put(self) -> Call:
        (data,), name = self.data(1), self.queues[0]
        options = self.random.choice(({}, {"unique": "u"}))
        text = f"put {data} with {options}"
        return self._call("put", text, lambda at, tr: at(tr, name).put(tr, data, **options), adds=[data])

    def _drop(self) -> Call:
        name = self.queues[0]
        return self._call("drop", f"drop {name}", lambda at, tr: at(tr, name).drop(tr))

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found = super().seen(tr)
        for name in dict.fromkeys(NAMES):
            found[f"the schedule {name}"] = [text_of(partial(self._status, name), tr)]
        return found

    def _status(self, name: str, tr: Transaction) -> ScheduleStatus:
        """The last task is a random id once its queue was dropped."""
        told = _opened(tr, name).status(tr)
        is_there = told.last_task in (None, *self.names())
        return told if is_there else replace(told, last_task="gone")


def _opened(target: Any, name: str) -> Schedule:
    return Schedule(target, name, Registry(DEFAULT_ROOT))


def _on(name: str, verb: Any, _: Any, target: Any) -> Any:
    return verb(_opened(target, name), target)
