"""Takes and effects of tasks: the transaction that ends a task counts its effect, by its data or its id."""

from functools import partial
from typing import NamedTuple, NoReturn

from fdbqueue.core.database import Database
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Done
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.audit.answers import TAKE

EFFECTS = b"effect/"


def taken(client: Client, q: TaskQueue, timeout_s: float, session: Session | None = None) -> Task | None:
    """Take a task. The auditor judges answers of nothing, and the time of the answer."""
    take = partial(q.take, client.db, timeout_s, session=session)
    return client.call(q.name, TAKE, None, take, timeout_s=timeout_s)


class Handled(NamedTuple):
    """The argument of an operation: a call of a handler, which raises Unavailable if its service is down."""

    worker: str
    queue: str
    value: str
    is_down: bool = False


def succeed(task: HeldTask) -> NoReturn:
    """End a handler: its effect is counted in the transaction that acks the task."""
    raise Done(lambda tr: tr.add(EFFECTS + task.data.encode(), b"\x01"))


def effects_in(database: Database) -> dict[str, int]:
    """Return the number of effects of each task, by its data or its id."""
    return {e.key[len(EFFECTS) :].decode(): e.value[0] for e in database.get_range_startswith(EFFECTS)}
