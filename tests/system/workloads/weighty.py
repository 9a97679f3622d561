"""Payloads of mixed sizes under small bounds in bytes: batches, combined calls, and takes that wait."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from fdbqueue.core import limits
from fdbqueue.core.codec import codec_named
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, TooMuchForOneTransaction, UnknownSession
from fdbqueue.core.page import Page, every_page
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import never_nothing, no_watch_left_behind, prompt, total_queue
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, sound
from tests.system.workloads.common import QUIET_S, SPACE, crowded
from tests.system.workloads.stage import play, threaded, total

THREADS = 3
MANY = 12
AT_LAST = 4
NAME = "weighty"
BYTES_MAX, SERVE_BYTES_MAX = 10_000, 5_000
SIZES = (10, 10, 900, 3_000, 4_990, 9_900, 15_000)
BYTES_PER_KEY = 250
"""Of a key in the root of the tests, its conflict keys and a record, beside the payloads of a transaction."""
PROMPT_S = 0.8
_JSON = codec_named("json")


class Used(Protocol):
    """A queue of some kind: put several values, and take up to some number of values for good."""

    def put(self, values: Sequence[str]) -> None: ...
    def take(self, count: int, timeout: float) -> list[str]: ...
    def page(self, after: str | None) -> Page[Any]: ...
    def size(self) -> int: ...


class Items:
    def __init__(self, client: Client, _: str) -> None:
        self._queue, self._db = Queue(SPACE[NAME]), client.db

    def put(self, values: Sequence[str]) -> None:
        self._queue.enqueue_many(self._db, values)

    def take(self, count: int, timeout: float) -> list[str]:
        if not timeout:
            return list(self._queue.dequeue_many(self._db, count))
        value = self._queue.dequeue(self._db, timeout=timeout)
        return [] if value is None else [value]

    def page(self, after: str | None) -> Page[Any]:
        return self._queue.items(self._db, MANY, after=after)

    def size(self) -> int:
        return self._queue.size(self._db)


class Tasks:
    def __init__(self, client: Client, kind: str) -> None:
        self._queue, self._db = TaskQueue.create(client.db, NAME, kind, if_not_exists=True), client.db

    def put(self, values: Sequence[str]) -> None:
        self._queue.put_many(self._db, values)

    def take(self, count: int, timeout: float) -> list[str]:
        done = []
        for task in self._queue.take_many(self._db, count, timeout):
            with suppress(NotTaken):
                done.append(self._queue.ack(self._db, task).data)
        return done

    def page(self, after: str | None) -> Page[Any]:
        return self._queue.tasks(self._db, "r", MANY, after=after)

    def size(self) -> int:
        return total(self._queue, self._db)


@workload(clients=1, steps=4)
def weighty(simulation: Simulation, size: Size) -> Sequence[Checker]:
    crowded(simulation)
    simulation.limit(BATCH_BYTES_MAX=BYTES_MAX, SERVE_BYTES_MAX=SERVE_BYTES_MAX)
    random = simulation.random
    kind = random.choice(("", "", "fifo", "fair"))
    sizes, make = random.sample(SIZES, 3), Tasks if kind else Items
    timeouts = random.choice(((0.0,), (0.0, 1.0, 3.0)))

    def produce(client: Client) -> None:
        used: Used = make(client, kind)
        for step in range(2 * size.steps):
            count = client.random.choice((1, 1, 2, 4, 8))
            put(client, used, [value(client, f"{step}.{n}", sizes) for n in range(count)])
            client.pause(0.2)

    def consume(client: Client) -> None:
        used: Used = make(client, kind)
        for _ in range(2 * size.steps):
            take(client, used, client.random.choice((1, 2, MANY)), client.random.choice(timeouts))
            client.pause(0.1)

    def survive(client: Client) -> None:
        used: Used = make(client, kind)
        client.runtime.sleep(QUIET_S + 2 * limits.SESSION_TTR_S)
        for step in range(AT_LAST):
            put(client, used, [value(client, f"last {step}", sizes)])
        client.call(NAME, "pages", used.size(), partial(number_in_pages, used))
        while take(client, used, MANY, 0.0):
            pass

    roles = {
        "producer": produce,
        **{f"consumer-{number}": consume for number in range(size.clients + 1)},
        "both": threaded({f"{number}": body for number, body in enumerate([produce, consume] * THREADS)}),
    }
    play(simulation, size, roles, {"survivor": survive})
    return [
        *checks(set(simulation.faults.active), len(timeouts) > 1),
        *(() if kind else (sound(Queue(SPACE[NAME])),)),
    ]


def value(client: Client, name: str, sizes: Sequence[int]) -> str:
    """A value that no other thread puts, with a payload of one of `sizes`."""
    label = f"{client.runtime.thread_id()}.{name}."
    return label + "x" * (client.random.choice(sizes) - len(label) - 2)


def number_in_pages(used: Used) -> int:
    return sum(map(len, every_page(used.page)))


def put(client: Client, used: Used, values: Sequence[str]) -> None:
    with suppress(TooMuchForOneTransaction):
        client.call(NAME, "enqueue", values, partial(used.put, values))


def take(client: Client, used: Used, count: int, timeout: float) -> list[str]:
    with suppress(UnknownSession):
        return client.call(NAME, "dequeue", count, partial(used.take, count, timeout))
    return []


# Checkers.


def checks(active: set[str], waits: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`, in which takes wait or not."""
    yield from (total_queue(NAME), within_bytes, refused_for_a_reason, pages_hold_all, no_watch_left_behind)
    if active <= {"clock_skew_s", "watch_spurious"}:
        yield prompt(NAME, PROMPT_S)
    # An item may lie ready for a call that waits, and whose time is over.
    if not waits and not {"die", "stall"} & active:
        yield never_nothing(NAME)


def bytes_of(values: Sequence[Any]) -> int:
    return sum(len(_JSON.encode(value)) for value in values)


def within_bytes(trace: Trace, _: Database) -> Iterator[str]:
    """Check the bytes of each answer with several values, and of each transaction."""
    for op in trace.of(NAME, "dequeue"):
        if op.done and len(op.result) > 1 and bytes_of(op.result) > BYTES_MAX:
            yield f"{op.client} got {len(op.result)} values of {bytes_of(op.result)} bytes in one answer"
    # Results that a dead or slow machine has not collected go back by their number: some kilobytes each here.
    if any(trace.faults[name] for name in ("die", "stall", "slow_reply")):
        return
    for tr in trace.transactions:
        others = BYTES_PER_KEY * (tr.keys_read + tr.keys_written)
        if tr.size_bytes > max(BYTES_MAX + SERVE_BYTES_MAX, *SIZES) + others:
            yield f"transaction {tr.number} of {tr.who} has {tr.size_bytes} bytes"


def pages_hold_all(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the pages of a queue hold all of its values, though bytes cut them short."""
    for op in trace.of(NAME, "pages"):
        if op.result != op.argument:
            yield f"{op.result} values are in the pages of a queue with {op.argument}"


def refused_for_a_reason(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a put of several values is refused above the bound, and only then."""
    for op in trace.of(NAME, "enqueue"):
        too_much = len(op.argument) > 1 and bytes_of(op.argument) > BYTES_MAX
        if (op.done and too_much) or (isinstance(op.error, TooMuchForOneTransaction) and not too_much):
            yield f"a put of {bytes_of(op.argument)} bytes: {op.error!r}"
