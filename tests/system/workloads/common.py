"""The common parts of queue workloads: producers, consumers, auditors, and the quiet end."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, Concatenate, ParamSpec, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Event
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.checkers import (
    RETURNING,
    bounded_transactions,
    exact_statistics,
    no_key_left_behind,
    no_watch_left_behind,
    total_queue,
)
from fdbqueue.testing.scheduler import SimulatedThread
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace, sound

SPACE = Subspace(("simulated",))
# After this time, all leases and requests of dead clients are overdue, by the most skewed clock too.
QUIET_S = 2 * (limits.REQUEST_DEADLINE_S + limits.CLOCK_SKEW_S)
KEY_BYTES = 300
"""A key of a queue at most, with the ranges of its conflicts and a short value."""
BAGS = 0.25
P = ParamSpec("P")
Step = Callable[[Client, str], None]
T = TypeVar("T")


def checker(check: Callable[Concatenate[Trace, Database, P], Iterator[str]]) -> Callable[P, Checker]:
    """Make a function of the further arguments of `check`, which returns the checker for them."""

    def made(*args: P.args, **kwargs: P.kwargs) -> Checker:
        return lambda trace, database: check(trace, database, *args, **kwargs)

    return made


def queue(name: str, contended: str = "staged", codec: str = "json") -> Queue:
    return Queue(SPACE[name], contended=contended, codec=codec)


def or_a_bag(simulation: Simulation, kind: str) -> str:
    """`kind`, but in some runs a bag in place of a queue without task keys."""
    # From other dice, so that all else of a seed is as it would be without.
    is_bag = Random(f"{simulation.seed} bag").random() < BAGS
    return "bag" if is_bag and kind in ("fifo", "fifottl") else kind


def either(client: Client, name: str) -> Queue:
    """Return a queue that is used with the line by most clients, and with retries by some."""
    return queue(name, "simple" if client.random.random() < 0.25 else "staged")


class Items:
    """The queue of items of a run, as its clients use it: it makes the bodies of clients."""

    def __init__(self, name: str, *, either: bool = False) -> None:
        """`either`: each client has a handle of its own, and some use it with retries."""
        self.name, self._shared = name, None if either else queue(name)

    def __call__(self, client: Client) -> Queue:
        return either(client, self.name) if self._shared is None else self._shared

    def repeating(
        self, times: int, deed: Callable[[Client, Queue], object], pause_s: float | None = None
    ) -> Callable[[Client], None]:
        def body(client: Client) -> None:
            q = self(client)
            for _ in range(times):
                deed(client, q)
                if pause_s is not None:
                    client.pause(pause_s)

        return body

    def taking(
        self, times: int, pause_s: float | None, timeouts_s: Sequence[float] = ()
    ) -> Callable[[Client], None]:
        def take(client: Client, q: Queue) -> None:
            dequeue(client, q, self.name, client.random.choice(timeouts_s) if timeouts_s else 0)

        return self.repeating(times, take, pause_s)

    def putting(
        self,
        times: int,
        pause_s: float,
        batches: Callable[[Client, Sequence[str]], Iterable[Sequence[str]]] | None = None,
    ) -> Callable[[Client], None]:
        """Enqueue values that no other client enqueues, one by one or in batches."""

        def body(client: Client) -> None:
            q, values = self(client), values_of(client, times)
            for batch in batches(client, values) if batches else ([value] for value in values):
                enqueue(client, q, self.name, batch)
                client.pause(pause_s)

        return body


def enqueue(client: Client, q: Queue, name: str, values: Sequence[Any]) -> None:
    if len(values) == 1:
        client.call(name, "enqueue", list(values), lambda: q.enqueue(client.db, values[0]))
    else:
        client.call(name, "enqueue", list(values), lambda: q.enqueue_many(client.db, values))


def dequeue(
    client: Client, q: Queue, name: str, timeout: float = 0, stop: Event | None = None, overtake: int = 0
) -> list[Any]:
    """Return the dequeued value in a list, or an empty list.

    Raises: WaitStopped.
    """

    def body() -> list[Any]:
        value = q.dequeue(client.db, timeout=timeout, stop=stop, overtake=overtake)
        return [] if value is None else [value]

    return client.call(name, "dequeue", 1, body, timeout_s=timeout)


def set_later(client: Client, after_s: float) -> tuple[Event, SimulatedThread]:
    """Return an event, and a thread of the client that sets it `after_s` from now."""
    stop = client.runtime.event()

    def body(_: Client) -> None:
        client.runtime.sleep(after_s)
        stop.set()

    return stop, client.thread(body, "stopper")


def audit(client: Client, q: Queue, name: str) -> None:
    """Compare at one version the number of stored items with the counter."""
    client.call(name, "audit", None, lambda: run(client.db, counted_and_found(q, name)))


def counted_and_found(q: Queue, name: str) -> Callable[[Any], tuple[int, int]]:
    """Return a function of a transaction: the counter, and the number of stored items."""
    items = QueueKeys(SPACE[name]).items
    return lambda tr: (q.size(tr), len(tr.snapshot.get_range(items.start, items.stop).to_list()))


def draw_limits(simulation: Simulation, random: Random, **choices: Sequence[float]) -> None:
    """Set each of these limits to one of its values."""
    simulation.limit(**{name: random.choice(values) for name, values in choices.items()})


def unswept(simulation: Simulation, sessions_every_s: float | None = 0) -> None:
    """Let no process sweep by itself. Sessions are swept as often as the process is asked for a round."""
    simulation.limit(SWEEP_EVERY_S=1e6, SWEEPERS_MAX=1)
    if sessions_every_s is not None:
        simulation.limit(SESSIONS_SWEPT_EVERY_S=sessions_every_s)


def cramped(simulation: Simulation) -> None:
    """Set in many runs bounds so small that even a few clients reach them."""
    random = simulation.random
    if random.random() < 0.5:
        simulation.limit(
            SERVE_MAX=random.randint(1, 4),
            RESULTS_RETURNED_MAX=random.randint(1, 3),
            BATCH_ITEMS_MAX=12,
            PAYLOAD_PIECE_BYTES_MAX=random.choice((8, limits.PAYLOAD_PIECE_BYTES_MAX)),
        )
    crowded(simulation)


def crowded(simulation: Simulation) -> None:
    """Set in many runs the smallest bounds of the line.

    Then two requests are a crowd, each result and payload is stored apart, a look at the line reads too few
    items, and the requests ahead count as asleep.
    """
    draw_limits(
        simulation,
        simulation.random,
        CROWD_MIN=(2, limits.CROWD_MIN),
        NOTICE_BYTES_MAX=(0, limits.NOTICE_BYTES_MAX),
        RECORD_PAYLOAD_BYTES_MAX=(0, limits.RECORD_PAYLOAD_BYTES_MAX),
        SHARE_HELD_S=(0.001, limits.SHARE_HELD_S),
        OFFERS_TO_SPARE=(0, limits.OFFERS_TO_SPARE),
    )


def hurried(simulation: Simulation) -> None:
    """Make sleeping requests, in many runs, look often and serve soon, so that they meet those they serve."""
    random = simulation.random
    simulation.limit(
        REQUEST_RENEW_S=random.choice((0.05, limits.REQUEST_RENEW_S)),
        SERVE_PATIENCE_S=random.choice((0.001, limits.SERVE_PATIENCE_S)),
        SERVE_PATIENCE_COMMITS=random.choice((1, limits.SERVE_PATIENCE_COMMITS)),
    )


def values_of(client: Client, steps: int) -> list[str]:
    """Return values that no other client enqueues."""
    return [f"{client.name}.{step}" for step in range(steps)]


def in_batches(client: Client, values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the values one by one, or three at once: then a taker that wakes serves requests behind it."""
    while values:
        count = client.random.choice((1, 1, 3))
        yield values[:count]
        values = values[count:]


