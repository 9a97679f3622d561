"""The verbs that look at a task queue, and the callback that is told of its changes."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from fdbqueue import tasks as late
from fdbqueue.core import line
from fdbqueue.core.arguments import checked_event, checked_fraction, checked_stop, checked_take_timeout
from fdbqueue.core.database import as_database, is_transaction
from fdbqueue.core.errors import UnsupportedOption
from fdbqueue.core.page import Page, checked_limit
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction
from fdbqueue.core.task import EndedTask, Failure, Holder, Task, TaskState
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callback
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.records import Statistics, id_of
from fdbqueue.tasks.verbs import Target

if TYPE_CHECKING:
    from fdbqueue.core.line.waiting import WaitingCall
    from fdbqueue.core.partitions import Partition
    from fdbqueue.core.task import Explanation
    from fdbqueue.tasks.looking import KeyStatistics
    from fdbqueue.tasks.searching import FoundTasks


class Looks(TaskHandle):
    """Verbs that change no task; some sweep a batch when they have answered."""

    __slots__ = ()

    def peek(self, tr: DatabaseOrTransaction, task: Task | str) -> Task:
        """The task as it is now.

        Reads: the task, serialisably.
        Conflicts: a change of the task.
        Raises: TaskNotFound.
        """
        target = Target(id_of(task))
        return self._see(tr, partial(verbs.peek, target=target), target.id)

    def wait_for_progress(
        self,
        db: AnyDatabase,
        task: Task | str,
        seen: float | None = None,
        timeout: float | None = None,
        *,
        stop: Stop | None = None,
    ) -> Task | None:
        """Wait until the progress of the task is another one than `seen`, and return the task.

        Waits up to `timeout` seconds, None for ever, zero or less not at all. Returns None if it has not
        changed. A lease that ends takes its progress with it: then it is None again. When `stop`, an event,
        is set, the call raises WaitStopped.
        Reads: the task, by snapshot, again after each change and renewal; a watch.
        Conflicts: none.
        Raises: TaskNotFound once the task has ended; RecordUnreadable, InvalidArgument, WaitStopped.
        """
        timeout_s = checked_take_timeout(timeout)
        wanted = None if seen is None else checked_fraction("seen", seen)
        checked_event("stop", stop)
        id_ = id_of(task)
        database = as_database(db)
        until = database.runtime.monotonic() + timeout_s
        with database.waiter(stop) as waiter:
            return late.steps.wait_for_progress(
                database, self._calls(database).parts, id_, wanted, until, waiter
            )

    def result(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        timeout: float | None = None,
        *,
        stop: Stop | None = None,
    ) -> Any:
        """The result of a task that was put with a `result_ttl`: the value of its ack.

        Given a database: waits up to `timeout` seconds for it, None for ever, zero or less not at all. When
        `stop`, an event, is set, the call raises WaitStopped. Given a transaction: the stored state decides.
        Reads: the task and its result, serialisably, again after each change and renewal; a watch.
        Conflicts: a change of the task, the end of its result.
        Raises: ResultTimeout, a TimeoutError, for a task that has not ended; TaskFailed for a buried one;
        NoResult if it ended in another way, its result is over, or none was asked for; PayloadUnreadable,
        RecordUnreadable, WaitStopped.
        Round trips: 1, and 1 more for a large result, or for the failure of a buried task.
        """
        timeout_s = checked_take_timeout(timeout)
        checked_stop(stop, tr)
        id_ = id_of(task)
        if is_transaction(tr):
            found = self._see(tr, partial(late.results.at_once, id_=id_), id_)
            return late.results.decoded(self._shape.result_codec, found)
        database = as_database(tr)
        until = database.runtime.monotonic() + timeout_s
        with database.waiter(stop) as waiter:
            found = late.results.wait(database, self._calls(database).parts, id_, until, waiter)
        return late.results.decoded(self._shape.result_codec, found)

    def explain(self, tr: DatabaseOrTransaction, task: Task | str) -> "Explanation":
        """Why the task is not running: every reason in order of weight, each with its cure.

        Reads: the definition serialisably; by snapshot the task, its failures, its holder, its place, the
        line, and the presences of workers: at most limits.EXPLAINED_MAX of each.
        Conflicts: none.
        Raises: TaskNotFound, RecordUnreadable.
        Round trips: 3.
        """
        id_ = id_of(task)
        return self._see(tr, lambda change: late.explaining.explain(change, id_), id_)

    def holder(self, tr: DatabaseOrTransaction, task: Task | str) -> Holder | None:
        """The session that holds the task, and its processes; None if the task is not taken.

        Reads: the task and its session by snapshot.
        Conflicts: none.
        Raises: TaskNotFound, RecordUnreadable.
        Round trips: 2.
        """
        id_ = id_of(task)
        return self._see(tr, lambda change: late.explaining.holder_of(change, id_), id_)

    def ended_task(self, tr: DatabaseOrTransaction, task: Task | str) -> EndedTask:
        """A task that has ended, in a queue with `retain_s`.

        Reads: one key, by snapshot.
        Conflicts: none.
        Raises: TaskNotFound for a task that has not ended, or is no longer kept; UnsupportedOption for a
        queue without `retain_s`.
        Round trips: 1.
        """
        id_ = id_of(task)
        return self._see_all(tr, lambda changes: late.retaining.ended_task(changes, id_))

    def ended_tasks(
        self, tr: DatabaseOrTransaction, limit: int, *, after: str | None = None
    ) -> Page[EndedTask]:
        """A page of the tasks that have ended, in a queue with `retain_s`, the latest first: at most `limit`
        and limits.BATCH_ITEMS_MAX tasks.

        The page's `next` is the `after` of the following page, None at the end.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument; UnsupportedOption for a queue without `retain_s`.
        Round trips: 2.
        """
        return self._ended(tr, b"", limit, after)

    def ended_tasks_of(
        self, tr: DatabaseOrTransaction, key: Any, limit: int, *, after: str | None = None
    ) -> Page[EndedTask]:
        """`ended_tasks` of one task key.

        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument; UnsupportedOption for a queue without `retain_s`, or for a kind without
        task keys.
        Round trips: 2.
        """
        self._shape.kind.require("key")
        return self._ended(tr, key_bytes(key), limit, after)

    def _ended(self, tr: DatabaseOrTransaction, key: bytes, limit: int, after: str | None) -> Page[EndedTask]:
        most, place = checked_limit(limit), late.retaining.place_after(after)
        return self._see_all(tr, lambda changes: late.retaining.page(changes, key, most, place))

    def paused(self, tr: DatabaseOrTransaction) -> bool:
        """True if the queue is paused.

        Reads: the flag.
        Conflicts: `pause` and `resume`.
        """
        return self._see(tr, verbs.is_paused)

    def steps(self, tr: DatabaseOrTransaction, task: Task | str) -> list[str]:
        """The names of the steps of the task that are done, sorted.

        Reads: the task; its steps by snapshot.
        Conflicts: a change of the task.
        Raises: TaskNotFound, RecordUnreadable.
        Round trips: 1, and 1 more for a task with steps.
        """
        id_ = id_of(task)
        return self._see(tr, partial(late.steps.names, id_=id_), id_)

    def failures(self, tr: DatabaseOrTransaction, task: Task | str) -> list[Failure]:
        """The stored failures of the task's attempts: the last limits.FAILURES_KEPT, the oldest first.

        Reads: the task; the failures by snapshot.
        Conflicts: a change of the task.
        Raises: TaskNotFound.
        """
        id_ = id_of(task)
        return self._see(tr, lambda change: verbs.failures_of(change, id_), id_)

    def statistics(self, tr: DatabaseOrTransaction) -> Statistics:
        """Exact counts, as {"tasks", "calls", "ends"}: tasks by state, verbs by name, and how tasks have
        ended.

        Tasks are counted in their stored state. A task that is due and not swept yet counts as `delayed`, and
        also as `due`, among the first limits.DUE_COUNTED_MAX timers that have run out. A task of a cancelled
        group counts in its state, and also as `cancelled`, until sweeps have gone through that group. Given a
        database, the call also sweeps one batch.
        Reads: by snapshot.
        Conflicts: none.
        """
        return self._see_all(tr, late.looking.statistics_in, sweeps=True)

    def key_statistics(self, tr: DatabaseOrTransaction, limit: int) -> "list[KeyStatistics]":
        """The task keys with the most ready tasks, busiest first: at most `limit` and
        limits.KEYS_LOOKED_AT_MAX keys.

        Each has its number of tasks in each state, and its first ready task. That is the oldest one; in a
        micro-queue with priorities, the next one. The numbers are exact, as of the stored states. The choice
        of keys is exact, too, while at most limits.KEYS_LOOKED_AT_MAX keys have tasks. Beyond that, keys with
        64 and more ready tasks are found by the magnitude of that number. If there are too many of those as
        well, a key that is left out has less than four times as many ready tasks as any key in the answer.
        Other keys fill an answer shorter than `limit`. Given a database, the call also sweeps one batch.
        Reads: by snapshot.
        Conflicts: none.
        Raises: UnsupportedOption for a kind without task keys; InvalidArgument.
        """
        late.looking.checked_keys(limit)
        if not isinstance(self._shape.discipline, late.stored.keyed.Keyed):
            raise UnsupportedOption(kind=self.kind, option="statistics by key")
        return self._see_all(tr, partial(late.looking.busiest_of_all, limit=limit), sweeps=True)

    def waiting(self, tr: DatabaseOrTransaction, limit: int) -> "list[WaitingCall]":
        """The calls that wait for tasks, in the order of the line: the first `limit`, at most
        limits.BATCH_ITEMS_MAX.

        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        Round trips: 2.
        """
        most, parts = checked_limit(limit), self._calls(tr).parts

        def look(change: Change) -> "list[WaitingCall]":
            return line.waiting.waiting_in(change.tr, change.shape.root, parts.lines(), change.now_us, most)

        return self._see(tr, look)

    def partitions(self, tr: DatabaseOrTransaction) -> "list[Partition]":
        """The partitions that may hold a task, by number. A queue without partitions is its own only one.

        Reads: the counters and the flag of each, by snapshot.
        Conflicts: none.
        Round trips: 1.
        """
        return self._see_all(tr, late.looking.partitions_in)

    def tasks(
        self, tr: DatabaseOrTransaction, state: TaskState | str, limit: int, *, after: str | None = None
    ) -> Page[Task]:
        """A page of the tasks in `state`, in order: at most `limit` and limits.BATCH_ITEMS_MAX tasks, and
        limits.BATCH_BYTES_MAX bytes of data, or one larger task.

        The page's `next` is the `after` of the following page, None at the end. A page may be shorter than
        `limit`, even empty, and not be the last. Tasks are listed in their present state, swept or not. Tasks
        that are due and not swept yet may follow all ready ones. A task that changes its place between two
        pages may be listed twice or not at all; every other task is listed once. Given a database, the call
        sweeps one batch after the first page.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        """
        most, wanted = checked_limit(limit), late.looking.checked_state(state)
        place = late.looking.place_after(wanted, after)
        # A sweep between two pages would move tasks to places that have been passed.
        return self._see_all(
            tr, lambda changes: late.looking.page_of_all(changes, wanted, most, place), sweeps=after is None
        )

    def search(
        self,
        tr: DatabaseOrTransaction,
        where: Mapping[str, Any],
        *,
        after: str | None = None,
        look: int | None = None,
        most: int = 50,
    ) -> "FoundTasks":
        """The first `most` tasks that match each filter of `change`; "state" may be "taken", too.

        Filters named "id", "unique", "group", "class" and, in a queue of task keys, "key" have an index. With
        others, the call looks at all tasks by their ids: limits.SEARCHED_TASKS, or `look`. The `after` of the
        answer is that of the call that goes on. Given a database, it uses bounded transactions; in one, it
        ends after limits.COUNTED_S. Data are bounded in bytes, so fewer tasks may be found. A task that
        changes meanwhile may be found or not.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument, UnsupportedOption.
        Round trips: 2 with an index, and 1 more for a key, and for large payloads.
        """
        return late.searching.search(self, tr, where, after, look, most)

    def on_task_change(self, callback: Callback | None = None) -> Callback | None:
        """Have `callback(task, event)` called for every change that this process makes. Return the callback
        before it.

        It is called after the commit, in a thread of its own; its errors are logged. None removes the
        callback.
        Raises: InvalidArgument, DeferredBody.
        """
        return calls_of(self._database, self._shape).callbacks.install(callback, self._shape.codec)
