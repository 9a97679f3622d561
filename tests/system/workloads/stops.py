"""Takes from a task queue that are stopped, by their events or by the closing of their database."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.errors import DatabaseClosed, NotTaken, UnknownSession, WaitStopped
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.faults import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, set_later
from tests.system.workloads.stage import (
    Tasks,
    audit,
    look,
    nothing_left,
    play,
    total,
)

TIMEOUTS_S = (0.0, 1.0, None)
NAME = "stops"
# These faults delay no transaction by seconds, so a stopped call ends within a few transactions.
PROMPT_S = 0.6
HARMLESS = {"not_committed", "watch_missed", "watch_spurious", "watch_late", "watch_very_late"}


@workload(clients=2, steps=4)
def stops(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    haste = scattered(simulation.random, 0.01, 1)
    queue = Tasks(NAME, None)

    def take(client: Client, q: TaskQueue) -> None:
        after_s = client.random.random() * 2 * haste
        stop, stopper = set_later(client, after_s)
        timeout = client.random.choice(TIMEOUTS_S)
        with suppress(WaitStopped):
            body = partial(q.take, client.db, timeout, stop=stop)
            finish(client, q, client.call(NAME, "take", after_s, body))
        stopper.join()

    def take_until_closed(client: Client) -> None:
        with suppress(DatabaseClosed):
            queue.repeating(size.steps, take)(client)

    def close_on_them(client: Client) -> None:
        threads = [client.thread(take_until_closed, name) for name in ("a", "b", "c")]
        with suppress(DatabaseClosed):
            # For another thread, so that closing ends more than the session of the takers.
            Session(client.db)
        client.runtime.sleep(scattered(client.random, 0.001, 4))
        client.call(NAME, "close", client.name, client.db.close)
        for thread in threads:
            thread.join()

    def onlook(client: Client, q: TaskQueue) -> None:
        look(client, NAME, q)

    roles = {"producer-": queue.putting(size.steps, 0.5), "closer-": close_on_them}
    play(simulation, size, roles, {"onlooker": queue.using(onlook), "survivor": queue.using(survive)})
    return list(checks(set(simulation.faults.active)))


def finish(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is None:
        return
    client.pause(0.2)
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "finish", task.data, partial(q.ack, client.db, task))


def survive(client: Client, q: TaskQueue) -> None:
    while total(q, client.db):
        finish(client, q, client.call(NAME, "take", 0.0, partial(q.take, client.db, 1)))
    audit(client, q)


# Checkers.


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (exact_statistics(NAME), each_finished_once, no_watch_left_behind)
    if active <= HARMLESS:
        yield from (nothing_taken_after_closing, nothing_left(NAME), stopped_at_once)


def each_finished_once(trace: Trace, _: Database) -> Iterator[str]:
    finished = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    maybe = {op.argument for op in trace.of(NAME, "finish") if not op.done}
    for put in trace.of(NAME, "put"):
        count = finished[put.argument]
        if count > 1 or (put.done and not count and put.argument not in maybe):
            yield f"{put.argument!r} was finished {count} times"


def nothing_taken_after_closing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take commits after its database was closed."""
    closed_s = {op.argument: op.ended_s for op in trace.of(NAME, "close") if op.ended_s is not None}
    for tr in trace.transactions:
        takes = tr.operation is not None and tr.operation.name == "take"
        if takes and tr.at_s > closed_s.get(tr.who.partition("/")[0], tr.at_s):
            yield f"{tr.who} committed transaction {tr.number} after its database was closed"


def stopped_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take ends soon after its event is set, `argument` seconds after the call."""
    for take in trace.of(NAME, "take"):
        if isinstance(take.error, WaitStopped) and take.ended_s is not None:
            late_s = take.ended_s - take.began_s - take.argument
            if late_s > PROMPT_S:
                yield f"{take.client} was stopped {late_s:.1f} s late"
