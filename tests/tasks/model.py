"""A task queue as a page of plain Python: one list, one clock, no transactions."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

NEVER = float("inf")
STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}


class Refused(Exception):
    """The verb is not for this task, or not any more."""


@dataclass
class ModelTask:
    id: str
    data: Any
    pri: int
    state: str
    expires: float
    ttr: float
    until: float = NEVER
    session: str = ""
    lease: int = 0
    cancelled: bool = False
    attempts: int = 0


class Model:
    def __init__(self, *, timed: bool, capacity: int | None) -> None:
        self.timed = timed
        self.capacity = capacity
        self.now = 0.0
        self.tasks: dict[str, ModelTask] = {}
        self.calls: Counter[str] = Counter()
        self._leases = 0

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for task in list(self.tasks.values()):
            if task.state == "t" and task.until <= self.now:
                self._ready(task, "ttr")
            if task.state == "~" and task.until <= self.now:
                self._ready(task, "delay")
            if task.state in "r!" and task.expires <= self.now:
                self._remove(task, "ttl", "delete", "done")

    def full(self, more: int) -> bool:
        return self.capacity is not None and len(self.tasks) + more > self.capacity

    def put(self, id_: str, data: Any, pri: int, ttl: float, ttr: float, delay: float) -> None:
        task = ModelTask(id_, data, pri, "r", self.now + ttl + delay, ttr)
        if delay:
            task.state, task.until = "~", self.now + delay
        self.tasks[id_] = task
        self.calls["put"] += 1
        self.advance(0)

    def ready(self) -> list[ModelTask]:
        return sorted(
            (task for task in self.tasks.values() if task.state == "r"), key=lambda task: (task.pri, task.id)
        )

    def take(self, session: str, count: int) -> list[ModelTask]:
        return self._lend(session, self.ready()[:count])

    def take_from_bag(self, session: str, count: int, found: list[str]) -> list[ModelTask]:
        """Any tasks may be next; if the count is larger than the bag, they come in the order of arrival."""
        ready = {task.id: task for task in self.ready()}
        assert len(found) == min(count, len(ready))
        assert len(ready) >= count or found == list(ready)
        return self._lend(session, [ready[id_] for id_ in found])

    def _lend(self, session: str, taken: list[ModelTask]) -> list[ModelTask]:
        for task in taken:
            self._leases += 1
            task.state, task.session, task.lease = "t", session, self._leases
            task.until = min(self.now + task.ttr, task.expires)
            task.attempts += 1
        self.calls["take"] += len(taken)
        return taken

    def held(self, id_: str, lease: int) -> ModelTask:
        task = self.tasks.get(id_)
        if task is None or task.state != "t" or task.lease != lease:
            raise Refused
        return task

    def ack(self, task: ModelTask) -> None:
        self._remove(task, "ack", "done")

    def delete(self, task: ModelTask) -> None:
        self._remove(task, "delete", "done")

    def release(self, task: ModelTask, delay: float) -> None:
        self._ready(task, "release")
        if delay and not task.cancelled:
            task.state, task.until = "~", self.now + delay
            task.expires += delay

    def touch(self, task: ModelTask, increment: float) -> None:
        task.until += increment
        task.expires += increment
        task.ttr += increment
        self.calls["touch"] += 1

    def bury(self, task: ModelTask) -> None:
        if task.cancelled:
            self._remove(task, "cancel", "done")
        elif task.state != "!":
            task.state, task.until, task.session = "!", NEVER, ""
            self.calls["bury"] += 1

    def kick(self, count: int) -> int:
        buried = sorted(
            (task for task in self.tasks.values() if task.state == "!"), key=lambda task: (task.pri, task.id)
        )
        for task in buried[:count]:
            self._ready(task, "kick")
        return len(buried[:count])

    def release_of(self, session: str | None) -> None:
        for task in list(self.tasks.values()):
            if task.state == "t" and session in (None, task.session):
                self._ready(task, "release")

    def statistics(self) -> dict[str, dict[str, int]]:
        live = Counter(STATES[task.state] for task in self.tasks.values())
        tasks = {name: live[name] for name in STATES.values()}
        names = (
            "put",
            "take",
            "ack",
            "release",
            "bury",
            "kick",
            "delete",
            "touch",
            "ttl",
            "ttr",
            "delay",
            "cancel",
        )
        return {
            "tasks": {
                **tasks,
                "due": 0,
                "cancelled": 0,
                "unreadable": 0,
                "done": self.calls["done"],
                "total": len(self.tasks),
            },
            "calls": {name: self.calls[name] for name in names},
            "ends": {
                "acked": self.calls["ack"],
                "expired": self.calls["ttl"],
                "deleted": self.calls["delete"] - self.calls["ttl"],
                "cancelled": self.calls["cancel"],
                "buried": self.calls["bury"],
            },
        }

    def cancel(self, task: ModelTask) -> None:
        if task.state == "t":
            task.cancelled = True
        else:
            self._remove(task, "cancel", "done")

    def _ready(self, task: ModelTask, call: str) -> None:
        if task.cancelled:
            self._remove(task, "cancel", "done")
            return
        task.state, task.until, task.session = "r", NEVER, ""
        self.calls[call] += 1

    def _remove(self, task: ModelTask, *calls: str) -> None:
        del self.tasks[task.id]
        self.calls.update(calls)
