"""Operators purge a queue and restore its tasks, while others put, take and finish them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.operate.exports import trash
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, unsound
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import EFFECTS, Tasks, hold, once_each, play, put_plain, remaining

NAME = "trashed"
ROOT = Subspace((NAME,))
"""Not the default one: there, the auditor judges that no ended task is there again."""
KINDS = ("fifo", "fifottl", "utubettl", "fair", "bag")


@workload(clients=1, steps=4)
def trashed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(VERB_BATCH=random.choice((1, 3)), LOOKED_THROUGH=random.choice((2, 5)))
    simulation.limit(TRASH_ROWS=random.choice((2, 200)))
    queue = Tasks(NAME, random.choice(KINDS), partitions=random.choice((1, 1, 2)), root=ROOT)
    roles = {
        "producer-": queue.putting(3 * size.steps, 0.2, put),
        "holder-": queue.repeating(8 * size.steps, once),
        "operator-": queue.repeating(3 * size.steps, operate, 0.2),
        "other": queue.repeating(2 * size.steps, operate, 0.3),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [partial(once_each, NAME), tells_its_tasks, agrees, no_watch_left_behind]


def put(client: Client, q: TaskQueue, value: str) -> None:
    choice = client.random.choice
    key = choice("ab") if q.kind in ("utubettl", "fair") else None
    put_plain(client, q, value, key=key, delay=choice((0, 0, 0.5)) if q.kind != "fifo" else 0)


def once(client: Client, q: TaskQueue) -> None:
    task = q.take(client.db, client.random.choice((0, 1)))
    if task is not None:
        hold(client, q, task, finish)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    """End the task with its effect."""

    def body(tr: Transaction) -> None:
        q.ack(tr, task)
        tr.add(EFFECTS + task.data.encode(), b"\x01")

    client.call(NAME, "finish", task.data, partial(run, client.db, body))


def operate(client: Client, q: TaskQueue) -> None:
    if client.random.random() < 0.5:
        client.call(NAME, "purge", None, partial(trash.purge, q, client.db, "an operator"))
    else:
        restore(client, q)
    client.call(NAME, "trash", None, partial(run, client.db, partial(told_and_kept, q)))


def restore(client: Client, q: TaskQueue) -> None:
    there = trash.listed(q, client.db)
    chosen = client.random.choice(there).id if there else None
    with suppress(InvalidArgument):  # another operator has restored it
        client.call(NAME, "restore", None, partial(trash.restore, q, client.db, chosen))


def told_and_kept(q: TaskQueue, tr: Transaction) -> tuple[dict[str, int], dict[str, int]]:
    """The tasks of each purge, as it tells them, and those that are there."""
    keys, id_ = q._shape.root, q._shape.definition.id
    told = {one.id: one.tasks for one in trash.purges(tr, keys, id_, 0)}
    under, kept = keys.trash_of(id_), set[tuple[str, bytes]]()
    for row in tr.get_range(under.start, under.stop):
        parts = keys.trashed_in(bytes(row.key))
        assert parts is not None
        kept.add((parts[1].hex(), parts[2][: -trash.NUMBER_BYTES]))
    return told, dict(Counter(purge for purge, _ in kept))


def survive(client: Client, q: TaskQueue) -> None:
    for _ in trash.listed(q, client.db):
        trash.restore(q, client.db)
    client.call(NAME, "trash", None, partial(run, client.db, partial(told_and_kept, q)))
    for _ in remaining(client, q):
        if (task := q.take(client.db, 1.0)) is not None:
            finish(client, q, task)


# Checkers.


def tells_its_tasks(trace: Trace, _: Database) -> Iterator[str]:
    for look in trace.of(NAME, "trash"):
        if look.done and look.result[0] != look.result[1]:
            yield f"the purges tell {look.result[0]} tasks, and have {look.result[1]}"


def agrees(_: Trace, database: Database) -> Iterator[str]:
    """Check that all stored keys agree with each other at the end."""
    yield from unsound(database, ROOT)
