"""The deeds of the clients of the workload `item_partitions`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.page import every_row
from fdbqueue.core.partitions.keys import SharedKeys, prefix_of
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.queues.recipe.keys import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.checkers import RETURNING
from fdbqueue.testing.simulation import Client
from tests.system.workloads.common import QUIET_S, dequeue, enqueue

NAME = "items in partitions"
HOLD, GIVE_BACK, CLEAR = "hold", "give back", "clear"
"""Calls that only some runs make, as not all checkers allow for them."""
BATCH = 3
"""Values of a call that enqueues several; a transaction of two calls has fewer."""
NOTE = b"note/"
SHOWING_S = (0.0, 0.1, 12.0)


def opened(client: Client) -> Queue:
    """Open the queue, which is used with the line by most clients, and with retries by some."""
    return Queue.named(client.db, NAME, contended="simple" if client.random.random() < 0.15 else "staged")


def put(client: Client, q: Queue, value: str) -> None:
    """Enqueue a value, three at once, or two by two calls in a transaction."""
    way = client.random.random()
    if way < 0.7:
        enqueue(client, q, NAME, [value] if way < 0.4 else [value + "+" * n for n in range(BATCH)])
        return
    values = [value, f"{value}+"]

    def body(tr: Any) -> None:
        if not tr.get(NOTE + value.encode()).present():  # an attempt with an unknown result has committed
            tr.set(NOTE + value.encode(), b"")
            for one in values:
                q.enqueue(tr, one)

    client.call(NAME, "enqueue", values, partial(run, client.db, body))


def take(client: Client, q: Queue, db: Database, returns: bool) -> None:
    """Dequeue a value, or several, in a transaction or not."""
    way = client.random.random()
    if way < 0.6:
        timeout = client.random.choice((0, 1, 5))
        client.call(NAME, "dequeue", 1, lambda: listed(q.dequeue(db, timeout=timeout)))
    elif way < 0.75:
        client.call(NAME, "dequeue", 3, partial(q.dequeue_many, db, 3))
    else:
        take_within(client, q, db, returns and way > 0.9)


def take_within(client: Client, q: Queue, db: Database, returns: bool) -> None:
    """Dequeue in a transaction; with `returns`, two values, and give back the second."""
    note = NOTE + client.runtime.random_bytes(8)

    def body(tr: Any) -> list[Any]:
        known = tr.get(note)
        if known.present():  # an attempt with an unknown result has committed
            return listed(bytes(known.value).decode() or None)
        found = q.dequeue_many(tr, 2 if returns else 1)
        if found[1:]:
            q.give_back(tr, found[1:])
        tr.set(note, found[0].encode() if found else b"")
        return found[:1]

    client.call(NAME, RETURNING if returns else "dequeue", 1, partial(run, db, body))


def listed(value: Any) -> list[Any]:
    return [] if value is None else [value]


def read(client: Client, q: Queue) -> None:
    """Hold values, show some of them, and settle that."""
    holder = q.holder(client.db)
    held = holder.hold(client.random.randint(1, 6))
    if not held:
        holder.wait(client.random.random())
        return
    client.runtime.sleep(client.random.choice(SHOWING_S))
    shown = held[: client.random.randint(0, len(held))]
    client.call(NAME, "dequeue", len(shown), lambda: shown if holder.settle(len(shown)) else [])


def look(client: Client, q: Queue) -> None:
    """Compare at one version the counters, the stored items of each partition, and the answers of calls."""
    client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))


def counted_and_found(q: Queue, tr: Any) -> tuple[Any, Any]:
    parts = q.partitions(tr)
    stored = [QueueKeys(Subspace((), part.prefix)).items for part in parts]
    found = [len(tr.snapshot.get_range(under.start, under.stop).to_list()) for under in stored]
    counted = (q.size(tr), q.empty(tr), q.peek(tr) is None, len(paged(q, tr)), [part.ready for part in parts])
    return counted, (sum(found), not sum(found), not sum(found), sum(found), found)


def paged(q: Queue, tr: Any) -> list[Any]:
    """All values, by pages of two."""
    return list(every_row(partial(q.items, tr, 2)))


def repartition(client: Client, q: Queue, way: Sequence[int]) -> None:
    for count in way:
        client.runtime.sleep(client.random.choice((0, 0.1, 1)))
        if client.random.random() < 0.1:
            return
        client.call(NAME, "repartition", count, partial(q.repartition, client.db, count))


def drain(client: Client) -> None:
    """Dequeue all values, also those that were handed to dead clients, and let all partitions go."""
    q = Queue.named(client.db, NAME)
    client.call(NAME, "look at the line", None, lambda: run(client.db, requests_and_results))
    client.runtime.sleep(QUIET_S)
    look(client, q)
    while dequeue(client, q, NAME):
        pass
    dequeue(client, q, NAME, timeout=1)
    q.repartition(client.db, 1)
    client.runtime.sleep(limits.RECEIPT_STALE_S)
    # These calls leave a receipt, so that closing the database sweeps.
    enqueue(client, q, NAME, [f"the last of {NAME}"])
    while dequeue(client, q, NAME):  # the take that finds nothing drops dead requests
        pass


def requests_and_results(tr: Any) -> int:
    """The number of keys in the lines of all partitions, and in that which they share."""
    registry = Registry(DEFAULT_ROOT)
    contents = registry.contents(registry.find(tr, NAME))
    shared = SharedKeys(contents)
    lines = [shared.line, *(QueueKeys(Subspace((), prefix_of(contents, n))).line for n in range(8))]
    return sum(len(tr.snapshot.get_range(line, line + b"\xff").to_list()) for line in lines)
