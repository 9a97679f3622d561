"""Runner: runs every task that was put, until none waits, before its call returns.

It starts a real worker, so outcomes, retries, steps and results are those of a program. The worker ends when
no task is ready. Then the clock is set forward to the first delayed task, and the next worker starts. While a
worker runs, the clock is that of the process: otherwise its leases would be over at once.

Beside it: functions that assert the contents of a queue, and show them when they differ.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Unpack

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_instance, checked_span, checked_whole
from fdbqueue.core.database import Database, as_database
from fdbqueue.core.errors import InvalidArgument, TaskCancelled
from fdbqueue.core.page import every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.visible import counted, shown
from fdbqueue.fleet.options import Event, Hooks, Queues, WorkerKeywords, opened
from fdbqueue.fleet.outcomes import Verdict
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.worker import Worker
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue


class ShiftedRuntime(RealRuntime):
    """Tells the wall-clock time, and after `skip_to` a later one. Intervals stay real ones."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return RealRuntime.now() + self._ahead_s

    def skip_to(self, time: float) -> None:
        """Set the clock forward to `time`, in seconds since the epoch. It never goes back."""
        self._ahead_s += max(0.0, time - self.now())


_LOOK_S = 0.05
"""The end of each attempt is a signal. No signal tells that a worker has only met tasks that had expired."""


class Runner:
    """Runs the tasks of a database with a ShiftedRuntime. The fixture `fdbqueue_worker` is one."""

    __slots__ = ("_clock", "_database")

    def __init__(self, database: Database) -> None:
        """Raises: WrongType if nothing can set the clock of `database` forward."""
        self._database = database
        self._clock = checked_instance("runtime", database.runtime, ShiftedRuntime)

    def __call__(
        self,
        queues: Queues,
        handler: Callable[..., object],
        *,
        raises: bool = True,
        within_s: float = 60.0,
        root: Any = DEFAULT_ROOT,
        **options: Unpack[WorkerKeywords],
    ) -> Tally:
        """Run every task of `queues`, and each that a handler puts there. Return the numbers of attempts.

        `queues` and `options`: as in Worker; by default one thread. Delays and backoff take no time. A
        paused queue is left out. `within_s`: bound of real time.
        `raises`: an error of the handler that is no verdict (Retry, Snooze, Bury, Done) ends the run, and is
        raised here. Its task has the outcome that it has in a worker. Without `raises`, the run goes on.

        Raises: the error of the handler; AssertionError if tasks are left after `within_s`; those of Worker.
        """
        handles = [queue for queue, _ in opened(self._database, queues, root)]
        deadline_s = self._clock.monotonic() + checked_span("within_s", within_s)
        options.setdefault("threads", 1)
        tally = Tally()
        while open_ones := self._with_tasks(handles):
            turn = _Turn(self._database, raises)
            tally += turn.run(
                Worker(self._database, open_ones, handler, hooks=turn.hooks, root=root, **options),
                open_ones,
                deadline_s,
            )
        return tally

    def _with_tasks(self, handles: Sequence[TaskQueue]) -> list[TaskQueue]:
        """The queues that are not paused, if they have tasks. If none is ready, the first delay ends now."""
        going = [queue for queue in handles if not queue.paused(self._database)]
        if _ready(self._database, going):
            return going
        due = min((due for queue in going for due in self._dues(queue)), default=None)
        if due is None:
            return []
        self._clock.skip_to(due)
        return going

    def _dues(self, queue: TaskQueue) -> Iterable[float]:
        delayed = every_row(partial(queue.tasks, self._database, TaskState.DELAYED, limits.BATCH_ITEMS_MAX))
        return [task.until for task in delayed if task.until is not None]


def _ready(database: Database, queues: Iterable[TaskQueue]) -> int:
    counts = [queue.statistics(database)["tasks"] for queue in queues]
    return sum(count["ready"] + count["due"] for count in counts)


