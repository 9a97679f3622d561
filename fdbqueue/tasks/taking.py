"""Takes from a task queue, and the verbs that end a lease."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fdbqueue import observing
from fdbqueue.arguments import (
    checked_batch_count,
    checked_instance,
    checked_stop,
    checked_take_timeout,
    writable,
)
from fdbqueue.database import Database, as_database, is_transaction
from fdbqueue.errors import UnknownSession
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnyDatabase, AnySession, DatabaseOrTransaction
from fdbqueue.sessions.own import own_session_of
from fdbqueue.sessions.session import Session
from fdbqueue.task import Failure, Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.attempts import Attempts
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.handle import note_end
from fdbqueue.tasks.kinds import delay_us, increment_us
from fdbqueue.tasks.results import encoder


class Taking(Attempts):
    """The verbs of a consumer."""

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
        found = self.take_many(tr, 1, timeout, session=session, stop=stop)
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
        checked_batch_count("n", n)
        timeout_s = checked_take_timeout(timeout)
        given = _checked(session)
        checked_stop(stop, tr)
        self.require_codec()
        if is_transaction(tr):
            holder = given or self._own_session(tr)
            calls = self._watched(tr, "take") if observing.observers else self._calls(tr)
            return list(calls.take_within(writable(tr), n, holder))
        return list(self._take(as_database(tr), n, timeout_s, given, stop))

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
        calls = self._watched(tr, "ack", task) if observing.observers else self._calls(tr)
        note_end(task, None)
        within = is_transaction(tr)
        if not within and isinstance(task, Task) and task.result_ttl is None:
            acked = calls.acks.ack(target)
        else:  # acks that combine are bounded in their number, and not in the bytes of results
            body = partial(verbs.ack, target=target, result=encoder(self._shape.result_codec, result))
            acked = calls.within(writable(tr), body, target.id) if within else calls.once(body, target.id)
        note_end(task, "ack", within)
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

    def _take(
        self,
        database: Database,
        count: int,
        timeout_s: float,
        session: Session | None,
        stop: Stop | None,
        told: bool = False,
    ) -> Sequence[Task]:
        """Take for `session`, or for the own session; again if that one has died meanwhile.

        `told`: the observers have been told of this call.
        """
        if observing.observers and not told:
            take = partial(self._take, database, count, timeout_s, session, stop, told=True)
            return self._watched(database, "take").take(take, waits=timeout_s > 0)
        monotonic, own = database.runtime.monotonic, own_session_of(database, self._shape.root)
        until = monotonic() + timeout_s
        while True:
            try:
                holder = own.get() if session is None else session
                return calls_of(database, self._shape).take(holder, count, timeout_s, stop)
            except UnknownSession:
                if session is not None:
                    raise
                timeout_s = max(0.0, until - monotonic())


def _checked(session: AnySession | None) -> Session | None:
    """Raises WrongType."""
    return None if session is None else checked_instance("session", session, Session)
