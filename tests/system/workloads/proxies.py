"""A persistent queue: its clients die, stall, drop their proxies, end their threads, or lose their name."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Full
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NotUnacked, OwnerReplaced
from fdbqueue.queues.persistent.proxy import Proxy
from fdbqueue.queues.persistent.queue import PersistentQueue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import QUIET_S, cramped, values_of
from tests.system.workloads.proxy_checks import CHECKS, NAME, SHARED
from tests.system.workloads.tasks import counted_and_found

ENOUGH_S = 200.0


class Crash(Exception):
    pass


@workload(clients=2, steps=3)
def proxies(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3, DEAD_SESSIONS_MAX=2)
    maxsize = simulation.random.choice((0, 3))

    def produce(client: Client) -> None:
        q = opened(client, maxsize)
        for value in values_of(client, size.steps):
            try:
                client.call(NAME, "put", value, partial(q.put, [value, 0], timeout=2))
            except Full:
                client.pause(0.5)
            client.pause(0.2)

    def work(client: Client) -> None:
        for _ in range(2):
            owner = client.random.choice((None, SHARED, SHARED))
            try:
                q = client.call(NAME, "open", owner, partial(opened, client, maxsize, owner))
            except OwnerReplaced:  # another client has claimed the name meanwhile
                continue
            thread = client.thread(partial(in_a_thread, q, size.steps), "thread")
            several(client, q, size.steps)
            thread.join()

    def survive(client: Client) -> None:
        q, tasks = opened(client, 0, SHARED), TaskQueue.open(client.db, NAME)
        client.runtime.sleep(QUIET_S)  # until dead requests are out of the line too
        until = client.runtime.monotonic() + ENOUGH_S
        while tasks.statistics(client.db)["tasks"]["taken"] and client.runtime.monotonic() < until:
            # A get returns the items that were delivered to dead requests in the line.
            with q.connect() as proxy, suppress(Empty):
                proxy.get(timeout=1)
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, tasks)))
        client.call(NAME, "drain", None, lambda: [q.get_nowait() for _ in range(q.qsize())])

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return CHECKS


def opened(client: Client, maxsize: int, owner: str | None = None) -> PersistentQueue:
    return PersistentQueue(client.db, NAME, maxsize, owner, ttr=3)


def in_a_thread(q: PersistentQueue, steps: int, client: Client) -> None:
    """Use a proxy without closing it: it ends with the thread, or with its last reference."""
    try:
        several(client, q.connect(), steps)
    except OwnerReplaced:
        client.pause(0.1)


def several(client: Client, proxy: Proxy, steps: int) -> None:
    for _ in range(steps):
        try:
            once(client, proxy)
        except (Empty, Full, Crash, NotUnacked):
            client.pause(0.3)
        except OwnerReplaced:
            return


def once(client: Client, proxy: Proxy) -> None:
    """Fetch an item, and finish, advance, keep or consume it, by chance."""
    does: list[Callable[[], Any]] = [
        lambda: finish(client, proxy, fetch(client, proxy)),
        lambda: advance(client, proxy, fetch(client, proxy)),
        lambda: fetch(client, proxy),
        partial(consume, client, proxy, crash=False),
        partial(consume, client, proxy, crash=True),
    ]
    client.random.choice(does)()


def fetch(client: Client, proxy: Proxy) -> Any:
    timeout = client.random.choice((0, 1, 3))
    item = client.call(NAME, "get", None, lambda: proxy.get(timeout=timeout))
    client.pause(0.5)
    return item


def finish(client: Client, proxy: Proxy, item: Any) -> None:
    client.call(NAME, "ack", tuple(item), lambda: proxy.ack(item))


def advance(client: Client, proxy: Proxy, item: Any) -> None:
    """Work for a while outside of a transaction, then put the next stage in a short one."""
    value, stage = item

    def body() -> None:
        with proxy.transaction():
            proxy.put([value, stage + 1], timeout=1)
            proxy.ack(item)

    client.call(NAME, "advance", tuple(item), body)


def consume(client: Client, proxy: Proxy, crash: bool) -> None:
    """Get, work and put in one transaction, which commits all of it or nothing."""
    found: list[Any] = []

    def body() -> Any:
        with proxy.transaction():
            value, stage = item = proxy.get(timeout=1)
            client.pause(0.5)
            proxy.put([value, stage + 1], timeout=1)
            proxy.ack(item)
            if crash:
                raise Crash
            found.append((value, stage + 1))
        return found[0]

    client.call(NAME, "consume", crash, body)
