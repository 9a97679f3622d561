"""Looks of the workload `exact` at the counts of a queue, at its task keys, and at its ended tasks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fdbqueue.core.page import every_row
from fdbqueue.tasks.key_statistics import Waiting
from fdbqueue.tasks.records.statistics import ends_of
from tests.system.workloads.exact_calls import Caller, caught, require_equal
from tests.system.workloads.exact_explained import KEYED
from tests.system.workloads.exact_verbs import Verbs

STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
LISTED = ("put", "take", "ack", "release", "bury", "kick", "delete", "touch", "ttl", "ttr", "delay", "cancel")


class Counts:
    def __init__(self, user: Verbs) -> None:
        self.user, self.q, self.model = user, user.q, user.model
        self.caller: Caller = user.caller
        self.random = user.random
        self._target: Any = None

    def _at(self, target: Any, look: Callable[[], None]) -> None:
        self._target = target
        look()

    def _see(self, look: Any) -> Any:
        return caught(look, self._target)

    def _pages(self, look: Any) -> list[Any]:
        return list(every_row(lambda *, after: self._see(partial(look, after=after))))

    def _statistics(self) -> None:
        found, calls = self._see(self.q.statistics), self.model.calls
        states = Counter(STATES[life.state] for life in self.model.lives.values())
        wanted = {
            "tasks": {
                **{name: states[name] for name in STATES.values()},
                "done": calls["done"],
                "total": len(self.model.lives),
                "unreadable": 0,
                "due": 0,
                "cancelled": 0,
            },
            "calls": {name: calls[name] for name in LISTED},
            "ends": ends_of(calls),
        }
        require_equal("statistics", found, wanted)

    def _ended(self, size: int) -> None:
        wanted = self.model.retained()
        require_equal("ended tasks", self._pages(partial(self.q.ended_tasks, limit=size)), wanted)
        for one in wanted[:2]:
            require_equal("an ended task", self._see(lambda tr, id_=one.id: self.q.ended_task(tr, id_)), one)
        if self.q.kind in KEYED:
            of_key = partial(self.q.ended_tasks_of, key="a", limit=size)
            require_equal(
                "ended tasks of a key", self._pages(of_key), [one for one in wanted if one.key == "a"]
            )

    def _keys(self) -> None:
        found = {one.key: one for one in self._see(lambda tr: self.q.key_statistics(tr, 10))}
        ready = self.model.in_state("r")
        require_equal("keys", sorted(found), sorted({life.key for life in ready}))
        for key, one in found.items():
            of_key = [life for life in self.model.lives.values() if life.key == key]
            counts = Counter(STATES[life.state] for life in of_key)
            first = next(life for life in ready if life.key == key)
            wanted = replace(one, **{name: counts[name] for name in STATES.values()})
            require_equal("a key", one, wanted)
            age_s = (self.model.now - first.created) / 1_000_000
            require_equal(f"the first of {key}", one.oldest, Waiting(first.id, age_s))
