"""A queue of items whose number of partitions changes under load: calls of all sorts meet each change."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.page import every_row
from fdbqueue.core.partitions import SharedKeys, prefix_of
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import (
    RETURNING,
    exact_statistics,
    never_nothing,
    no_key_left_behind,
    no_watch_left_behind,
    prompt,
    total_queue,
)
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import (
    QUIET_S,
    cramped,
    dequeue,
    enqueue,
    is_definition,
    line_left_empty,
    values_of,
)
from tests.system.workloads.stage import Roles, in_threads, play

WAYS = ((4, 2, 2), (4, 2, 1, 1, 4), (4, 2, 8), (2, 4, 1, 2))
NAME = "items in partitions"
HOLD, GIVE_BACK, CLEAR = "hold", "give back", "clear"
"""Calls that only some runs make, as not all checkers allow for them."""
BATCH = 3
"""Values of a call that enqueues several; a transaction of two calls has fewer."""
NOTE = b"note/"
SHOWING_S = (0.0, 0.1, 12.0)
PROMPT_S = 0.8
HARMLESS = {"clock_skew_s", "watch_spurious"}
"""These faults delay no wake-up."""


@workload(clients=2, steps=4)
def item_partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(
        TAKES_PER_VISIT=random.choice((2, 8)),
        HOMES_CHOSEN_EVERY_S=random.choice((0.1, 5)),
        LOOK_EVERY_S=60,  # no look by time: a wake-up that is missed has no remedy
    )
    way, rest_s = random.choice(WAYS), random.choice((0.1, 0.5, 3))
    more = random.choice((None, None, None, HOLD, HOLD, GIVE_BACK, CLEAR))

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            put(client, q, value)
            client.runtime.sleep(client.random.choice((0.01, rest_s)))

    def consume(client: Client) -> None:
        use(client, opened(client), client.db)

    def use(client: Client, q: Queue, db: Database) -> None:
        for _ in range(size.steps):
            take(client, q, db, more == GIVE_BACK)
            client.pause(0.3)

    def consume_by_two(client: Client) -> None:
        """Use one handle with two databases, each in a thread of its own."""
        q = opened(client)
        with Database(client.db.engine, client.runtime) as second:
            in_threads(client, {"a": partial(use, q=q, db=client.db), "b": partial(use, q=q, db=second)})

    def watch(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            does = read if more == HOLD and client.random.random() < 0.8 else look
            does(client, q)
            client.pause(0.3)
        if more == CLEAR:
            client.call(NAME, "clear", None, lambda: q.clear(client.db))

    consumers = [consume_by_two if number == 1 else consume for number in range(size.clients)]
    roles: Roles = {
        "producer-": produce,
        "consumer-": consumers,
        "partitioner": lambda client: repartition(client, opened(client), way),
        "auditor": watch,
    }
    play(simulation, size, roles, {"survivor": drain})
    return list(checks(set(simulation.faults.active), more))


# Calls.


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


# Checkers.


def checks(active: set[str], more: str | None) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`, and calls of the sort `more`."""
    yield from (total_queue(NAME), exact_statistics(NAME), no_watch_left_behind, no_key_left)
    if "die" not in active:
        yield line_left_empty(NAME)
        if more != GIVE_BACK:
            yield batches_keep_their_order
    if not {"die", "stall"} & active and more not in (HOLD, CLEAR):
        yield never_nothing(NAME)
    if active <= HARMLESS:
        yield prompt(NAME, PROMPT_S)


def batches_keep_their_order(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the survivor got the values of one call, which are in one partition, in their order."""
    got = [value for op in trace.of(NAME, "dequeue") if op.client == "survivor" for value in op.result or ()]
    for put in (op for op in trace.of(NAME, "enqueue") if len(op.argument) == BATCH):
        together = [value for value in got if value in put.argument]
        if together != [value for value in put.argument if value in together]:
            yield f"out of order: {together}"


def no_key_left(trace: Trace, database: Database) -> Iterator[str]:
    """Check that all partitions but the first have gone, and left nothing."""
    registry = Registry(DEFAULT_ROOT)
    contents = registry.contents(registry.find(database, NAME))
    keys, shared = QueueKeys(contents), SharedKeys(contents)

    def is_allowed(key: bytes, value: bytes) -> bool:
        if key in (keys.floor, shared.bell, shared.flag(0)):
            return True
        return is_definition(key, value) or (key == keys.size and not any(value))

    yield from no_key_left_behind(DEFAULT_ROOT.key(), is_allowed)(trace, database)
