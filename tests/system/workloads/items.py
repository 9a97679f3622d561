"""The plain queue: takes that never wait, batches, transactions of callers, readers that hold items."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing
from fdbqueue.testing.checkers import order as in_order
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, sound
from tests.system.workloads.common import (
    SPACE,
    Items,
    audit,
    bounded,
    checks,
    cramped,
    dequeue,
    dequeue_and_give_back,
    dequeue_within,
    drain,
    enqueue,
    in_batches,
    lacks,
    line_left_empty,
    once,
    queue,
)
from tests.system.workloads.stage import Roles, play, repeating, threaded

SHOWING_S = (0.0, 0.01, 1.0, 12.0)
FIRST, SECOND = "orders", "emails"
AGREED = "agreed"
CLOSED = b"closed"


@workload(clients=3, steps=4)
def recipe(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Consumers of both kinds, in the line and simple, that never wait."""
    cramped(simulation)
    items = Items("recipe", either=True)
    consume = items.taking(size.steps, 0.05)
    roles: Roles = {
        "producer-": items.putting(size.steps, 0.05),
        "consumer-": [consume, threaded({"a": consume, "b": consume}), consume],
        "auditor": items.repeating(size.steps, partial(audit, name=items.name), 0.1),
    }
    play(simulation, size, roles, {"survivor": drain(items.name)})
    more = [never_nothing(items.name), *in_order_at_last(items.name, 4 * size.clients)]
    return [*checks(items.name), *(more if lacks(simulation, "die", "stall") else [])]


def in_order_at_last(name: str, overtaken_max: int) -> list[Checker]:
    """Some values may overtake others among faults, and none in the end."""
    return [in_order(name, overtaken_max), in_order(name, consumer="survivor")]


