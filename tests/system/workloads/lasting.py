"""Waits that begin among faults and go on after them: then each entry that is put is received at once.

The faults end, and all that dead processes left is overdue. Nothing but the promised watches wakes a wait.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import crowded
from tests.system.workloads.stage import play

NAME = "lasting"
KINDS = ("items", "items", "fifo", "fifottl", "utube", "fair", "bag")
FAULTS_S, CALM_FROM_S, WAIT_S = 8.0, 30.0, 120.0
"""The end of the faults; the time of the first put after them; and the timeout of the waits."""
PROMPT_S = 1.0
EARLY = 3

Take = Callable[[Client, float], Any]


@workload(clients=3, steps=2, never=("stall", "watch_very_late"))
def lasting(simulation: Simulation, size: Size) -> Sequence[Checker]:
    crowded(simulation)
    random = Random(f"{simulation.seed} lasting")
    # No look by time: a wake-up that is missed has no remedy. Rare sweeps, as nothing comes due.
    simulation.limit(LOOK_EVERY_S=60, SWEEP_EVERY_S=2, SESSIONS_SWEPT_EVERY_S=2)
    kind, partitions = random.choice(KINDS), random.choice((1, 1, 3))

    def wait(client: Client) -> None:
        client.thread(calm_later, "calm")
        take = taking(client, kind, partitions)
        threads = [client.thread(partial(wait_twice, take), name) for name in "ab"[1 : size.steps]]
        wait_twice(take, client)
        for thread in threads:
            thread.join()

    def put_early(client: Client) -> None:
        put = putting(client, kind, partitions)
        for number in range(EARLY):
            client.pause(2.0)
            client.call(NAME, "put", f"early {number}", partial(put, f"early {number}"))

    def put_late(client: Client) -> None:
        client.calm()
        put = putting(client, kind, partitions)
        client.runtime.sleep(CALM_FROM_S - client.runtime.monotonic())
        for number in range(2 * size.steps * size.clients):
            client.call(NAME, "put", f"late {number}", partial(put, f"late {number}"))
            client.runtime.sleep(2 * PROMPT_S)

    play(simulation, size, {"waiter-": wait, "early": put_early, "late": put_late})
    return [each_wait_is_answered, each_entry_is_received_at_once, no_watch_left_behind]


def calm_later(client: Client) -> None:
    client.runtime.sleep(FAULTS_S - client.runtime.monotonic())
    client.calm()


def wait_twice(take: Take, client: Client) -> None:
    client.pause(2.0)
    client.call(NAME, "wait", None, partial(take, client, 1.0))
    client.call(NAME, "wait", None, partial(take, client, WAIT_S))


def taking(client: Client, kind: str, partitions: int) -> Take:
    """A function that takes an entry, and returns its data, or None after the timeout."""
    if kind == "items":
        items = Queue.named(client.db, NAME, partitions=partitions)
        return lambda client, timeout_s: items.dequeue(client.db, timeout=timeout_s)
    tasks = opened(client, kind, partitions)

    def take(client: Client, timeout_s: float) -> Any:
        task = tasks.take(client.db, timeout_s)
        return None if task is None else task.data

    return take


def putting(client: Client, kind: str, partitions: int) -> Callable[[str], Any]:
    if kind == "items":
        items = Queue.named(client.db, NAME, partitions=partitions)
        return lambda data: items.enqueue(client.db, data)
    tasks, is_keyed = opened(client, kind, partitions), kind in ("utube", "fair")
    return lambda data: tasks.put(client.db, data, key=data if is_keyed else None)


def opened(client: Client, kind: str, partitions: int) -> TaskQueue:
    return TaskQueue.create(client.db, NAME, kind, if_not_exists=True, partitions=partitions)


# Checkers.


def each_wait_is_answered(trace: Trace, _: Database) -> Iterator[str]:
    """Check the waits of processes that live. There are more entries than waits."""
    for op in trace.of(NAME, "wait"):
        waited_s = (op.ended_s or 0.0) - op.began_s
        if op.done and op.result is None and waited_s > WAIT_S / 2:
            yield f"{op.client} has waited for {waited_s:.0f} s, and received none of the entries"


def each_entry_is_received_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check the entries that are put after the faults, while a wait is open that began before."""
    waits = [op for op in trace.of(NAME, "wait") if op.ended_s is not None]
    for put in trace.of(NAME, "put"):
        if put.began_s < CALM_FROM_S or put.ended_s is None:
            continue
        until_s = put.ended_s + PROMPT_S
        late = [op for op in waits if op.began < put.began and (op.ended_s or 0.0) > until_s]
        received = any(op.result == put.argument and op not in late for op in waits)
        if late and not received:
            yield f"{put.argument!r} was not received within {PROMPT_S:g} s, and {late[0].client} waited"
