"""Queues that come and go, with members of groups: the last member, the close, the drop of either queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.group_settling import sweep_groups
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule, fire_due
from tests.system.workloads.exact_model import caught
from tests.system.workloads.paired_queues import ROOT, Opened, Queues
from tests.system.workloads.paired_world import Call, Twins, text_of

KINDS = ("fifo", "fifottl", "utube")
GROUPS_SEEN, RETAIN_S = 3, 60
NAMES = ("often", "often", "rarely")
MISSED = ("once", "all", "skip")
CAPACITY = 4
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"pri": 3}, {"delay": 1}, {"unique": "u"})


@dataclass(frozen=True)
class Gathered:
    """The answer of a call that makes a group. Its id is random."""

    group: Group = field(repr=False)


class Groups(Queues):
    verbs = (
        *("put", "take", "end", "id", "kick", "truncate"),
        *("close", "cancel", "gather", "drop", "create", "tick"),
    )
    ends = ("ack", "ack", "bury", "bury", "release", "delete")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._groups: list[Group] = []
        # One kind: each order makes queues anew, and a process remembers them by their ids.
        self._kind = random.choice(KINDS)
        for name in self.queues:
            TaskQueue.create(twins.own, name, self._kind)
        self._own = self.opened(twins.own)
        self._gather_now()

    def __str__(self) -> str:
        return f"queues of the kind {self._kind} that come and go, and groups"

    def opened(self, db: Database) -> Opened:  # noqa: ARG002  # each call opens its queue
        return TaskQueue.open

    def learn(self, answer: Any) -> None:
        super().learn(answer)
        made = answer if isinstance(answer, list | tuple) else (answer,)
        new = [one.group for one in made if isinstance(one, Gathered)]
        self._groups = [*self._groups, *new][-GROUPS_SEEN:]

    def names(self) -> Mapping[str, str]:
        return {**super().names(), **{group.id: f"group {n}" for n, group in enumerate(self._groups)}}

    # The state.

    def top_up(self) -> None:
        """Leave a group with one or two members that have not ended, and one of them taken."""
        own, choice = self.twins.own, self.random.choice
        for name in self.queues:
            if choice((True, True, False)):
                TaskQueue.create(own, name, self._kind, if_not_exists=True)
        if not self._groups or choice((True, False)):
            self._gather_now()
        count = choice((0, 1, 1, 2))
        group = self._groups[-1]
        caught(lambda db: self._own(db, self.queues[0]).put_many(db, self.data(count), group=group), own)
        self.learn(caught(lambda db: self._taken(self.queues[0], 1, self._own, db), own))
        if choice((True, False, False)):
            caught(group.close, own)

    def _gather_now(self) -> None:
        then = caught(lambda db: (self._own(db, self.queues[-1]), *self.data(1)), self.twins.own)
        waits = self.random.choice((True, False))
        options: dict[str, Any] = {"wait_for_buried": waits, "retain_s": RETAIN_S}
        options |= {"then": then} if isinstance(then, tuple) else {}
        self.learn(Gathered(Group.create(self.twins.own, **options)))

    def _group(self) -> Group:
        return self._groups[-1] if self.random.random() < 0.8 else self.random.choice(self._groups)

    # Calls.

    def _put(self) -> Call:
        data, name = self.data(self.random.choice((1, 1, 2))), self.queue_name()
        group = self._group() if self.random.random() < 0.8 else None
        text = f"put {data} into {name}{' as members' if group else ''}"

        def verb(at: Opened, tr: Any) -> Any:
            return at(tr, name).put_many(tr, data, group=group)

        return self._call("put", text, verb, adds=data)

    def _close(self) -> Call:
        group = self._group()
        return self._call("close", f"close {group.id}", lambda _, tr: group.close(tr))

    def _cancel(self) -> Call:
        group = self._group()
        return self._call("cancel", f"cancel {group.id}", lambda _, tr: group.cancel(tr))

    def _gather(self) -> Call:
        """A group whose `then` lies in a queue that may be dropped."""
        (data,), waits = self.data(1), self.random.choice((True, False))

        def verb(at: Opened, tr: Any) -> Gathered:
            then = (at(tr, self.queues[-1]), data)
            return Gathered(Group.create(tr, then=then, wait_for_buried=waits, retain_s=RETAIN_S))

        return Call("gather", f"make a group, then {data}", verb, adds=[data], within=True)

    def _drop(self) -> Call:
        name = self.queue_name()
        return self._call("drop", f"drop {name}", lambda at, tr: at(tr, name).drop(tr))

    def _create(self) -> Call:
        name, is_open = self.queue_name(), self.random.choice((True, False))

        def verb(_: Opened, tr: Any) -> str:
            return TaskQueue.create(tr, name, self._kind, if_not_exists=is_open).kind

        return self._call("create", f"create {name}", verb)

    def _tick(self) -> Call:
        call = super()._tick()

        def verb(at: Opened, db: Any) -> None:
            sweep_groups(db, ROOT)
            call.verb(at, db)

        return Call(call.name, call.text, verb, alone=True)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found = super().seen(tr)
        found["groups"] = [text_of(group.progress, tr) for group in self._groups]
        for name in self.queues:
            found[f"the queue {name}"] = ["there" if self.handle(tr, name) else "dropped"]
        return found


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

    _pause, _resume = partialmethod(_verb, "pause"), partialmethod(_verb, "resume")
    _run, _delete = partialmethod(_verb, "run"), partialmethod(_verb, "delete")

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
