"""Life: one process of an aftermath. It takes and finishes entries of every queue, waits, and sweeps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, QueueNotFound, ScheduleNotFound, TaskNotFound
from fdbqueue.core.registry import Registry
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule, list_schedules
from tests.system.aftermath.bounds import SETTLED_S, has_schedules, late_s
from tests.system.aftermath.contents import Contents
from tests.system.aftermath.waiters import Waiter, waiters
from tests.system.aftermath.watching import Watching, is_any
from tests.system.audit.mirror import Mirror


class Life:
    """The life of one process."""

    def __init__(
        self,
        watching: Watching,
        registry: Registry,
        queues: Sequence[Contents],
        until_s: float,
        is_last: bool,
    ) -> None:
        self._watching, self._registry, self._queues = watching, registry, queues
        self._until_s, self._is_last = until_s, is_last

    def run(self, db: Database, found: list[str]) -> None:
        rows, root = self._watching.rows, self._registry.keys
        swept = [root.beats_due, root.schedules, root.group_sweeps]
        if is_any(rows, swept) and not any(queue.tasks for queue in self._queues):
            Session(db)  # no other call of this process makes it sweep
        for queue in self._queues:
            _resume(db, rows, queue)
        waits = list(waiters(self._watching, root, self._queues))
        if self._is_last and has_schedules(rows, root):
            db.runtime.spawn(partial(self._end_schedules, db, found), "operator")
        self._join(db, [partial(self._consume, db, queue) for queue in self._queues], waits)
        self._watching.end()
        for waiter in waits:
            found += waiter.late(self._watching, self._until_s)
        if self._is_last and not awaits_tokens(rows, self._queues):
            found += self._found(db)

    def _join(self, db: Database, takers: Sequence[Callable[[], None]], waits: Sequence[Waiter]) -> None:
        targets: list[Callable[[], Any]] = [*takers, *(partial(one.run, db, self._until_s) for one in waits)]
        threads = [db.runtime.spawn(target, f"waiter-{number}") for number, target in enumerate(targets)]
        for thread in threads:
            thread.join()
        db.runtime.sleep(self._until_s - db.runtime.monotonic())  # a queue may be gone, and its take ends

    def _consume(self, db: Database, queue: Contents) -> None:
        """Take and finish entries."""
        with suppress(QueueNotFound):
            take = queue.make_take(db)
            self._watching.begin(queue)
            found = True
            while found and (left_s := self._until_s - db.runtime.monotonic()) > 0:
                with suppress(NotTaken, TaskNotFound):  # its ttl is over
                    found = take(db, left_s)

    def _end_schedules(self, db: Database, found: list[str]) -> None:
        """Tell of schedules that are late, and pause all a while before the end: each puts tasks for ever."""
        late = late_s(self._watching.rows, self._registry.keys, db.runtime.now_us())
        db.runtime.sleep(self._until_s - SETTLED_S / 2 - db.runtime.monotonic())
        for status in list_schedules(db):
            since = db.runtime.now() - late
            # Where a small queue has little room, many missed due times are handled a few at a time.
            goes_on = status.last_fired is not None and status.last_fired >= since
            if status.next_try is not None and status.next_try < since and not goes_on:
                found.append(f"the schedule {status.name!r} has not fired its due time {status.due}")
            with suppress(ScheduleNotFound):
                Schedule.open(db, status.name).pause(db)

    def _found(self, db: Database) -> Iterator[str]:
        """Tell of entries that a take finds now, and found not while it waited."""
        for queue in self._queues:
            with suppress(QueueNotFound, NotTaken, TaskNotFound):
                if queue.make_take(db)(db, 0):
                    yield f"{queue.name}: a take that waited did not find an entry that a later one has found"


def awaits_tokens(rows: Mirror, queues: Sequence[Contents]) -> bool:
    """True if entries are left in a queue under limits."""
    return any(queue.limits and is_any(rows, queue.available) for queue in queues)


def _resume(db: Database, rows: Mirror, queue: Contents) -> None:
    """Resume a queue that is paused: nothing else ends a pause."""
    if queue.definition is not None and queue.tasks and rows.value(queue.tasks[0].paused) is not None:
        TaskQueue.open(db, queue.name).resume(db)
