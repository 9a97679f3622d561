"""Takes from a task queue, and the verbs of a consumer about the tasks that it holds."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue import tasks as late
from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    checked_batch_count,
    checked_count,
    checked_fraction,
    checked_function,
    checked_instance,
    checked_items,
    checked_stop,
    checked_take_timeout,
    checked_text,
    require_finished,
    require_verb_batch,
    writable,
)
from fdbqueue.core.binding import may_be_lost
from fdbqueue.core.codec import AbsentCodec
from fdbqueue.core.database import is_database, is_transaction, run
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, AnySession, DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Renewed, Task, TaskState
from fdbqueue.tasks import verbs
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.kinds import delay_us, increment_us
from fdbqueue.tasks.results import encoder
from fdbqueue.tasks.verbs import Target


def has_come_back(task: Task) -> bool:
    """True if a verb has made the task ready or delayed: it was not cancelled meanwhile. Then a power cut
    may undo the verb: the lease ends with its session, as that of a process that dies.
    """
    return task.state != TaskState.DONE


class Taking(TaskHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def take(
        self,
        tr: DatabaseOrTransaction,
        timeout: float | None = None,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> Task | None:
        """Take the next task: for its ttr it is leased to this session, and to no other.

        Given a transaction: one attempt, by the stored state. A dead session that no process has ended yet
        still holds its tasks. Given a database: waits up to `timeout` seconds in the line. None waits for
        ever, zero or less does not wait. Overdue sessions are ended before the answer is None. When `stop`,
        an event, is set, the call leaves the line and raises WaitStopped; a task that came for it is ready
        again.
        Reads: the first ready tasks and timers by snapshot, the task serialisably.
        Writes: moves the task.
        Conflicts: a change of the task. An answer of None in a transaction: a change that makes a task ready.
        Raises: UnknownSession, PayloadUnreadable, WaitStopped; TooMuchToSweep given a transaction that cannot
        tell whether a task is ready.
        """
        found = self._taken(tr, 1, timeout, session, stop)
        return found[0] if found else None

    def take_many(
        self,
        tr: DatabaseOrTransaction,
        n: int,
        timeout: float | None = 0,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> list[Task]:
        """Take the next tasks, up to `n`. The call waits for the first of them as `take` does.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX.
        """
        return list(self._taken(tr, checked_batch_count("n", n), timeout, session, stop))

    def end_waits(self, db: AnyDatabase, *, session: AnySession | None = None) -> None:
        """End the waits of this session's takes in other threads of this process: they return their tasks so
        far.
        """
        given = None if session is None else checked_instance("session", session, Session)
        self._calls(db).end_waits(given or self._own_session(db))

    def ack(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        *,
        session: AnySession | None = None,
        result: Any = None,
    ) -> Task:
        """Remove a task that is done. In the transaction of the work's own writes the effect is exactly-once.

        The `result` of a task that was put with a `result_ttl` is stored, encoded by the codec of the queue;
        of any other task, it is ignored.
        Reads: the task, serialisably.
        Writes: clears the task; its result.
        Conflicts: a change of the task.
        Raises: NotTaken if the lease is over or belongs to another holder, PayloadTooLarge, or TypeError for
        a result that the codec cannot carry; then nothing changes.
        """
        target = self._target(tr, task, session)
        within = tr is not self._database and is_transaction(tr)
        if not isinstance(task, Task) or task.result_ttl is not None or within:
            # Acks that combine are bounded in their number, and not in the bytes of results.
            body = partial(verbs.ack, target=target, result=encoder(self._shape.result_codec, result))
            return self._end(tr, "ack", body, task)
        task._note_end(None, within=False)
        ack = partial(self._calls(tr).acks.ack, target)
        acked = self._told(tr, "ack", ack, task) if observing.observers else ack()
        task._note_end("ack", within=False)
        return acked

    def release(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        *,
        delay: float = 0,
        failure: Failure | None = None,
        session: AnySession | None = None,
    ) -> Task:
        """Give the task back to its old place. With a `delay`, it is ready after that many seconds, and lives
        longer by them.

        With a `failure` the attempt counts as failed, the failure is stored with the task, and a `delay` is
        possible in queues of every kind.
        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, UnsupportedOption.
        """
        later_us = delay_us(delay)
        if failure is not None:
            checked_instance("failure", failure, Failure)
        elif later_us:
            self._shape.kind.require("delay")
        verb, target = "release" if failure is None else "retry", self._target(tr, task, session)
        return self._end(tr, verb, lambda change: verbs.release(change, target, later_us, failure), task)

    def defer(
        self, tr: DatabaseOrTransaction, task: Task | str, delay: float, *, session: AnySession | None = None
    ) -> Task:
        """Give the task back, ready in `delay` seconds. This is `release` for queues of every kind.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: NotTaken, InvalidArgument.
        """
        later_us, target = delay_us(delay), self._target(tr, task, session)
        return self._end(tr, "release", lambda change: verbs.release(change, target, later_us, None), task)

    def touch(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        increment: float,
        *,
        session: AnySession | None = None,
    ) -> Task:
        """Lengthen the lease, the life and all later leases of the task by `increment` seconds.

        Reads: the task.
        Writes: the task.
        Conflicts: a change of the task.
        Raises: InvalidArgument (a ValueError) for an increment that is not positive; NotTaken,
        UnsupportedOption.
        """
        longer_us = increment_us(increment)
        target = self._target(tr, task, session)
        return self._once(tr, "touch", lambda change: verbs.touch(change, target, longer_us), task)

    def bury(self, tr: DatabaseOrTransaction, task: Task | str, *, failure: Failure | None = None) -> Task:
        """Put the task aside until it is kicked. With a `failure` the attempt counts as failed, and the
        failure is stored with the task.

        Reads: the task.
        Writes: moves the task.
        Conflicts: a change of the task.
        Raises: TaskNotFound; NotTaken for a Task under a lease that is over.
        """
        if failure is not None:
            checked_instance("failure", failure, Failure)
        target = self._target(tr, task, None)
        return self._end(tr, "bury", lambda change: verbs.bury(change, target, failure), task)

    # Verbs of a worker about its attempt; programs that take tasks themselves may use them, too.

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
        require_verb_batch(len(few))
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

    def _taken(
        self,
        tr: DatabaseOrTransaction,
        count: int,
        timeout: float | None,
        session: AnySession | None,
        stop: Stop | None,
    ) -> Sequence[Task]:
        timeout_s = checked_take_timeout(timeout)
        given = None if session is None else checked_instance("session", session, Session)
        if stop is not None:
            checked_stop(stop, tr)
        if isinstance(self._shape.codec, AbsentCodec):
            self._shape.codec.require()
        if tr is not self._database and is_transaction(tr):
            holder = given or self._own_session(tr)
            take = partial(self._calls(tr).take_within, writable(tr), count, holder)
        else:
            take = partial(self._calls(tr).take, given, count, timeout_s, stop)
        if not observing.observers:
            return take()
        with self._observed(tr, "take", count=0, waits=timeout_s > 0) as call:
            call.tasks = take()
            call.count = len(call.tasks)
            return call.tasks