# A batch above the bound is refused.
@workload(clients=2, steps=4, wide=("BATCH_BYTES_MAX",))
def batches(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Calls of several values at once, with a payload that is split now and then."""
    cramped(simulation)
    name, items = "batches", Items("batches", either=True)
    large = "x" * (limits.PAYLOAD_PIECE_BYTES_MAX + 10)

    def put(client: Client, q: Queue, step: int) -> None:
        count = client.random.choice((1, 2, 5, 9))
        values = [f"{client.name}.{step}.{number}" for number in range(count)]
        if client.random.random() < 0.1:
            values.append(f"{client.name}.{step}.{large}")
        enqueue(client, q, name, values)
        client.pause(0.05)

    def produce(client: Client) -> None:
        q = items(client)
        for step in range(size.steps):
            put(client, q, step)

    def take(client: Client, q: Queue) -> None:
        count = client.random.choice((1, 3, 10))
        client.call(name, "dequeue", count, lambda: q.dequeue_many(client.db, count))

    def take_within(client: Client, q: Queue) -> None:
        dequeue_within(client, q, name, client.random.choice((1, 3, 6)), client.random.choice((0, 0, 2)))

    def single(client: Client, q: Queue) -> None:
        dequeue(client, q, name, client.random.choice((0, 1)))
        audit(client, q, name)

    consume = items.repeating(size.steps, take, 0.05)
    roles = {
        "producer-": produce,
        "consumer-": consume,
        "both": threaded({"a": consume, "b": produce, "c": items.repeating(size.steps, single)}),
        "caller": items.repeating(size.steps, take_within, 0.05),
    }
    play(simulation, size, roles, {"survivor": drain(name)})
    more = in_order_at_last(name, 60) if lacks(simulation, "die", "stall") else []
    return [*checks(name), *more]


@workload(clients=3, steps=5)
def clearing(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """One client clears the queue while others enqueue, dequeue and wait."""
    cramped(simulation)
    items = Items("clearing", either=True)

    def clear(client: Client, q: Queue) -> None:
        client.pause(1.0)
        client.call(items.name, "clear", None, lambda: q.clear(client.db))
        audit(client, q, items.name)

    def wait(client: Client) -> None:
        """The clear finds some requests served, with results that are not collected."""
        dequeue(client, queue(items.name), items.name, 1)

    roles = {
        "producer-": items.putting(size.steps, 0.3, in_batches),
        "consumer-": items.taking(size.steps, 0.05, (0, 1, 5)),
        "waiter-": repeating(size.steps, wait),
        "clearer": Items(items.name).repeating(3, clear),
    }
    play(simulation, size, roles, {"survivor": drain(items.name)})
    return checks(items.name)


@workload(clients=3, steps=5, never=("die", "stall"))
def order(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """One consumer that takes in every way, many producers: strictly first in, first out."""
    cramped(simulation)
    items = Items("order")
    name = items.name

    takes: Sequence[Callable[[Client, Queue], object]] = (
        lambda client, q: dequeue(client, q, name, client.random.choice((0, 0.5, 5))),
        lambda client, q: dequeue(client, q, name, client.random.choice((0, 0.5, 5))),
        lambda client, q: dequeue_within(client, q, name, client.random.choice((1, 3))),
        lambda client, q: dequeue_within(client, q, name, 1, back=2),
        lambda client, q: dequeue_and_give_back(client, q, name, 1, back=2),
    )

    def take(client: Client, q: Queue) -> None:
        client.random.choice(takes)(client, q)

    roles = {
        "producer-": items.putting(size.steps, 0.2),
        "consumer": items.repeating(size.steps * size.clients, take, 0.05),
    }
    play(simulation, size, roles, {"survivor": drain(name)})
    return [*checks(name), in_order(name), never_nothing(name)]


@workload(clients=2, steps=5, more=("version_changed",))
def holding(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Readers that hold items while they show them, some for too long, beside consumers that wait."""
    cramped(simulation)
    items = Items("holding")
    name = items.name

    def consume(client: Client, q: Queue) -> None:
        dequeue(client, q, name, client.random.choice((0, 0, 0.5, 5)))
        client.pause(0.2)
        audit(client, q, name)

    def read(client: Client) -> None:
        holder = items(client).holder(client.db)
        for _ in range(size.steps):
            held = holder.hold(client.random.randint(1, 3))
            if held:
                client.runtime.sleep(client.random.choice(SHOWING_S))
                settle(client, name, holder, held[: client.random.randint(0, len(held))])
            else:
                holder.wait(client.random.random())

    roles = {
        "producer-": items.putting(size.steps, 0.2),
        "consumer-": items.repeating(size.steps, consume),
        "reader-": read,
    }
    play(simulation, size, roles, {"survivor": drain(name)})
    more = [in_order(name, consumer="survivor"), line_left_empty(name)]
    return [*checks(name), *(more if lacks(simulation, "die") else [])]


def settle(client: Client, name: str, holder: Holder, shown: list[Any]) -> None:
    """Dequeue the items that were shown; after the deadline they have gone back, and are shown again."""
    client.call(name, "dequeue", len(shown), lambda: shown if holder.settle(len(shown)) else [])


@workload(clients=2, steps=5)
def pipeline(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Transactions that dequeue from one queue and enqueue into the next, beside direct callers."""
    cramped(simulation)
    first, second = queue(FIRST), queue(SECOND)

    def move_one(tr: Any) -> None:
        # After an unknown result it may run twice, but each run is atomic.
        value = first.dequeue(tr)
        if value is not None:
            second.enqueue(tr, value)

    def move(client: Client) -> None:
        client.call(FIRST, "move", SECOND, lambda: run(client.db, move_one))

    def consume_the_first_too(client: Client, q: Queue) -> None:
        dequeue(client, q, FIRST)
        audit(client, first, FIRST)
        audit(client, second, SECOND)

    roles = {
        "producer-": Items(FIRST).putting(size.steps, 0.05),
        "mover-": repeating(size.steps, move, 0.05),
        "consumer-": Items(SECOND, either=True).taking(size.steps, 0.05, (0, 0, 2)),
        "bystander": Items(FIRST, either=True).repeating(size.steps // 2, consume_the_first_too),
    }
    play(simulation, size, roles, {"survivor-1": drain(FIRST), "survivor-2": drain(SECOND)})
    return checks(FIRST, SECOND)


@workload(clients=2, steps=6)
def agreed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Transactions of callers that take several items and, if there are fewer, close the queue by a flag."""
    cramped(simulation)
    plain, fair = queue(AGREED), FairQueue(SPACE[AGREED], key=lambda value: value % 2)
    is_fair = simulation.random.random() < 0.3

    def put(tr: Transaction, value: int) -> None:
        """Open the queue, if it is closed, and put a value."""
        if tr.get(CLOSED).present():
            tr.clear(CLOSED)
        (fair.put if is_fair else plain.enqueue)(tr, value)

    def take(tr: Transaction, count: int) -> int:
        """Take values, and close the queue if that leaves none."""
        if is_fair:
            found = sum(fair.take_item(tr)[0] for _ in range(count))
        else:
            found = len(plain.dequeue_many(tr, count))
        if found < count:
            tr.set(CLOSED, b"")
        return found

    def look(tr: Transaction) -> tuple[bool, int]:
        return bool(tr.get(CLOSED).present()), (fair if is_fair else plain).size(tr)

    def produce(client: Client) -> None:
        value = client.random.randint(0, 9)
        client.call(AGREED, "put", value, lambda: once(client, lambda tr: put(tr, value)))

    def consume(client: Client) -> None:
        count = client.random.choice((1, 2, 3))
        client.call(AGREED, "take", count, lambda: once(client, lambda tr: take(tr, count)))

    def audit(client: Client) -> None:
        client.call(AGREED, "look", None, lambda: run(client.db, look))

    steps = {"producer-": produce, "consumer-": consume, "auditor": audit}
    roles = {name: repeating(size.steps, step, 0.1) for name, step in steps.items()}
    play(simulation, size, roles, {"last look": audit})
    return [closed_means_empty, as_many_as_there_are, bounded(), sound(fair if is_fair else plain)]


def closed_means_empty(trace: Trace, _: Database) -> Iterator[str]:
    for op in trace.of(AGREED, "look"):
        if op.done and op.result[0] and op.result[1]:
            yield f"{op.result[1]} values lie in a queue that was closed because it was empty"


def as_many_as_there_are(trace: Trace, _: Database) -> Iterator[str]:
    """Check the number of values at the end, of which each call that returned has had its effect once."""
    looks = trace.of(AGREED, "look")
    puts, takes = trace.of(AGREED, "put"), trace.of(AGREED, "take")
    added, removed = sum(op.done for op in puts), sum(op.result for op in takes if op.done)
    least = added - removed - sum(op.argument for op in takes if op.unknown)
    most = added - removed + sum(op.unknown for op in puts)
    if not least <= looks[-1].result[1] <= most:
        yield f"{looks[-1].result[1]} values are left of {added} that were put and {removed} that were taken"
