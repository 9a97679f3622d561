"""Two queues under common limits, of all tasks and of tasks that name them with and without keys."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.limiting.keys import LimitKeys
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_queues import Queues
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call

READY, TAKES_MAX, DELETED = 4, 12, 0.2
CHOICES: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    *((("slots",), ()),) * 3,
    (("starts",), ()),
    *(((), ("tenant",)),) * 3,
    ((), ("rated",)),
    ((), ("named", "tenant")),
    (("slots", "starts"), ("rated", "named")),
)
"""Limits of all tasks, and those that tasks name; mostly one, so that each pair is about it."""
KEYED = ("tenant", "rated")


class Limits(Queues):
    verbs = ("put", "take", "end", "id", "set", "truncate", "tick")
    topped_up = 0.9

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        of_all, named = random.choice(CHOICES)
        self._named, self._names = named, [*of_all, *named]
        for name in self._names:
            self._set_to(twins.own, name, 2)
        for queue in self.queues:
            TaskQueue.create(twins.own, queue, "fifottl", limits=of_all, task_limits=named)
        self._own = self.opened(twins.own)

    def __str__(self) -> str:
        return f"queues under the limits {', '.join(self._names)}"

    def _set_to(self, target: Any, name: str, number: int) -> None:
        if name in ("starts", "rated"):
            Limit.set(target, name, rate=2, per=5, burst=number, per_key=name in KEYED)
        else:
            Limit.set(target, name, slots=number, per_key=name in KEYED)

    def must_forget(self, one: Call, other: Call) -> bool:
        """A process remembers the lane at which its next take begins."""
        return "take" in (one.name, other.name) or super().must_forget(one, other)

    def may_vary(self, one: Call) -> bool:
        """With limits of tasks, a second attempt of a take goes on with the next lane."""
        return bool(self._named) and one.name == "take"

    def handle(self, tr: Transaction, name: str) -> TaskQueue:
        return self._own(tr, name)

    # The state.

    def top_up(self) -> None:
        """Leave tasks in front of the limits, and few slots."""
        self._fill()
        getattr(self, self.random.choice(("_start", "_tighten", "_tighten", "_spread", "_spread")))()

    def _fill(self) -> None:
        own, name = self.twins.own, self.queues[0]
        if len(self.in_state("r", name)) < READY:
            self._own(own, name).put_many(own, self.data(READY), **self._put_options())
        if len(self.leases) > READY:
            id_, task = self.leases.popitem()
            caught(lambda db: self._own(db, self.there[id_][0]).ack(db, task), own)

    def _start(self) -> None:
        self.learn(self._taken(self.queues[0], 1, self._own, self.twins.own))

    def _tighten(self) -> None:
        """Leave a limit with a slot or two, or none."""
        name = self.random.choice(self._names)
        self._set_to(self.twins.own, name, max(1, self._used(name) + self.random.choice((0, 1, 1, 2))))

    def _spread(self) -> None:
        """Let tasks start in several cells, and make the slots fewer."""
        slots = self.random.choice((4, 5, 6))
        for name in self._names:
            self._set_to(self.twins.own, name, slots)
        for _ in range(slots - 2 - len(self.leases)):
            self._start()
        for name in self._names:
            self._set_to(self.twins.own, name, self._used(name) + 1)

    def _used(self, name: str) -> int:
        """The slots in use; with keys, those of the key with the most."""
        limit = caught(partial(Limit.open, name=name), self.twins.own)
        if not isinstance(limit, Limit):
            return 0
        if not limit.per_key:
            return limit.used
        return max((key.used for key in Limit.keys(self.twins.own, name)), default=0)

    def next_time(self, now: int) -> int | None:
        times = [limit.next for name in self._names if (limit := self._open(name)) and limit.next]
        ends = [round(time * 1_000_000) for time in times]
        return min((end for end in ends if end >= now), default=None)

    def _open(self, name: str) -> Limit | None:
        limit = caught(partial(Limit.open, name=name), self.twins.own)
        return limit if isinstance(limit, Limit) else None

    # Calls.

    def _put_options(self) -> dict[str, Any]:
        """Mostly the key of the other tasks, and its limit alone."""
        choice = self.random.choice
        if not self._named or choice((False, False, False, True)):
            return {}
        keys = {name: choice("aaab") if name in KEYED else None for name in self._named}
        few = self._named[:1] if choice((True, True, False)) else self._named
        return {"limits": {name: keys[name] for name in few}}

    def _put(self) -> Call:
        (data,), name, options = self.data(1), self.queue_name(), self._put_options()
        text = f"put {data} into {name} with {options}"
        return self._call("put", text, lambda at, tr: at(tr, name).put(tr, data, **options), adds=[data])

    def _set(self) -> Call:
        name = self.random.choice(self._names)
        if self.random.random() < DELETED and not self._walks(name):
            return self._call("delete", f"delete the limit {name}", lambda _, tr: Limit.delete(tr, name))
        number = max(1, self._used(name) + self.random.choice((-1, 0, 1, 2)))
        return self._call("set", f"set {name} to {number}", lambda _, tr: self._set_to(tr, name, number))

    def _walks(self, name: str) -> bool:
        """True if sweeps go through all keys. A refused delete sweeps then, but not in a transaction."""
        return self.twins.own.get(LimitKeys(RootKeys(DEFAULT_ROOT).prefix, name).walk) is not None

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found = super().seen(tr)
        for name in self._names:
            found[f"the limit {name}"] = [_told(tr, name)]
            if name in KEYED:
                keys = caught(partial(Limit.keys, name=name), tr)
                found[f"the keys of {name}"] = (
                    [str(keys)] if isinstance(keys, Exception) else [*map(str, keys)]
                )
        if len(self._names) == 1:  # with several limits, the first lane of a take decides which tasks start
            found |= {f"takes of {name}": self._takes(tr, name) for name in self.queues}
        return found

    def _takes(self, tr: Transaction, name: str) -> list[str]:
        taken: list[str] = []
        for _ in range(TAKES_MAX):
            task = caught(partial(self._own(tr, name).take, session=self.session), tr)
            if not isinstance(task, Task):
                break
            taken.append(str(task.data))
        return taken


def _told(tr: Transaction, name: str) -> str:
    limit = caught(partial(Limit.open, name=name), tr)
    if not isinstance(limit, Limit):
        return str(limit)
    return f"{limit.used} used, {limit.free} free, next at {limit.next}"
