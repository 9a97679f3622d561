"""Fair queues, of tasks and of items: small tenants do not wait long beside a flood.

An audit reads the counters of all task keys, or their rounds, in one transaction.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import FairQueueFull, NotTaken, UnknownSession
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.sessions.session import Session
from fdbqueue.queues.fair import FairItems, FairQueue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.key_counts import KeyCounts
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import LIVE_NAMES, LIVE_OF, TaskKeys, record_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import (
    Fates,
    exact_statistics,
    no_key_left_behind,
    no_watch_left_behind,
    total_queue,
)
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace, sound
from tests.system.workloads.common import (
    QUIET_S,
    SPACE,
    bounded,
    cramped,
    in_batches,
    is_definition,
    once,
    values_of,
)
from tests.system.workloads.stage import Roles, Tasks, play, remaining, repeating, total

_ALL = 10_000
HELD_S = limits.SHARE_HELD_S
"""That of the library: a run may set one so short that nearly each call outlasts it."""


def look(client: Client, name: str, keys: TaskKeys, size: Callable[[Any], int]) -> None:
    """Compare at one version the counters and the index of all task keys with the stored tasks."""
    counts = KeyCounts(keys.beside)

    def body(tr: Any) -> tuple[Any, Any]:
        records = [record_of(row.value) for row in tr.snapshot.get_range(keys.tasks.start, keys.tasks.stop)]
        found: dict[bytes, Counter[str]] = {}
        for record in records:
            found.setdefault(record.key, Counter(dict.fromkeys(LIVE_NAMES, 0)))[LIVE_OF[record.state]] += 1
        waiting = {key: dict(numbers) for key, numbers in found.items() if numbers["ready"]}
        entries, levels = counts.index(tr.snapshot, _ALL)
        counted = dict(counts.busiest(tr.snapshot, _ALL))
        return (size(tr), counted, entries), (len(records), waiting, levels)

    client.call(name, "audit", None, lambda: run(client.db, body))


def look_at_rounds(client: Client, name: str, keys: TaskKeys) -> None:
    """Record the current round, the round of each task key's turn, and the task keys that should have a turn.

    These are sorted: the order of a set would differ between processes, and so would the trace.
    """
    fair, start = Fair(keys, {"weights": None}), len(keys.ready.start)

    def body(tr: Any) -> tuple[int, dict[bytes, int], list[bytes]]:
        pointers = tr.snapshot.get_range(keys.ready.start, keys.ready.stop)
        turns = {
            record_of(row.value).key: int.from_bytes(row.key[start : start + 8], "big") for row in pointers
        }
        return fair.ask_now(tr)(), turns, sorted(key for key, _ in fair.counts.busiest(tr.snapshot, _ALL))

    client.call(f"{name}: rounds", "audit", None, lambda: run(client.db, body))


def fair_at_all_times(name: str, trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task key with a ready task has its turn in the next round at the latest."""
    for op in trace.of(f"{name}: rounds", "audit"):
        if op.done:
            now, turns, waiting = op.result
            yield from (
                f"a turn in round {turn}, in round {now}" for turn in turns.values() if turn > now + 1
            )
            if sorted(turns) != waiting:
                yield f"turns of {sorted(turns)}, tasks of {waiting}"


def rounds_wait(
    name: str, key_of: Callable[[str], str], takers: int, trace: Trace, __: Database
) -> Iterator[str]:
    """Check that the n-th waiting item of a key waits for at most n + 1 items of any other key.

    - Each taker that was in its call at the put may take one more.
    - An item does not count if it was taken within a slower call that took an item of this key, or that
      lasted for longer than a share is held: that call had the turn, and may have lost it since.
    - An item that a dead or stalled machine held waits again, ahead of the other items of its key.
    """
    fates = Fates(trace, (name,))
    returned = trace.faults["die"] + trace.faults["stall"]
    takes = {value: op for value, (op, *_) in fates.takers.items()}
    late: dict[str, list[str]] = {}
    for value, taken in takes.items():
        put = fates.enqueued.get(value)
        if put is None or not put.done:
            continue
        key, others, line = key_of(value), Counter[str](), 1
        turns = [op for other, op in takes.items() if key_of(other) == key or _outlasts_its_share(op)]
        for other, op in takes.items():
            if key_of(other) != key:
                in_turn = put.before(op) and op.before(taken)
                others[key_of(other)] += in_turn and not any(_within(op, turn) for turn in turns)
            elif other != value and other in fates.enqueued:
                line += not put.before(fates.enqueued[other]) and not op.before(put)
        if max(others.values(), default=0) > line + 1 + takers + returned:
            late.setdefault(key, []).append(f"{value!r}, number {line} of its key, waited for {others}")
    if len(late) > returned:
        yield from chain.from_iterable(late.values())


def _outlasts_its_share(op: Operation) -> bool:
    return op.ended_s is not None and op.ended_s - op.began_s > HELD_S


def _within(op: Operation, other: Operation) -> bool:
    if op.ended is None or other.ended is None:
        return False
    return other.began < op.began and op.ended < other.ended


NAME = "fairness"
FLOOD = "flood"
ROUNDS = "rounds"


