"""Passes of the workload `exact_schedules`, and changes of the queues of its schedules."""

from fdbqueue.schedules.schedule import fire_due, list_schedules
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.workloads.exact_calls import Caller
from fdbqueue.testing.workloads.exact_schedules_deeds import QUEUES
from fdbqueue.testing.workloads.exact_schedules_model import Model


class Passes:
    def __init__(self, caller: Caller, model: Model, is_calm: bool) -> None:
        self._caller, self._model, self._random, self._is_calm = caller, model, caller.random, is_calm
        self._queues: dict[str, TaskQueue] = {}
        for queue in QUEUES:
            self._make(queue)

    def _make(self, queue: str) -> None:
        db = self._caller.client.db
        self._queues[queue] = TaskQueue.create(db, queue, "limfifottl", capacity=self._model.room)
        self._model.queues[queue] = []

    def fire(self) -> None:
        """Pass until nothing is due: once, unless results are unknown. Such firings are not counted."""
        told = fire_due(self._caller.client.db)
        while not self._is_calm and self._has_due():
            told += fire_due(self._caller.client.db)
        wanted = self._model.fire_all()
        self._note_last()
        assert told == wanted or (told < wanted and not self._is_calm), f"fired: {told}, not {wanted}"

    def _has_due(self) -> bool:
        found = list_schedules(self._caller.client.db)
        return any(one.next_try is not None and one.next_try <= self._model.now / 1_000_000 for one in found)

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
