"""Persistent queues: proxies that end in every way, and clients that join a queue."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Full
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NothingToAck, NotUnacked, OwnerReplaced, WaitStopped
from fdbqueue.core.runtime import Stop
from fdbqueue.queues.persistent import PersistentQueue, Proxy
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import QUIET_S, cramped, values_of
from tests.system.workloads.stage import counted_and_found, in_threads, play

ENOUGH_S = 200.0
NAME = "proxies"
SHARED = "shared"
JOINED = "joined"
JOIN, FINISH, DONE = "join", "finish", "task done"
SHORT_TTR_S, LONG_TTR_S = 3.0, 600.0
DRAIN_S, PATIENCE_S = 20.0, 400.0


class Crash(Exception):
    pass


@workload(clients=2, steps=3)
def proxies(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A persistent queue: clients die, stall, drop their proxies, end threads, or lose their name."""
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

    play(simulation, size, {"producer-": produce, "worker-": work}, {"survivor": survive})
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


# Checkers.


def left(trace: Trace) -> list[Any]:
    """Return the items that the survivor found, in order."""
    (drain,) = trace.of(NAME, "drain")
    return list(drain.result)


def may_have_happened(op: Operation) -> bool:
    return op.done or op.unknown


def one_copy_each(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no item is lost or doubled, and no committed stage is undone."""
    there = left(trace)
    stages = dict(there)
    values = [value for value, _ in there]
    yield from (f"{values.count(value)} copies of {value!r}" for value in stages if values.count(value) > 1)
    puts = {op.argument: op for op in trace.of(NAME, "put")}
    yield from (f"never put: {value!r}" for value in stages if value not in puts)
    ends = {op.argument[0] for op in trace.of(NAME, "ack") if may_have_happened(op)}
    for value, op in puts.items():
        if op.done and value not in stages and value not in ends:
            yield f"lost: {value!r}"
    advances = [(op.argument[0], op.argument[1] + 1) for op in trace.of(NAME, "advance") if op.done]
    advances += [op.result for op in trace.of(NAME, "consume") if op.done]
    for value, stage in advances:
        if value in stages and stages[value] < stage:
            yield f"{value!r} had reached stage {stage}, and is at {stages[value]}"


def acked_for_good(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an acked item is never delivered again."""
    there = {value for value, _ in left(trace)}
    for ack in (op for op in trace.of(NAME, "ack") if op.done):
        value = ack.argument[0]
        again = [op for op in trace.of(NAME, "get") if op.done and op.result[0] == value]
        if value in there or any(ack.before(op) for op in again):
            yield f"delivered after its ack: {value!r}"


def no_late_ack(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no client acks an item, alone or with a put, after a later delivery to another client."""
    gets = [op for op in trace.of(NAME, "get") if op.done]
    for ack in (op for op in trace.of(NAME, "ack", "advance") if op.done):
        of_item = [op for op in gets if tuple(op.result) == ack.argument]
        own = [op for op in of_item if op.client == ack.client and op.before(ack)]
        for other in of_item:
            if own and own[-1].before(other) and other.before(ack):
                yield f"{ack.client} acked {ack.argument}, which {other.client} had got since"


def no_item_after_losing_the_name(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a client fetches no item once another client has opened its name."""
    opens = [op for op in trace.of(NAME, "open") if op.done]
    shared = [op for op in opens if op.argument == SHARED]
    for get in (op for op in trace.of(NAME, "get") if op.done):
        worker = get.client.split("/")[0]
        mine = [op for op in opens if op.client == worker and op.before(get)][-1]
        if mine in shared and any(mine.before(op) and op.before(get) for op in shared):
            yield f"{get.client} fetched {get.result} in a name that it had lost"


def in_order(trace: Trace, _: Database) -> Iterator[str]:
    """Check that returned items keep their places: a producer's untouched ones are in the order of puts."""
    untouched = [value for value, stage in left(trace) if stage == 0]
    for producer in {value.split(".")[0] for value in untouched}:
        steps = [int(value.split(".")[1]) for value in untouched if value.split(".")[0] == producer]
        if steps != sorted(steps):
            yield f"out of order: {steps} of {producer}"


CHECKS = [
    exact_statistics(NAME),
    one_copy_each,
    acked_for_good,
    no_late_ack,
    no_item_after_losing_the_name,
    in_order,
    no_watch_left_behind,
]


@workload(clients=2, steps=4)
def joined(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A persistent queue that several clients join: two threads of a proxy finish items by `task_done`."""
    cramped(simulation)
    # Only where no session is lost does `task_done` have to find each item, and do all joins end.
    sessions_live = not {"die", "stall"} & set(simulation.faults.active)
    ttr_s = LONG_TTR_S if sessions_live else SHORT_TTR_S
    at_work = [2 * size.clients]

    def produce(client: Client) -> None:
        q = opened_for(client, ttr_s)
        for value in values_of(client, size.steps):
            client.call(JOINED, "put", value, partial(q.put, value))
            client.pause(client.random.choice((0.1, 3)))
        at_work[0] -= 1

    def work(client: Client) -> None:
        q = opened_for(client, ttr_s)
        in_threads(client, {f"{n}": partial(fetch_some, q, sessions_live, size.steps) for n in range(2)})
        at_work[0] -= 1

    def wait(client: Client) -> None:
        q, stop = opened_for(client, ttr_s), client.runtime.event()
        client.thread(partial(stop_later, stop), "stop")
        for _ in range(2):
            client.pause(client.random.choice((0.1, 3)))
            client.call(JOINED, JOIN, None, partial(joins, q, stop))

    def drain(client: Client) -> None:
        """Finish the items that the workers leave."""
        client.calm()
        q = opened_for(client, ttr_s)
        client.runtime.sleep(DRAIN_S)
        while sessions_live and at_work[0]:
            client.runtime.sleep(1)
        with suppress(Empty):
            while True:
                item = q.get(timeout=1)
                client.call(JOINED, FINISH, item, partial(q.ack, item))

    roles = {"producer-": produce, "worker-": work, "joiner-": wait, "drainer": drain}
    play(simulation, size, roles)
    exact = [acks_the_oldest, none_waits_for_ever] if sessions_live else []
    return [each_was_finished, no_watch_left_behind, *exact]


def opened_for(client: Client, ttr_s: float) -> PersistentQueue:
    return PersistentQueue(client.db, JOINED, ttr=ttr_s)


def joins(q: PersistentQueue, stop: Stop) -> bool:
    """True if the join has ended by itself."""
    try:
        q.join(stop=stop)
    except WaitStopped:
        return False
    return True


def stop_later(stop: Any, client: Client) -> None:
    client.runtime.sleep(PATIENCE_S)
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
                client.call(JOINED, FINISH, item, q.task_done if by_age else partial(q.ack, item))
                client.call(JOINED, DONE, item, lambda: list(q.unacked))


def each_was_finished(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a join ended after the ack of each item that was put before it."""
    begun: dict[str, int] = {}
    for op in trace.of(JOINED, FINISH):
        begun.setdefault(op.argument, op.began)
    for join in trace.of(JOINED, JOIN):
        ended = join.ended if join.result else None
        for put in trace.of(JOINED, "put"):
            if (
                ended is not None
                and put.done
                and put.before(join)
                and begun.get(put.argument, ended) >= ended
            ):
                yield f"{join.client} has joined the queue, and {put.argument!r} was not finished"


def none_waits_for_ever(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a join ends: the drainer finishes what the workers leave."""
    for join in trace.of(JOINED, JOIN):
        if join.done and not join.result:
            yield f"{join.client} has waited for {PATIENCE_S} s"


def acks_the_oldest(trace: Trace, _: Database) -> Iterator[str]:
    """Check that `task_done` acks the oldest item that its thread has fetched."""
    for op in trace.of(JOINED, DONE):
        if op.done and op.argument in op.result:
            yield f"{op.client} has finished {op.argument!r}, and it is un-acked"
