"""Verbs of a worker about its attempt at a task; programs that take tasks themselves may use them, too."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    checked_count,
    checked_fraction,
    checked_instance,
    checked_items,
    checked_text,
    writable,
)
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.database import is_database, is_transaction, run
from fdbqueue.core.deferred import checked_function, require_finished
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction, Transaction
from fdbqueue.core.task import Renewed, Task, TaskState
from fdbqueue.tasks import verbs
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.kinds import delay_us
from fdbqueue.tasks.managing import checked_verb_batch
from fdbqueue.tasks.results import encoder
from fdbqueue.tasks.verbs import Target


def has_come_back(task: Task) -> bool:
    """True if a verb has made the task ready or delayed: it was not cancelled meanwhile. Then a power cut
    may undo the verb: the lease ends with its session, as that of a process that dies.
    """
    return task.state != TaskState.DONE


class Attempts(TaskHandle):
    """Verbs of the holder that a worker needs beside `ack` and `release`."""

    __slots__ = ()

    def give_back(self, tr: DatabaseOrTransaction, task: Task, delay: float = 0) -> Task:
        """`defer` for a worker before its handler has decided about the task: no attempt has ended.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        later_us, target = delay_us(delay), self._target(tr, task, None)
        body = partial(verbs.give_back, target=target, delay_us=later_us)
        return self._once(tr, "give_back", body, task, may_be_lost=has_come_back)

    def renew(self, tr: DatabaseOrTransaction, tasks: Sequence[Task]) -> Renewed:
        """Lease tasks for their whole ttr from now. Return the new deadline of each task that is still held,
        by id, in order: seconds since the epoch, None for ever. `cancelled` of the answer has the ids of the
        cancelled ones.

        `touch` changes ttr and ttl and is counted; `renew` does neither, and is for queues of every kind.
        Reads: the tasks.
        Writes: the tasks that are held.
        Conflicts: a change of the tasks.
        Raises: TooMuchForOneTransaction for more than limits.VERB_BATCH tasks.
        """
        few = checked_items("tasks", tasks)
        checked_verb_batch(len(few))
        targets = [self._target(tr, task, None) for task in few]
        return run(tr, partial(self._renew, targets=targets, alone=is_database(tr)))

    def _renew(self, tr: Transaction, targets: Sequence[Target], alone: bool) -> Renewed:
        leases = self._calls(tr).parts.each(writable(tr), targets, verbs.renew)
        renewed = verbs.renewed_of(targets, leases)
        if alone and len(renewed) == len(targets):  # no record was unreadable, and mended
            may_be_lost(tr)
        return renewed

    def progress(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        fraction: float,
        *,
        session: AnySession | None = None,
    ) -> Task:
        """Store the progress of a held task, from 0 to 1. It goes with the lease. Not counted.

        Reads: the task.
        Writes: the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        checked, target = checked_fraction("fraction", fraction), self._target(tr, task, session)
        return self._once(tr, "progress", lambda change: late.progress.tell(change, target, checked), task)

    def step(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        name: str,
        function: Callable[..., Any],
        *,
        session: AnySession | None = None,
    ) -> Any:
        """The result of a step of a held task: the stored one, or that of `function`, which is then stored.

        Given a database: `function()` runs outside any transaction. It runs again in a later attempt, if its
        result was not committed. Given a transaction: `function(tr)` runs in it, so its effect there is
        exactly-once, whatever the number of attempts. `name` has 1 to limits.STEP_NAME_BYTES_MAX bytes. The
        codec of the queue encodes the result, which has at most limits.STEP_BYTES_MAX bytes.
        Reads: the task and the step.
        Writes: the task, the step.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over; then nothing is stored. StepUnderWay if the same step runs
        already; TooManySteps, PayloadTooLarge, PayloadUnreadable; TypeError for a result that the codec
        cannot carry; InvalidArgument, DeferredBody; errors of the function.
        Round trips: 1, and 1 more for a step that is not done.
        """
        name = checked_text("name", name, limits.STEP_NAME_BYTES_MAX)
        checked_function("function", function)
        target, codec, within = self._target(tr, task, session), self._shape.result_codec, is_transaction(tr)
        with late.steps.only(self._calls(tr), target, name):
            found = self._see(tr, partial(late.steps.find, target=target, name=name), target.id)
            if found is not None:
                return None if found.payload is None else codec.decode(found.payload)
            result = require_finished("the step", function(tr) if within else function())
            encode = encoder(codec, result)
            self._once(tr, "step", lambda change: late.steps.store(change, target, name, encode), task)
            return result

    def exhaust(self, tr: DatabaseOrTransaction, task: Task, failures_max: int) -> bool:
        """Bury the task if at least `failures_max` of its attempts have failed. True if it was buried.

        Reads: the task; its failures by snapshot.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken.
        """
        checked_count("failures_max", failures_max)
        target = self._target(tr, task, None)
        return self._once(tr, "exhaust", lambda change: verbs.exhaust(change, target, failures_max), task)

    def excuse(self, tr: DatabaseOrTransaction, task: Task) -> bool:
        """Take back a failed attempt that was the database's fault: the lease ended while the database was
        away.

        Returns true if there was something to take back; a second call finds nothing. A task that is still
        taken is released. A failure that has been counted is taken back, whatever has happened to the task
        since; the lease of another holder stays. A task that was buried because of it (`exhaust`) is ready
        again.
        Reads: the task; its failures by snapshot.
        Writes: both.
        Conflicts: a change of the task.
        """
        target, attempt = self._target(tr, checked_instance("task", task, Task), None), task.attempts
        return self._once(
            tr, "excuse", lambda change: late.excusing.excuse(change, target.id, target.token, attempt), task
        )
