"""Looks at cancelled tasks: each is shown as taken, or as gone, and never as one that will begin."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.core.errors import TaskNotFound, UnknownSession
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.cancel_checks import NAME

LOOKS, LOOKS_P = 4, 0.4
AROUND_S = 0.6
"""A look comes at most so long before or after the end of a lease."""
RARELY_S = 0.5
"""Rare sweeps: a look finds leases that are over. A session renews itself as often."""


def watched(simulation: Simulation, opened: Callable[[Client], TaskQueue], ttr_s: float) -> None:
    """Add in some runs a client that cancels tasks which it holds, and looks at them as their leases end."""

    def watch(client: Client) -> None:
        q = opened(client)
        for _ in range(LOOKS):
            found: list[str] = []
            client.call(NAME, "take", None, partial(take_into, found, client, q))
            for id_ in found:
                client.runtime.sleep(client.random.uniform(0, AROUND_S))
                with suppress(TaskNotFound):
                    client.call(NAME, "cancel", id_, partial(q.cancel, client.db, id_))
                    client.runtime.sleep(ttr_s + client.random.uniform(-2 * AROUND_S, AROUND_S))
                    client.call(NAME, "look", id_, partial(q.peek, client.db, id_))

    # From other dice, so that all else of a seed is as it would be without.
    if Random(f"{simulation.seed} looks").random() < LOOKS_P:
        simulation.limit(SWEEP_EVERY_S=RARELY_S)
        simulation.client(watch, "watcher")


def take_into(found: list[str], client: Client, q: TaskQueue) -> str | None:
    """Take a task. Return its id."""
    with suppress(UnknownSession):
        found.extend(task.id for task in q.take_many(client.db, 1, 1.0))
    return found[0] if found else None


def none_waits(trace: Trace, _: Database) -> Iterator[str]:
    for look in (op for op in trace.of(NAME, "look") if op.done):
        cancels = [op for op in trace.of(NAME, "cancel") if op.done and op.argument == look.argument]
        if any(op.before(look) for op in cancels) and look.result.state != TaskState.TAKEN:
            yield f"{look.argument} was cancelled, and {look.client} saw it as {look.result.state.value!r}"