def drain(name: str) -> Callable[[Client], None]:
    """Take all remaining items, also items that were handed to dead clients.

    Then sleep until the receipts of dead clients are stale: closing the database sweeps them.
    """

    def body(client: Client) -> None:
        q = queue(name)
        client.call(name, "look at the line", None, lambda: run(client.db, line_of(name)))
        client.runtime.sleep(QUIET_S)
        audit(client, q, name)
        while dequeue(client, q, name):
            pass
        dequeue(client, q, name, timeout=1)
        client.runtime.sleep(limits.RECEIPT_STALE_S)
        # These calls leave a receipt, so that closing the database sweeps.
        enqueue(client, q, name, [f"the last of {name}"])
        dequeue(client, q, name)

    return body


def line_of(name: str) -> Callable[[Any], int]:
    """Return a function that counts the keys of a queue's line."""
    line = QueueKeys(SPACE[name]).line
    return lambda tr: len(tr.snapshot.get_range(line, line + b"\xff").to_list())


@checker
def line_left_empty(trace: Trace, _: Database, name: str) -> Iterator[str]:
    """Check that the line is empty once all calls have returned. Not for runs in which clients die.

    A call that ends with an error gives up its withdrawal after limits.CLOSE_TIMEOUT_S: a stall or slow
    replies may leave its request behind, until that is overdue.
    """
    for look in trace.of(name, "look at the line"):
        if look.result and not any(_gave_up_its_withdrawal(trace, op) for op in trace.of(name)):
            yield f"{look.result} keys are left in the line of {name}, though no request waits"


