"""Functions that assert the contents of a queue, and show them when they differ."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_instance, checked_whole
from fdbqueue.core.database import as_database
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.visible import shown
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

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