class _Turn:
    def __init__(self, database: Database, raises: bool) -> None:
        self._database = database
        self._raises = raises
        self._changed = database.runtime.event()
        self._error: BaseException | None = None
        ended, failed = lambda _: self._changed.set(), self._failed
        self.hooks = Hooks(
            **dict.fromkeys(("succeeded", "snoozed", "handed_off", "cancelled"), ended),
            **dict.fromkeys(("retried", "buried", "lease_lost"), failed),
        )

    def run(self, worker: Worker, queues: Sequence[TaskQueue], deadline_s: float) -> Tally:
        """Run all tasks; then raise the error of the handler, or of the worker."""
        worker.start(until_empty=True)
        try:
            while not worker.join(0) and not self._is_over(worker, queues, deadline_s):
                self._changed.wait(_LOOK_S)
                self._changed.clear()
        finally:
            worker.stop()
            worker.join()
        for error in (self._error, worker.error):
            if error is not None:
                raise error
        return worker.status().tally

    def _is_over(self, worker: Worker, queues: Sequence[TaskQueue], deadline_s: float) -> bool:
        """True if nothing is left to run, or the handler has failed. The deadline fails the test."""
        running = worker.status().running
        if self._error is not None:
            return True
        ready = _ready(self._database, queues)
        if (ready or running) and self._database.runtime.monotonic() > deadline_s:
            worker.stop(at_once=True)
            left = f"{counted(ready, 'task')} ready and {len(running)} running"
            raise AssertionError(f"after `within_s`, {left}")
        return not ready and not running

    def _failed(self, event: Event) -> None:
        if self._raises and event.error is not None and not isinstance(event.error, Verdict | TaskCancelled):
            self._error = self._error or event.error
        self._changed.set()


_SHOWN_MAX = 10
"""Number of tasks in a message."""


def assert_put(
    queue: TaskQueue | Queue,
    n: int = 1,
    *,
    where: Callable[[Any], object] | None = None,
    db: AnyDatabase | None = None,
) -> None:
    """Assert that exactly `n` tasks wait in the queue, ready or delayed; of a Queue, `n` items.

    `where`: a condition on a task, or on an item; the others are not counted. `db`: where they are;
    a TaskQueue knows its own.
    Raises: AssertionError that shows the tasks; InvalidArgument for a Queue without `db`.
    """
    __tracebackhide__ = True
    _assert_there(queue, n, where, (TaskState.READY, TaskState.DELAYED), db, "wait")


def assert_buried(
    queue: TaskQueue,
    n: int = 1,
    *,
    where: Callable[[Task], object] | None = None,
    db: AnyDatabase | None = None,
) -> None:
    """Assert that exactly `n` tasks of the queue are buried. Arguments and errors: as in `assert_put`."""
    __tracebackhide__ = True
    checked_instance("queue", queue, TaskQueue)
    _assert_there(queue, n, where, (TaskState.BURIED,), db, "are buried")


def _assert_there(
    queue: TaskQueue | Queue,
    n: int,
    where: Callable[[Any], object] | None,
    states: tuple[TaskState, ...],
    db: AnyDatabase | None,
    verb: str,
) -> None:
    __tracebackhide__ = True
    wanted = checked_whole("n", n, 0)
    there = list(_there(queue, states, db))
    fitting = there if where is None else [one for one in there if where(one)]
    if len(fitting) != wanted:
        condition = "" if where is None else f", of which {len(fitting)} fit `where`"
        raise AssertionError(f"{wanted} were wanted; {len(there)} {verb}{condition}{_list_of(there)}")


def _there(queue: TaskQueue | Queue, states: tuple[TaskState, ...], db: AnyDatabase | None) -> Iterator[Any]:
    if isinstance(queue, TaskQueue):
        database = queue._database if db is None else as_database(db)
        for state in states:
            yield from every_row(partial(queue.tasks, database, state, limits.BATCH_ITEMS_MAX))
        return
    items = checked_instance("queue", queue, Queue)
    if db is None:
        raise InvalidArgument(name="db", wanted="the database of the items of a Queue", got=None)
    yield from every_row(partial(items.items, as_database(db), limits.BATCH_ITEMS_MAX))


def _list_of(there: list[Any]) -> str:
    lines = [f"\n  {_told(one)}" for one in islice(there, _SHOWN_MAX)]
    more = len(there) - len(lines)
    return ":" * bool(lines) + "".join(lines) + (f"\n  and {more} more" if more else "")


def _told(one: Any) -> str:
    if not isinstance(one, Task):
        return shown(one)
    parts = [shown(one.data)]
    parts += [f"key {shown(one.key)}"] if one.key is not None else []
    parts += (
        [f"due in {max(0.0, one.until - one.created):.0f} s after its put"] if one.until is not None else []
    )
    return ", ".join(parts)
