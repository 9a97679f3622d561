"""The transactions of the workload `composed`: calls about tasks and about the queue."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.errors import NotTaken, QueueFull, TaskNotFound
from fdbqueue.core.limits import PRIORITY_MAX, TASK_KEY_BYTES_MAX
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.scheduler import EPOCH_S
from fdbqueue.testing.simulation import Client
from tests.system.workloads.task_model import Op, Rules, Seen

PAGE = 5
MOST = 149
HUNDREDS = (*(("put_dozen",) * 5,) * 5, ("truncate_most",), ("truncate_most",))
"""Transactions that put 300 tasks, of which two are left: later tasks have indexes above 255."""
_ALWAYS: Sequence[tuple[str, ...]] = (
    ("put",),
    ("put",),
    ("put", "put"),
    ("take",),
    ("take",),
    ("take", "ack"),
    ("put", "take", "ack"),
    ("take", "put"),
    ("ack", "take"),
    ("ack",),
    ("release",),
    ("fail",),
    ("bury",),
    ("bury", "kick"),
    ("kick",),
    ("bury_id",),
    ("bury_id", "bury_id"),
    ("delete_id",),
    ("delete",),
    ("cancel_id",),
    ("renew",),
    ("pause",),
    ("pause", "put"),
    ("resume",),
    ("resume",),
    ("resume", "take"),
    ("truncate", "put"),
)
_TIMED: Sequence[tuple[str, ...]] = (
    ("touch",),
    ("take", "touch"),
    ("take",),
    ("take", "fail"),
    ("fail", "take"),
)
_EXACT: Sequence[tuple[str, ...]] = (
    ("statistics",),
    ("take", "statistics"),
    ("listing",),
    ("truncate_some",),
    ("truncate_some", "take"),
    ("release_all",),
    ("peek",),
)
PLANS = {True: (*_ALWAYS, *_TIMED), False: (*_ALWAYS, *_EXACT)}
"""Calls that go together, with times and without."""
KEYS = ("a", "b", "c")
RARE_KEYS = ("a", "\x00", "k" * (TASK_KEY_BYTES_MAX - 10))
DOZEN = 12


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


class Attempt(TaskVerbs):
    """Calls about the queue, too."""

    def _kick(self, tr: Transaction, op: Op) -> None:
        op.count = self._random.choice((1, 2))
        op.number = self._q.kick(tr, op.count)
        op.told = self._listed(tr, "!")

    def _truncate(self, tr: Transaction, op: Op) -> None:
        self._q.truncate(tr)
        op.told = ""

    def _truncate_most(self, tr: Transaction, op: Op) -> None:
        op.verb, op.count = "truncate_some", MOST
        self._truncate_some(tr, op)

    def _truncate_some(self, tr: Transaction, op: Op) -> None:
        op.count = op.count or self._random.choice((1, 2))
        op.told = self._q.truncate_some(tr, op.count)

    def _release_all(self, tr: Transaction, op: Op) -> None:
        self._q.release_all(tr)
        op.told = ""

    def _pause(self, tr: Transaction, op: Op) -> None:
        self._q.pause(tr)
        op.told = True

    def _resume(self, tr: Transaction, op: Op) -> None:
        self._q.resume(tr)
        op.told = False

    def _statistics(self, tr: Transaction, op: Op) -> None:
        found = self._q.statistics(tr)
        op.told = {**found["tasks"], **{f"calls: {name}": n for name, n in found["calls"].items()}}

    def _listing(self, tr: Transaction, op: Op) -> None:
        op.told = {state: self._listed(tr, state) for state in "rt!~"}

    def _listed(self, tr: Transaction, state: str) -> list[str]:
        return [task.id for task in every_row(partial(self._q.tasks, tr, state, PAGE))]


class Rollback(Exception):
    """Raised in a transaction that is not to commit."""
