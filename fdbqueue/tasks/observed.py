"""ObservedCalls: stands in for the services of a queue (calls.py) in one call, and tells the observers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fdbqueue.observing import Call
from fdbqueue.runtime import Runtime, Stop
from fdbqueue.seam import Transaction
from fdbqueue.sessions.session import Session
from fdbqueue.task import Task
from fdbqueue.tasks.calls import TaskCalls
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")


class ObservedCalls:
    """Has the methods of TaskCalls, and of its acks, that have an effect; `take` has the whole call."""

    def __init__(self, calls: TaskCalls, runtime: Runtime, name: str, task: Task | str = "") -> None:
        """`name`: the verb. `task`: the task of a call about one task."""
        self.acks = self
        self._calls = calls
        self._call = Call(runtime, name, calls.shape.name, task.id if isinstance(task, Task) else task)

    def put(self, drafts: Sequence[Draft], timeout_s: float, stop: Stop | None = None) -> list[Task]:
        call = self._call
        call.count, call.waits, call.stores_trace = len(drafts), timeout_s > 0, True
        with call:
            tasks = self._calls.put(_carrying(drafts, call.trace), timeout_s, stop)
            call.tasks = tasks
            return tasks

    def put_within(self, tr: Transaction, drafts: Sequence[Draft]) -> list[Task]:
        call = self._call
        call.count, call.within, call.stores_trace = len(drafts), True, True
        with call:
            tasks = self._calls.put_within(tr, _carrying(drafts, call.trace))
            call.tasks = tasks
            return tasks

    def take(self, take: Callable[[], Sequence[Task]], *, waits: bool) -> Sequence[Task]:
        """`take` may use several sessions, one after the other."""
        call = self._call
        call.count, call.waits = 0, waits
        with call:
            call.tasks = take()
            call.count = len(call.tasks)
            return call.tasks

    def take_within(self, tr: Transaction, count: int, session: Session) -> Sequence[Task]:
        call = self._call
        call.count, call.within = 0, True
        with call:
            call.tasks = self._calls.take_within(tr, count, session)
            call.count = len(call.tasks)
            return call.tasks

    def ack(self, target: Target) -> Task:
        with self._call as call:
            call.tasks = [self._calls.acks.ack(target)]
            return call.tasks[0]

    def once(
        self,
        body: Callable[[Change], T],
        id_: bytes | None = None,
        may_be_lost: Callable[[T], bool] | None = None,
    ) -> T:
        with self._call as call:
            return _noted(call, self._calls.once(body, id_, may_be_lost))

    def within(self, tr: Transaction, body: Callable[[Change], T], id_: bytes | None = None) -> T:
        self._call.within = True
        with self._call as call:
            return _noted(call, self._calls.within(tr, body, id_))

    def all_once(self, body: Callable[[Sequence[Change]], T]) -> T:
        with self._call as call:
            return _noted(call, self._calls.all_once(body))

    def all_within(self, tr: Transaction, body: Callable[[Sequence[Change]], T]) -> T:
        self._call.within = True
        with self._call as call:
            return _noted(call, self._calls.all_within(tr, body))


def _carrying(drafts: Sequence[Draft], trace: bytes) -> Sequence[Draft]:
    return [replace(draft, trace=trace) for draft in drafts] if trace else drafts


def _noted(call: Call, answer: T) -> T:
    if isinstance(answer, Task):
        call.tasks = [answer]
    return answer
