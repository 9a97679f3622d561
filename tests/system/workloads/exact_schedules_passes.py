"""Passes of the workload `exact_schedules`, and changes of the queues of its schedules."""

from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules.schedule import fire_due, list_schedules
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_schedules_deeds import QUEUES
from tests.system.workloads.exact_schedules_model import Model


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
