"""Effects of tasks: the transaction that ends a task counts its effect, by the data or the id of the task."""

from typing import NamedTuple, NoReturn

from fdbqueue.database import Database
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Done

EFFECTS = b"effect/"


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
