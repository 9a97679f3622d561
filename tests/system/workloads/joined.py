"""A persistent queue that several clients join: two threads of a proxy finish items by `task_done`."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NothingToAck, NotUnacked, WaitStopped
from fdbqueue.core.runtime import Stop
from fdbqueue.queues.persistent.queue import PersistentQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.stage import in_threads, play

NAME = "joined"
JOIN, FINISH, DONE = "join", "finish", "task done"
SHORT_TTR_S, LONG_TTR_S = 3.0, 600.0
DRAIN_S, ENOUGH_S = 20.0, 400.0


@workload(clients=2, steps=4)
def joined(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    # Only where no session is lost does `task_done` have to find each item, and do all joins end.
    sessions_live = not {"die", "stall"} & set(simulation.faults.active)
    ttr_s = LONG_TTR_S if sessions_live else SHORT_TTR_S
    at_work = [2 * size.clients]

    def produce(client: Client) -> None:
        q = opened(client, ttr_s)
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(q.put, value))
            client.pause(client.random.choice((0.1, 3)))
        at_work[0] -= 1

    def work(client: Client) -> None:
        q = opened(client, ttr_s)
        in_threads(client, {f"{n}": partial(fetch_some, q, sessions_live, size.steps) for n in range(2)})
        at_work[0] -= 1

    def wait(client: Client) -> None:
        q, stop = opened(client, ttr_s), client.runtime.event()
        client.thread(partial(stop_later, stop), "stop")
        for _ in range(2):
            client.pause(client.random.choice((0.1, 3)))
            client.call(NAME, JOIN, None, partial(joins, q, stop))

    def drain(client: Client) -> None:
        """Finish the items that the workers leave."""
        client.calm()
        q = opened(client, ttr_s)
        client.runtime.sleep(DRAIN_S)
        while sessions_live and at_work[0]:
            client.runtime.sleep(1)
        with suppress(Empty):
            while True:
                item = q.get(timeout=1)
                client.call(NAME, FINISH, item, partial(q.ack, item))

    roles = {"producer-": produce, "worker-": work, "joiner-": wait, "drainer": drain}
    play(simulation, size, roles)
    exact = [acks_the_oldest, none_waits_for_ever] if sessions_live else []
    return [each_was_finished, no_watch_left_behind, *exact]


def opened(client: Client, ttr_s: float) -> PersistentQueue:
    return PersistentQueue(client.db, NAME, ttr=ttr_s)


def joins(q: PersistentQueue, stop: Stop) -> bool:
    """True if the join has ended by itself."""
    try:
        q.join(stop=stop)
    except WaitStopped:
        return False
    return True


def stop_later(stop: Any, client: Client) -> None:
    client.runtime.sleep(ENOUGH_S)
    stop.set()


def fetch_some(q: PersistentQueue, by_age: bool, steps: int, client: Client) -> None:
    """Fetch one item or two, then finish them, several times."""
    for _ in range(steps):
        found: list[Any] = []
        with suppress(Empty):
            for _ in range(client.random.choice((1, 2))):
                found.append(q.get(timeout=client.random.choice((0, 3))))
                client.pause(0.5)
        for item in found:
            with suppress(NotUnacked, NothingToAck):
                client.call(NAME, FINISH, item, q.task_done if by_age else partial(q.ack, item))
                client.call(NAME, DONE, item, lambda: list(q.unacked))


def each_was_finished(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a join ended after the ack of each item that was put before it."""
    begun: dict[str, int] = {}
    for op in trace.of(NAME, FINISH):
        begun.setdefault(op.argument, op.began)
    for join in trace.of(NAME, JOIN):
        ended = join.ended if join.result else None
        for put in trace.of(NAME, "put"):
            if (
                ended is not None
                and put.done
                and put.before(join)
                and begun.get(put.argument, ended) >= ended
            ):
                yield f"{join.client} has joined the queue, and {put.argument!r} was not finished"


def none_waits_for_ever(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a join ends: the drainer finishes what the workers leave."""
    for join in trace.of(NAME, JOIN):
        if join.done and not join.result:
            yield f"{join.client} has waited for {ENOUGH_S} s"


def acks_the_oldest(trace: Trace, _: Database) -> Iterator[str]:
    """Check that `task_done` acks the oldest item that its thread has fetched."""
    for op in trace.of(NAME, DONE):
        if op.done and op.argument in op.result:
            yield f"{op.client} has finished {op.argument!r}, and it is un-acked"
