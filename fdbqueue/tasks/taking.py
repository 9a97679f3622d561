"""Takes from a task queue, and the verbs that end a lease."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fdbqueue.core import observing
from fdbqueue.core.arguments import (
    checked_batch_count,
    checked_instance,
    checked_stop,
    checked_take_timeout,
    writable,
)
from fdbqueue.core.database import is_transaction
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, AnySession, DatabaseOrTransaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.attempts import Attempts
from fdbqueue.tasks.kinds import delay_us, increment_us
from fdbqueue.tasks.results import encoder


class Taking(Attempts):
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
        given = _checked(session)
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
        if isinstance(task, Task):
            task._note_end(None, within=False)
        within = is_transaction(tr)
        if not within and isinstance(task, Task) and task.result_ttl is None:
            ack = partial(self._calls(tr).acks.ack, target)
            acked = self._told(tr, "ack", ack, task) if observing.observers else ack()
        else:  # acks that combine are bounded in their number, and not in the bytes of results
            body = partial(verbs.ack, target=target, result=encoder(self._shape.result_codec, result))
            acked = self._once(tr, "ack", body, task)
        if isinstance(task, Task):
            task._note_end("ack", within)
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
        return self._end(tr, task, verb, lambda change: verbs.release(change, target, later_us, failure))

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
        return self._end(tr, task, "release", lambda change: verbs.release(change, target, later_us, None))

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
        return self._end(tr, task, "bury", lambda change: verbs.bury(change, target, failure))

    def _taken(
        self,
        tr: DatabaseOrTransaction,
        count: int,
        timeout: float | None,
        session: AnySession | None,
        stop: Stop | None,
    ) -> Sequence[Task]:
        timeout_s = checked_take_timeout(timeout)
        given = None if session is None else _checked(session)
        if stop is not None:
            checked_stop(stop, tr)
        self._shape.codec.require()
        if is_transaction(tr):
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


def _checked(session: AnySession | None) -> Session | None:
    return None if session is None else checked_instance("session", session, Session)
