"""Waits in the line of a plain queue: they time out, are stopped, are interrupted, or lose their database."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import DatabaseClosed, WaitStopped
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.core.seam import FDBError
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, no_watch_left_behind, order, prompt
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import (
    Items,
    bounded,
    checks,
    cramped,
    crowded,
    dequeue,
    drain,
    enqueue,
    hurried,
    in_batches,
    lacks,
    line_left_empty,
    queue,
    set_later,
    values_of,
)
from tests.system.workloads.stage import Body, play, threaded

TIMEOUTS_S = (0.0, 0.1, 1.0, 4.0, 15.0)
SLOW_P, LONG = 0.2, 3.0
"""In some runs, items are so rare that requests wait for longer than their deadline, and renew themselves."""
PROMPT_S = 0.6
HARMLESS = {"clock_skew_s", "watch_spurious"}
"""These faults delay no wake-up: a call that waits longer was not woken, and the slow look ended its wait."""
PATIENCE_S = 1.0
SOON_S, LATE_S = 0.0005, 0.05
"""A registration begins after the few scheduling points of a take that finds nothing."""


def at_last(name: str) -> list[Checker]:
    """For runs in which no client dies."""
    return [order(name, consumer="survivor"), line_left_empty(name)]


@workload(clients=3, steps=4)
def waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Consumers that wait for producers that take their time; in some runs their waits are stopped."""
    cramped(simulation)
    items = Items("waits")
    name = items.name
    haste = scattered(simulation.random, 0.01, 1)
    threaded_ = simulation.random.random() < 0.5
    stopped = simulation.random.random() > 0.8
    # From other dice, so that all else of a seed is as it would be without.
    is_slow = Random(f"{simulation.seed} slow").random() < SLOW_P
    haste = LONG if is_slow else haste

    def produce(client: Client) -> None:
        for batch in in_batches(client, values_of(client, size.steps)):
            client.pause(2.0)
            if is_slow:
                client.runtime.sleep(client.random.uniform(0, 2 * limits.REQUEST_DEADLINE_S))
            enqueue(client, items(client), name, batch)

    def wait(client: Client, q: Queue) -> None:
        timeout_s = client.random.choice(TIMEOUTS_S) * haste
        if not stopped:
            dequeue(client, q, name, timeout_s)
            return
        stop, stopper = set_later(client, client.random.random() * 2 * haste)
        with suppress(WaitStopped):
            dequeue(client, q, name, timeout_s, stop)
        stopper.join()

    consume = items.repeating(size.steps, wait, 0.5)
    by_three = threaded(dict.fromkeys("abc", consume))
    consumers = [by_three if threaded_ and not number else consume for number in range(size.clients)]
    play(simulation, size, {"producer-": produce, "consumer-": consumers}, {"survivor": drain(name)})
    # If a call gives up or is stopped, an item delivered for it is given back a moment later.
    is_exact = not (threaded_ or stopped) and lacks(simulation, "die", "stall")
    return [
        *checks(name),
        *([prompt(name, PROMPT_S)] if set(simulation.faults.active) <= HARMLESS else []),
        *(at_last(name) if lacks(simulation, "die") else []),
        *([never_nothing(name)] if is_exact else []),
    ]


