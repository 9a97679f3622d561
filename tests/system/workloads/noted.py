"""One attempt of a transaction in the workload `composed`: its calls, noted with their answers."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fdbqueue.core.errors import NotTaken, TaskNotFound
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.runtime import EPOCH_S
from fdbqueue.testing.simulation import Client
from tests.system.workloads.notes import Op, Seen
from tests.system.workloads.task_model import Rules


class Rollback(Exception):
    """Raised in a transaction that is not to commit."""


class Noted:
    """One attempt of a transaction: the tasks that its client holds if it commits, and its calls."""

    def __init__(
        self, client: Client, q: TaskQueue, session: Session, rules: Rules, seed: float, ids: Sequence[str]
    ) -> None:
        self.ops: list[Op] = []
        self.held: list[Task] = []
        self.put: list[str] = []
        self._client, self._q, self._session, self._rules = client, q, session, rules
        self._random, self._ids = Random(seed), list(ids)

    def call(self, tr: Transaction, verbs: Sequence[str], held: Sequence[Task]) -> None:
        self.held = list(held)
        for verb in verbs:
            op = Op(verb, self._client.runtime.now())
            getattr(self, f"_{verb}")(tr, op)
            if op.error or op.answers or op.told is not None:
                op.ended = self._client.runtime.now()
                op.latest = EPOCH_S + self._client.runtime.monotonic() + self._rules.skew_s
                self.ops.append(op)

    def noted(self, op: Op, call: Callable[[], Any], task: Task | str = "", refused: Any = NotTaken) -> None:
        """Note a call that returns a task, or tasks; `refused` are the errors that it may raise."""
        op.id = task.id if isinstance(task, Task) else task
        op.token = task.token if isinstance(task, Task) else None
        try:
            answer = call()
        except refused as error:
            op.error = type(error).__name__
        else:
            tasks = answer if isinstance(answer, list) else [answer]
            op.answers, op.told = [Seen.of(task) for task in tasks], ""

    def with_held(self, op: Op, call: Callable[[Task], Any], ends: bool = True) -> None:
        """Note a call about a task that the client holds, if it holds one."""
        if not self.held:
            return
        task = self._random.choice(self.held)
        self.noted(op, lambda: call(task), task)
        if ends:
            self.held.remove(task)

    def by_id(self, op: Op, call: Callable[[str], Any]) -> None:
        """Note a call about one of the latest tasks, whatever became of it."""
        known = [*self._ids, *self.put]
        if known:
            id_ = self._random.choice(known[-5:])
            self.noted(op, lambda: call(id_), id_, refused=TaskNotFound)
