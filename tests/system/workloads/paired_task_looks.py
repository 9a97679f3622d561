"""Looks of the workload `paired` at all that a task queue holds, in one transaction that is rolled back."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.parking.limit import Limit
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_calls import shown
from tests.system.workloads.paired_task_calls import KEYED, TaskCalls
from tests.system.workloads.paired_world import text_of

ALL, TAKES_MAX = 99, 12
STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
Seen = dict[str, Sequence[str]]


class TaskLooks(TaskCalls):
    def seen(self, tr: Transaction) -> Seen:
        at = self.opened(self.twins.own) if "partitions" in self.options else self.own
        tasks = {state: list(every_row(partial(at.q.tasks, tr, state, ALL))) for state in STATES}
        self.seen_names = {task.id: str(task.data) for found in tasks.values() for task in found}
        return {
            **self._of_tasks(at, tr, tasks),
            **self._of_queue(at, tr),
            **self._of_limits(tr),
            "groups": [text_of(group.progress, tr) for group in self.groups],
            "tasks of then": [shown(task) for state in "r~" for task in at.then.tasks(tr, state, ALL)],
            **self._probes(at, tr, tasks),
        }

    def _of_tasks(self, at: Any, tr: Transaction, tasks: dict[str, list[Task]]) -> Seen:
        found: Seen = {STATES[state]: list(map(shown, of)) for state, of in tasks.items()}
        names = {**self.known, **self.seen_names}
        ids, there = sorted(names, key=names.__getitem__), self.seen_names
        for name in ("failures", "steps"):
            look = getattr(at.q, name)
            found[name] = [text_of(partial(look, task=id_), tr) for id_ in ids if id_ in there]
        found["results"] = [text_of(partial(at.q.result, task=id_), tr) for id_ in ids]
        return found

    def _of_queue(self, at: Any, tr: Transaction) -> Seen:
        found: Seen = {
            "statistics": [text_of(at.q.statistics, tr)],
            "paused": [text_of(at.q.paused, tr)],
            "classes": list(map(repr, at.dead.classes(tr, ALL))),
            "redrive": [text_of(at.dead.redrive, tr)],
        }
        if self.kind in KEYED:
            found["keys"] = list(map(repr, at.q.key_statistics(tr, ALL)))
        if "retain_s" in self.options:
            found["ended tasks"] = list(map(repr, every_row(partial(at.q.ended_tasks, tr, ALL))))
        return found

    def _of_limits(self, tr: Transaction) -> Seen:
        found: Seen = {f"the limit {name}": [_limit(tr, name)] for name in ("slots", "named", "starts")}
        keys = Limit.keys(tr, "tenant")
        found["the limit tenant"] = [f"{one.key}: {one.used} used, {one.free} free" for one in keys]
        return found

    def _probes(self, at: Any, tr: Transaction, tasks: dict[str, list[Task]]) -> Seen:
        """Takes of all tasks, and puts with the unique keys."""
        found: Seen = {}
        if self.kind != "bag" and "partitions" not in self.options:
            for state in "r!":
                found[f"order of {STATES[state]}"] = [str(task.data) for task in tasks[state]]
            if self.kind != "fair" and not {"limits", "task_limits"} & {*self.options}:
                # Rounds are read by snapshot, and a limit cuts the takes short.
                found["order of takes"] = self._taken(at, tr)
        found["unique keys"] = [self._unique_in(at, tr, unique) for unique in "uv"]
        return found

    def _taken(self, at: Any, tr: Transaction) -> list[str]:
        taken: list[str] = []
        for _ in range(TAKES_MAX):
            task = caught(partial(at.q.take, session=self.sessions[0]), tr)
            if not isinstance(task, Task):
                break
            taken.append(str(task.data))
        return taken

    def _unique_in(self, at: Any, tr: Transaction, unique: str) -> str:
        options = {"key": "a"} if self.kind in KEYED else {}
        found = caught(lambda tr: at.q.put(tr, "a probe", unique=unique, **options), tr)
        if isinstance(found, Task):
            return f"{unique} is that of {found.id}" if found.existed else f"{unique} is free"
        return shown(found)


def _limit(tr: Transaction, name: str) -> str:
    limit = Limit.open(tr, name)
    return f"{limit.used} used, {limit.free} free, next at {limit.next}"