@workload(clients=8, steps=2)
def crowd(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A long line under small bounds: hurried waiters that often give up, and items that come in bursts."""
    simulation.limit(SERVE_MAX=simulation.random.randint(1, 4), RESULTS_RETURNED_MAX=1)
    crowded(simulation)
    hurried(simulation)
    name, q = "crowd", queue("crowd")
    patience_s = scattered(simulation.random, 0.01, 4)
    has_threads = simulation.random.random() < 0.5

    def produce(client: Client) -> None:
        for value in values_of(client, size.steps):
            client.runtime.sleep(client.random.random() * patience_s)
            burst = client.random.choice((1, 1, 6))
            enqueue(client, q, name, [f"{value}.{number}" for number in range(burst)])

    def wait(client: Client) -> None:
        for _ in range(size.steps):
            dequeue(client, q, name, client.random.random() * patience_s)

    def pass_by(client: Client) -> None:
        for _ in range(size.steps):
            client.runtime.sleep(client.random.random() * patience_s)
            dequeue(client, q, name)

    by_three = threaded(dict.fromkeys("abc", wait))
    roles = {"waiter-": [by_three, wait, wait] if has_threads else wait, "other-": [produce, pass_by]}
    play(simulation, size, roles, {"survivor": drain(name)})
    is_exact = not has_threads and lacks(simulation, "die", "stall")
    return [
        *checks(name),
        *([] if has_threads else [bounded(batches=False)]),
        *(at_last(name) if lacks(simulation, "die") else []),
        *([never_nothing(name)] if is_exact else []),
    ]


@workload(clients=2, steps=5)
def closing(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Machines that close their database while some of their threads wait in the line."""
    cramped(simulation)
    items = Items("closing")

    def until_closed(body: Body) -> Body:
        def use(client: Client) -> None:
            with suppress(DatabaseClosed):
                body(client)

        return use

    produce = until_closed(items.putting(size.steps, 0.5))
    wait = until_closed(items.taking(size.steps, None, (0, 1, float("inf"))))

    def close_on_them(client: Client) -> None:
        threads = [client.thread(use, name) for name, use in (("a", wait), ("b", wait), ("c", produce))]
        client.runtime.sleep(scattered(client.random, 0.001, 4))
        client.db.close()
        for thread in threads:
            thread.join()

    roles = {"producer-": produce, "closer-": close_on_them}
    play(simulation, size, roles, {"survivor": drain(items.name)})
    return checks(items.name)


@workload(clients=2, steps=3)
def combined(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Machines of many threads: their enqueues, their takes and their waits combine, each of its kind."""
    cramped(simulation)
    name, q = "combined", queue("combined")
    patience_s = scattered(simulation.random, 0.005, 4)
    produce = partial(put_by_thread, partial(put_one, name, q), size.steps)
    consume = Items(name).taking(size.steps, 0.2, (0, patience_s))
    everything = threaded(side_by_side(3, consume, produce))
    play(simulation, size, {"machine-": everything}, {"survivor": drain(name)})
    more = at_last(name) if lacks(simulation, "die") else []
    return [*checks(name), *more]


def side_by_side(count: int, consume: Body, produce: Callable[[int, Client], None]) -> dict[str, Body]:
    bodies: dict[str, Body] = {}
    for number in range(count):
        bodies |= {f"consumer-{number}": consume, f"producer-{number}": partial(produce, number)}
    return bodies


def put_by_thread(put: Callable[[Client, str], None], steps: int, thread: int, client: Client) -> None:
    for step in range(steps):
        put(client, f"{client.name}.{thread}.{step}")
        client.pause(0.2)


def put_one(name: str, q: Queue, client: Client, value: str) -> None:
    enqueue(client, q, name, [value])


@workload(clients=2, steps=4, more=("version_changed",))
def interrupts(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Machines of many threads: calls of one thread are interrupted, as by Ctrl-C, beside those of others."""
    cramped(simulation)
    name, q = "interrupts", queue("interrupts")
    patience_s = scattered(simulation.random, 0.005, 4)
    # A dequeue that is interrupted may have taken a value, and then no checker misses one.
    only_puts = simulation.random.random() < 0.5

    def put(client: Client, value: str) -> None:
        with in_doubt():
            enqueue(client, q, name, [value])

    def get(client: Client) -> None:
        with in_doubt():
            dequeue(client, q, name, client.random.choice((0, patience_s)))

    def consume(client: Client) -> None:
        for _ in range(size.steps):
            get(client)
            client.pause(0.2)

    def main_thread(client: Client) -> None:
        bodies = side_by_side(2, consume, partial(put_by_thread, put, size.steps))
        threads = [client.thread(body, thread) for thread, body in bodies.items()]
        for step in range(size.steps):
            deeds: list[Callable[[], None]] = [partial(put, client, f"{client.name}.main.{step}")]
            deeds += [] if only_puts else [partial(get, client)]
            after_s = scattered(client.random, 0.0002, 2 * patience_s)
            client.interrupted(after_s, client.random.choice(deeds))
        for thread in threads:
            thread.join()

    play(simulation, size, {"machine-": main_thread}, {"survivor": drain(name)})
    return [
        *checks_of_interrupted(name),
        *(at_last(name) if lacks(simulation, "die") else []),
        *([prompt(name, PROMPT_S)] if set(simulation.faults.active) <= HARMLESS else []),
    ]


# The dead withdraw nothing, and a withdrawal that takes longer than CLOSE_TIMEOUT_S is given up.
@workload(clients=2, steps=6, never=("die", "slow_reply", "stall"))
def interrupted_waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Waits for an empty queue that are interrupted, as by Ctrl-C, while they register in its line."""
    cramped(simulation)
    items = Items("interrupted_waits")

    def wait(client: Client, q: Queue) -> None:
        after_s = scattered(client.random, SOON_S, LATE_S)
        with in_doubt():
            client.interrupted(after_s, partial(dequeue, client, q, items.name, PATIENCE_S))

    waiter = items.repeating(size.steps, wait, 0.1)
    play(simulation, size, {"waiter-": waiter}, {"survivor": drain(items.name)})
    return [*checks_of_interrupted(items.name), line_left_empty(items.name)]


@contextmanager
def in_doubt() -> Iterator[None]:
    """Survive an unknown result: the interrupt of a leader leaves that of its followers in doubt."""
    try:
        yield
    except FDBError as error:
        if error.code not in MAYBE_COMMITTED:
            raise


def checks_of_interrupted(name: str) -> list[Checker]:
    others = (one for one in checks(name) if one is not no_watch_left_behind)
    return [*others, no_watch_left_open]


def no_watch_left_open(trace: Trace, database: Database) -> Iterator[str]:
    """`no_watch_left_behind`, but not for a machine that was interrupted in a commit with an unknown result.

    The watch of such an attempt ends with its last reference, which the simulation keeps.
    """
    in_doubt = {op.client for op in trace.operations if op.unknown and _ends_in_doubt(trace, op)}
    for text in no_watch_left_behind(trace, database):
        if text.partition(" ")[0] not in in_doubt:
            yield text


def _ends_in_doubt(trace: Trace, op: Operation) -> bool:
    """True if a commit of an interrupted call had an unknown result."""
    others = (other for other in trace.operations if other.client == op.client)
    until = min((other.began for other in others if other.began > op.began), default=None)
    of_call = [what for _, who, what, _ in trace.events[op.began : until] if who == op.client]
    return "transaction committed, unknown to its client" in of_call
