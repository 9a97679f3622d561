"""Waiters: calls of an aftermath that wait for something else than an entry. Each is answered in time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from fdbqueue.core.database import Database
from fdbqueue.core.errors import FdbQueueError, GroupNotFound, GroupTimeout, QueueFull, ResultTimeout
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.group_settling import readable_row
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.options import kind_named, stored_settings
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_in, id_text, record_of
from tests.system.aftermath.contents import Contents
from tests.system.aftermath.watching import PROMPT_S, Watching

_OF_EACH = 2
"""Waits of each sort: each is a thread, and all of one sort take the same way."""

Wait = Callable[[Database, float], bool]
"""Wait up to some seconds. False if no answer has come."""


@dataclass
class Waiter:
    name: str
    wait: Wait
    happened_s: Callable[[Watching], float | None]
    """The virtual time of the event that it waits for; None before it."""
    answered_s: float | None = None

    def run(self, db: Database, until_s: float) -> None:
        if self.wait(db, until_s - db.runtime.monotonic()):
            self.answered_s = db.runtime.monotonic()

    def late(self, watching: Watching, until_s: float) -> Iterator[str]:
        """Tell if the wait went on for too long after its event, at most until `until_s`."""
        happened_s = self.happened_s(watching)
        if happened_s is None:
            return
        waited_s = (until_s if self.answered_s is None else self.answered_s) - happened_s
        if waited_s > PROMPT_S:
            yield f"the wait for {self.name} went on for {waited_s:.1f} s after that"


def waiters(watching: Watching, root: RootKeys, queues: Sequence[Contents]) -> Iterator[Waiter]:
    """The waits of one process."""
    yield from islice(_for_groups(watching, root), _OF_EACH)
    for queue in queues:
        if queue.definition is not None and queue.tasks:
            yield from _for_room(watching, queue)
            if len(queue.tasks) == 1:  # a task may move to another partition, which is no end
                yield from islice(_for_ends(watching, queue), _OF_EACH)


def _for_groups(watching: Watching, root: RootKeys) -> Iterator[Waiter]:
    for key in watching.rows.keys_in(root.groups.start, root.groups.stop):
        group = root.group_in(key)
        row = readable_row(watching.rows.value(key)) if group and key == root.group(group) else None
        if row is not None and group is not None and not row.ended_us:
            yield Waiter(
                f"the group {group.hex()}", partial(_end_of_group, group.hex()), partial(_changed, key)
            )


def _changed(key: bytes, watching: Watching) -> float | None:
    row = readable_row(watching.rows.value(key))
    return watching.changed_s.get(key) if row is not None and row.ended_us else None


def _end_of_group(group: str, db: Database, timeout_s: float) -> bool:
    with suppress(GroupNotFound):  # it has ended, and is not kept
        try:
            Group.open(db, group).wait(db, timeout_s)
        except GroupTimeout:
            return False
    return True


def _for_ends(watching: Watching, queue: Contents) -> Iterator[Waiter]:
    for keys in queue.tasks:
        for row in watching.rows.under(keys.tasks.start, keys.tasks.stop):
            record = record_of(row.value)
            if record.state != TaskState.BURIED:
                wait = partial(_end_of_task, queue.name, record)
                yield Waiter(f"the task {id_text(record.id)}", wait, partial(_gone, row.key))


def _gone(key: bytes, watching: Watching) -> float | None:
    return None if watching.rows.value(key) is not None else watching.changed_s.get(key)


def _end_of_task(queue: str, record: Record, db: Database, timeout_s: float) -> bool:
    """Wait for the result, if one was asked for, else for the next change of the progress."""
    q, id_ = TaskQueue.open(db, queue), id_text(record.id)
    try:
        if record.extra is not None and record.extra.result_ttl_us:
            q.result(db, id_, timeout_s)
            return True
        return q.wait_for_progress(db, id_, record.fraction, timeout_s) is not None
    except ResultTimeout:
        return False
    except FdbQueueError:  # the task has ended
        return True


def _for_room(watching: Watching, queue: Contents) -> Iterator[Waiter]:
    """A put into a queue that is full. Into another one, it might wake what should wake by itself."""
    assert queue.definition is not None
    settings, kind = stored_settings(queue.definition), kind_named(queue.definition.kind)
    ranges = [keys.tasks for keys in queue.tasks]
    stored = sum(1 for part in ranges for _ in watching.rows.keys_in(part.start, part.stop))
    if settings.capacity and stored >= settings.capacity:
        options = {"key": "aftermath"} if kind.supports("key") else {}
        put = partial(_put, queue.name, options)
        yield Waiter(f"room in {queue.name}", put, partial(_first_gone, queue.tasks, watching.scheduler.now))


def _put(queue: str, options: dict[str, str], db: Database, timeout_s: float) -> bool:
    try:
        TaskQueue.open(db, queue).put(db, "aftermath", timeout=timeout_s, **options)  # type: ignore[arg-type]  # options by kind
    except QueueFull:
        return False
    return True


def _first_gone(parts: Sequence[TaskKeys], since_s: float, watching: Watching) -> float | None:
    """The time at which the first task ended. One that has moved to another partition still takes room."""
    ranges, rows = [keys.tasks for keys in parts], watching.rows
    there = {id_in(key) for part in ranges for key in rows.keys_in(part.start, part.stop)}
    gone_s: dict[bytes, float] = {}
    for key, at_s in watching.changed_s.items():
        if at_s >= since_s and any(part.start <= key < part.stop for part in ranges):
            gone_s[id_in(key)] = max(at_s, gone_s.get(id_in(key), 0.0))
    return min((at_s for id_, at_s in gone_s.items() if id_ not in there), default=None)