@workload(clients=2, steps=5)
def fairness(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A fair task queue: one tenant's flood, small tenants, and several workers."""
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    queue = Tasks(NAME, "fair", ttr=600)

    def flood(client: Client, q: TaskQueue) -> None:
        for start in range(0, 4 * size.steps, size.steps):
            put(client, q, [f"{FLOOD}.{start + n}" for n in range(size.steps)])

    def trickle(client: Client, q: TaskQueue) -> None:
        for values in in_batches(client, values_of(client, size.steps)):
            put(client, q, values)
            client.pause(0.3)

    def work(client: Client, q: TaskQueue) -> None:
        with Session(client.db, ttr=60) as session:
            for _ in range(3 * size.steps):
                take(client, q, session)

    roles = {
        FLOOD: queue.using(flood),
        "tenant-": queue.using(trickle),
        "worker-": queue.using(work),
        "auditor": queue.repeating(size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    fair = [partial(rounds_wait, NAME, key_of, size.clients), partial(fair_at_all_times, NAME)]
    return [total_queue(NAME), exact_statistics(NAME), *fair, no_watch_left_behind]


def audit(client: Client, q: TaskQueue) -> None:
    look(client, NAME, TaskKeys(q.contents), partial(total, q))
    look_at_rounds(client, NAME, TaskKeys(q.contents))


def survive(client: Client, q: TaskQueue) -> None:
    with Session(client.db, ttr=600) as session:
        for _ in remaining(client, q):
            take(client, q, session)
    look(client, NAME, TaskKeys(q.contents), partial(total, q))


def key_of(value: str) -> str:
    """Return the task key of a value: one for the flood, one for each small tenant, which comes and goes."""
    return value.partition(".")[0]


def put(client: Client, q: TaskQueue, values: Sequence[str]) -> None:
    key = key_of(values[0])
    client.call(NAME, "enqueue", list(values), lambda: q.put_many(client.db, values, key=key))


def take(client: Client, q: TaskQueue, session: Session) -> None:

    def body() -> list[str]:
        task = q.take(client.db, 0.5, session=session)
        if task is None:
            return []
        q.ack(client.db, task)
        return [task.data]

    # It stalled, so its lease is over or its session is dead.
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "dequeue", 1, body)


@workload(clients=3, steps=5)
def rounds(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A fair queue without leases: a flood, tenants, waiters; an auditor looks at the rounds all the time."""
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    capacity = simulation.random.choice((None, None, 6))
    q = FairQueue(SPACE[ROUNDS], key=tenant_of, capacity=capacity)
    keys = TaskKeys(SPACE[ROUNDS])

    def produce(count: int, client: Client) -> None:
        for number in range(count):
            put_item(client, q, f"{client.name}/{number}")
            client.pause(0.2)

    def consume(client: Client) -> None:
        get(client, q, client.random.choice((0, 0.5, 2)))

    def audit(client: Client) -> None:
        look(client, ROUNDS, keys, q.size)
        look_at_rounds(client, ROUNDS, keys)

    def drain(client: Client) -> None:
        client.runtime.sleep(QUIET_S)
        look(client, ROUNDS, keys, q.size)
        while get(client, q, 0) or get(client, q, 1):
            pass
        client.runtime.sleep(limits.RECEIPT_STALE_S)
        put_item(client, q, "the last")  # calls that leave a receipt, so that closing sweeps
        get(client, q, 0)

    roles: Roles = {
        FLOOD: partial(produce, 3 * size.steps),
        "tenant-": partial(produce, size.steps),
        "consumer-": repeating(3 * size.steps, consume),
        "auditor": repeating(3 * size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"drain": drain})
    return [
        total_queue(ROUNDS),
        exact_statistics(ROUNDS),
        partial(rounds_wait, ROUNDS, tenant_of, size.clients),
        partial(fair_at_all_times, ROUNDS),
        bounded(),
        no_watch_left_behind,
        sound(q),
        no_key_left_behind(SPACE[ROUNDS].key(), _stays),
        no_key_left_behind(DEFAULT_ROOT.key(), is_definition),
    ]


def tenant_of(value: str) -> str:
    return value.split("/")[0]


def put_item(client: Client, q: FairQueue, value: str) -> None:
    try:
        if client.random.random() < 0.7:
            client.call(ROUNDS, "enqueue", [value], lambda: q.put(client.db, value))
        else:
            client.call(ROUNDS, "enqueue", [value], lambda: once(client, lambda tr: q.put(tr, value)))
    except FairQueueFull:
        client.pause(0.1)


def get(client: Client, q: FairQueue, timeout: float) -> list[Any]:
    def body() -> list[Any]:
        if timeout or client.random.random() < 0.5:
            found, item = q.take_item(client.db, timeout)
        else:
            found, item = once(client, q.take_item)
        return [item] if found else []

    return client.call(ROUNDS, "dequeue", 1, body)


def _stays(key: bytes, value: bytes) -> bool:
    """True for the three keys of an empty queue: the size (zero), the floor of the index, and the round."""
    keys = TaskKeys(SPACE[ROUNDS])
    items = FairItems(Registry(), keys, codec_named("json"), None)
    return key in (items.floor, items.looking.round_key) or (key == keys.counters and not any(value))
