"""Transactions of callers that take several items and, if there are fewer, close the queue by a flag."""

from collections.abc import Iterator, Sequence

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import SPACE, bounded, cramped, once, queue
from tests.system.workloads.stage import play, repeating

NAME = "agreed"
CLOSED = b"closed"


@workload(clients=2, steps=6)
def agreed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    plain, fair = queue(NAME), FairQueue(SPACE[NAME], key=lambda value: value % 2)
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
        client.call(NAME, "put", value, lambda: once(client, lambda tr: put(tr, value)))

    def consume(client: Client) -> None:
        count = client.random.choice((1, 2, 3))
        client.call(NAME, "take", count, lambda: once(client, lambda tr: take(tr, count)))

    def audit(client: Client) -> None:
        client.call(NAME, "look", None, lambda: run(client.db, look))

    steps = {"producer-": produce, "consumer-": consume, "auditor": audit}
    roles = {name: repeating(size.steps, step, 0.1) for name, step in steps.items()}
    play(simulation, size, roles, {"last look": audit})
    return [closed_means_empty, as_many_as_there_are, bounded(), sound(fair if is_fair else plain)]


def closed_means_empty(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no value lies in the queue while it is closed."""
    for op in trace.of(NAME, "look"):
        if op.done and op.result[0] and op.result[1]:
            yield f"{op.result[1]} values lie in a queue that was closed because it was empty"


def as_many_as_there_are(trace: Trace, _: Database) -> Iterator[str]:
    """Check the number of values at the end, of which each call that returned has had its effect once."""
    looks = trace.of(NAME, "look")
    puts, takes = trace.of(NAME, "put"), trace.of(NAME, "take")
    added, removed = sum(op.done for op in puts), sum(op.result for op in takes if op.done)
    least = added - removed - sum(op.argument for op in takes if op.unknown)
    most = added - removed + sum(op.unknown for op in puts)
    if not least <= looks[-1].result[1] <= most:
        yield f"{looks[-1].result[1]} values are left of {added} that were put and {removed} that were taken"
