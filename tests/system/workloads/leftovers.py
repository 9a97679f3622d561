"""Leases and requests that ended clients have left: `look` counts them, `nothing_left` checks for none."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.database import Database, run
from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.simulation import Checker, Client
from fdbqueue.testing.trace import Trace

LOOK = "look"


def look(client: Client, subject: str, q: TaskQueue) -> None:
    client.call(subject, LOOK, q.name, partial(run, client.db, partial(_held_and_awaited, q)))


def _held_and_awaited(q: TaskQueue, tr: Transaction) -> tuple[int, int]:
    """Return the number of taken tasks, and the number of keys in the line."""
    keys = TaskKeys(q.contents)
    ranges = (keys.taken, LineKeys(keys.line).activity)
    held, awaited = (len(tr.snapshot.get_range(under.start, under.stop).to_list()) for under in ranges)
    return held, awaited


def nothing_left(subject: str) -> Checker:
    """Return a checker: no task is taken and no request waits at a look."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for found in trace.of(subject, LOOK):
            if found.result != (0, 0):
                yield f"the ended clients left (tasks taken, keys of the line): {found.result}"

    return check
