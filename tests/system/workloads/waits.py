"""Consumers that wait, with timeouts, for producers that take their time; in some runs they are stopped."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

from fdbqueue.core import limits
from fdbqueue.core.errors import WaitStopped
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, order, prompt
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import (
    checks,
    cramped,
    dequeue,
    drain,
    enqueue,
    in_batches,
    line_left_empty,
    queue,
    set_later,
    values_of,
)

NAME = "waits"
TIMEOUTS_S = (0.0, 0.1, 1.0, 4.0, 15.0)
SLOW_P, LONG = 0.2, 3.0
"""In some runs, items are so rare that requests wait for longer than their deadline, and renew themselves."""

# These faults delay no wake-up: a call that waits longer was not woken, and only the slow look ended its
# wait.
PROMPT_S = 0.6
HARMLESS = {"clock_skew_s", "watch_spurious"}


@workload(clients=3, steps=4)
def waits(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)
    haste = scattered(simulation.random, 0.01, 1)
    threaded = simulation.random.random() < 0.5
    stopped = simulation.random.random() > 0.8
    # From other dice, so that all else of a seed is as it would be without.
    is_slow = Random(f"{simulation.seed} slow").random() < SLOW_P
    haste = LONG if is_slow else haste

    def produce(client: Client) -> None:
        for batch in in_batches(client, values_of(client, size.steps)):
            client.pause(2.0)
            if is_slow:
                client.runtime.sleep(client.random.uniform(0, 2 * limits.REQUEST_DEADLINE_S))
            enqueue(client, q, NAME, batch)

    def consume(client: Client) -> None:
        for _ in range(size.steps):
            wait(client, client.random.choice(TIMEOUTS_S) * haste)
            client.pause(0.5)

    def wait(client: Client, timeout_s: float) -> None:
        if not stopped:
            dequeue(client, q, NAME, timeout_s)
            return
        stop, stopper = set_later(client, client.random.random() * 2 * haste)
        with suppress(WaitStopped):
            dequeue(client, q, NAME, timeout_s, stop)
        stopper.join()

    def consume_by_three(client: Client) -> None:
        threads = [client.thread(consume, name) for name in ("a", "b", "c")]
        for thread in threads:
            thread.join()

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(consume_by_three if threaded and not number else consume, f"consumer-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    return [*checks(NAME), *_more(set(simulation.faults.active), threaded or stopped)]


def _more(active: set[str], surplus: bool) -> Iterator[Checker]:
    if active <= HARMLESS:
        yield prompt(NAME, PROMPT_S)
    if "die" not in active:
        yield order(NAME, consumer="survivor")
        yield line_left_empty(NAME)
    # If a call gives up or is stopped, an item delivered for it is given back a moment later.
    if not surplus and not {"die", "stall"} & active:
        yield never_nothing(NAME)
