"""Machines of many threads: calls of one thread are interrupted, as by Ctrl-C, beside those of others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind, order, prompt
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import (
    checks,
    cramped,
    dequeue,
    drain,
    enqueue,
    line_left_empty,
    queue,
)

NAME = "interrupts"
THREADS = 2
PROMPT_S = 0.6


@workload(clients=2, steps=4, more=("version_changed",))
def interrupts(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    q = queue(NAME)
    patience_s = scattered(simulation.random, 0.005, 4)
    # A dequeue that is interrupted may have taken a value, and then no checker misses one.
    only_puts = simulation.random.random() < 0.5

    def put(client: Client, value: str) -> None:
        with in_doubt():
            enqueue(client, q, NAME, [value])

    def get(client: Client) -> None:
        with in_doubt():
            dequeue(client, q, NAME, client.random.choice((0, patience_s)))

    def produce(client: Client, thread: int) -> None:
        for step in range(size.steps):
            put(client, f"{client.name}.{thread}.{step}")
            client.pause(0.2)

    def consume(client: Client) -> None:
        for _ in range(size.steps):
            get(client)
            client.pause(0.2)

    def main_thread(client: Client) -> None:
        threads = [
            client.thread(work, f"{name}-{number}")
            for number in range(THREADS)
            for name, work in (("consumer", consume), ("producer", partial(produce, thread=number)))
        ]
        for step in range(size.steps):
            deeds: list[Callable[[], None]] = [partial(put, client, f"{client.name}.main.{step}")]
            deeds += [] if only_puts else [partial(get, client)]
            after_s = scattered(client.random, 0.0002, 2 * patience_s)
            client.interrupted(after_s, client.random.choice(deeds))
        for thread in threads:
            thread.join()

    for number in range(size.clients):
        simulation.client(main_thread, f"machine-{number}")
    simulation.afterwards(drain(NAME), "survivor")
    others = (one for one in checks(NAME) if one is not no_watch_left_behind)
    return [*others, no_watch_left_open, *_more(set(simulation.faults.active))]


@contextmanager
def in_doubt() -> Iterator[None]:
    """Survive an unknown result: the interrupt of a leader leaves that of its followers in doubt."""
    try:
        yield
    except FDBError as error:
        if error.code not in MAYBE_COMMITTED:
            raise


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


def _more(active: set[str]) -> Iterator[Checker]:
    if "die" not in active:
        yield order(NAME, consumer="survivor")
        yield line_left_empty(NAME)
    if active <= {"clock_skew_s", "watch_spurious"}:
        yield prompt(NAME, PROMPT_S)
