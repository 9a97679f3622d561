"""The calls of the workload `composed`: some go together in a transaction."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from fdbqueue.core.errors import NotTaken, QueueFull, TaskNotFound
from fdbqueue.core.limits import PRIORITY_MAX, TASK_KEY_BYTES_MAX
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure, Task, TaskState
from tests.system.workloads.noted import Noted
from tests.system.workloads.notes import Op

KEYS = ("a", "b", "c")
RARE_KEYS = ("a", "\x00", "k" * (TASK_KEY_BYTES_MAX - 10))
DOZEN = 12


class TaskVerbs(Noted):
    """Calls about a task."""

    def _put(self, tr: Transaction, op: Op) -> None:
        random, kind = self._random, self._q.kind
        options: dict[str, Any] = {}
        if "ttl" in kind or kind in ("fair", "bag"):
            timed = {"ttl": (None, 1, 1, 3), "ttr": (None, 1, 2), "delay": (0, 0, 0.5)}
            options = {name: random.choice(of) for name, of in timed.items() if self._rules.timed}
        if "ttl" in kind:
            options["pri"] = random.choice((0, 0, 1)) and (PRIORITY_MAX if self._rules.rare else 1)
        if "utube" in kind or kind == "fair":
            options["key"] = random.choice(RARE_KEYS if self._rules.rare else KEYS)
        if kind == "fair":
            options["cost"] = random.choice((1, 1, 2))
        op.options, op.count = options, op.count or random.choice((1, 1, 2, 4))
        op.told = [f"{random.random():.9f}"[: random.choice((3, 11))] for _ in range(op.count)]
        values = op.told
        self.noted(op, lambda: self._q.put_many(tr, values, **options), refused=QueueFull)
        op.told = values
        self.put += [answer.id for answer in op.answers]

    def _put_dozen(self, tr: Transaction, op: Op) -> None:
        op.verb, op.count = "put", DOZEN
        self._put(tr, op)

    def _take(self, tr: Transaction, op: Op) -> None:
        op.count = self._random.choice((1, 1, 1, 2, 3))
        taken: list[Task] = []

        def take() -> list[Task]:
            taken.extend(self._q.take_many(tr, op.count, session=self._session))
            return taken

        self.noted(op, take)
        self.held += taken

    def _ack(self, tr: Transaction, op: Op) -> None:
        self.with_held(op, lambda task: self._q.ack(tr, task))

    def _release(self, tr: Transaction, op: Op) -> None:
        op.seconds = self._random.choice((0, 0.5)) if self._rules.delays else 0.0
        self.with_held(op, lambda task: self._q.release(tr, task, delay=op.seconds))

    def _give_back(self, tr: Transaction, op: Op) -> None:
        op.verb = "release"
        self.with_held(op, lambda task: self._q.release(tr, task))

    def _fail(self, tr: Transaction, op: Op) -> None:
        op.verb, op.failed = "release", True
        op.seconds = self._random.choice((0, 0.5)) if self._rules.timed else 0.0
        failure = Failure("Odd", "it failed")
        self.with_held(op, lambda task: self._q.release(tr, task, delay=op.seconds, failure=failure))

    def _bury(self, tr: Transaction, op: Op) -> None:
        op.failed = self._random.random() < 0.5
        failure = Failure("Odd") if op.failed else None
        self.with_held(op, lambda task: self._q.bury(tr, task, failure=failure))

    def _delete(self, tr: Transaction, op: Op) -> None:
        self.with_held(op, lambda task: self._q.delete(tr, task))

    def _touch(self, tr: Transaction, op: Op) -> None:
        op.seconds = 0.7
        if "ttl" in self._q.kind:
            self.with_held(op, lambda task: self._q.touch(tr, task, op.seconds), ends=False)

    def _renew(self, tr: Transaction, op: Op) -> None:
        def renew(task: Task) -> Task:
            renewed = self._q.renew(tr, [task])
            if task.id not in renewed:
                raise NotTaken(id=task.id)
            with suppress(TaskNotFound):  # it may have expired since, or lapsed, while a reply was slow
                shown = self._q.peek(tr, task.id)
                if shown.state == TaskState.TAKEN:
                    return shown
            return replace(task, until=renewed[task.id])

        self.with_held(op, renew, ends=False)

    def _bury_id(self, tr: Transaction, op: Op) -> None:
        op.verb = "bury"
        self.by_id(op, lambda id_: self._q.bury(tr, id_))

    def _delete_id(self, tr: Transaction, op: Op) -> None:
        op.verb = "delete"
        self.by_id(op, lambda id_: self._q.delete(tr, id_))

    def _cancel_id(self, tr: Transaction, op: Op) -> None:
        op.verb = "cancel"
        self.by_id(op, lambda id_: self._q.cancel(tr, id_))

    def _peek(self, tr: Transaction, op: Op) -> None:
        self.by_id(op, lambda id_: self._q.peek(tr, id_))