def _gave_up_its_withdrawal(trace: Trace, operation: Operation) -> bool:
    if operation.error is None or operation.ended_s is None:
        return False
    host, _, _ = operation.client.partition("/")
    during = trace.events[operation.began : operation.ended]
    faults = {particulars[0] for _, who, what, particulars in during if (who, what) == (host, "fault")}
    took_s = operation.ended_s - operation.began_s
    return "stall" in faults or ("slow_reply" in faults and took_s >= limits.CLOSE_TIMEOUT_S)


def checks(*names: str) -> list[Checker]:
    """Return the checkers for each workload that drains its queues."""
    return [
        total_queue(*names),
        *(exact_statistics(name) for name in names),
        bounded(),
        no_watch_left_behind,
        sound(*map(queue, names)),
        *(no_key_left_behind(SPACE[name].key(), is_counter(name)) for name in names),
        no_key_left_behind(DEFAULT_ROOT.key(), is_definition),
    ]


def bounded(batches: bool = True) -> Checker:
    """Check transactions by this run's limits: a look at the line, a batch in pieces, overdue requests."""
    served = 4 * limits.SERVE_MAX + limits.RESULTS_RETURNED_MAX * (limits.SERVE_MAX + 2)
    keys_max = served + (8 * limits.BATCH_ITEMS_MAX if batches else 0) + 8
    payloads_max = limits.BATCH_BYTES_MAX + limits.SERVE_BYTES_MAX
    return bounded_transactions(keys_max, keys_max, payloads_max + keys_max * KEY_BYTES)


def lacks(simulation: Simulation, *faults: str) -> bool:
    """True if the run has none of these faults."""
    return not {*faults} & {*simulation.faults.active}


def is_counter(name: str) -> Callable[[bytes, bytes], bool]:
    """Return a predicate for the two keys of an empty queue: its size (zero) and its index's floor."""
    keys = QueueKeys(SPACE[name])
    return lambda key, value: key == keys.floor or (key == keys.size and not any(value))


def is_definition(key: bytes, _: bytes) -> bool:
    """True for the keys that named queues keep for ever."""
    root = RootKeys(DEFAULT_ROOT)
    return root.definitions.start <= key < root.definitions.stop or key == root.last_id


def once(client: Client, body: Callable[[Transaction], T]) -> T:
    """Run `body` in a transaction of the client, with its effect once, whatever becomes of the commit."""
    return run_once(client.db, RootKeys(DEFAULT_ROOT), body)


def dequeue_within(client: Client, q: Queue, name: str, count: int, back: int = 0) -> list[Any]:
    """Dequeue `count` values in a transaction. With `back`, dequeue more, and give the last ones back."""

    def body(tr: Transaction) -> list[Any]:
        values = q.dequeue_many(tr, count + back)
        if values[count:]:
            q.give_back(tr, values[count:])
        return values[:count]

    return client.call(name, RETURNING if back else "dequeue", count + back, lambda: once(client, body))


def dequeue_and_give_back(client: Client, q: Queue, name: str, count: int, back: int) -> list[Any]:
    """Dequeue values, and give the last ones back in a transaction of their own. Not for clients that die."""
    more: list[Any] = []

    def body() -> list[Any]:
        values = q.dequeue_many(client.db, count + back)
        more.extend(values[count:])
        return values[:count]

    kept = client.call(name, "dequeue", count, body)
    client.pause(0.1)
    if more:
        client.call(name, RETURNING, 0, lambda: q.give_back(client.db, more))
    return kept
