"""Takes that meet other calls on their way: removals of their tasks, stops, and the end of their database."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import DatabaseClosed, NotTaken, TaskNotFound, UnknownSession, WaitStopped
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Footprint, Trace
from tests.system.workloads.common import cramped, crowded, hurried, once, set_later
from tests.system.workloads.stage import Tasks, audit, look, nothing_left, play, remaining, total

CROSSED = "crossed"
FAR_APART_S = 2 * limits.REQUEST_DEADLINE_S
BURST, MANY = 4, 1_000
TIMEOUTS_S = (0.0, 1.0, None)
STOPS = "stops"
# These faults delay no transaction by seconds, so a stopped call ends within a few transactions.
PROMPT_S = 0.6
HARMLESS = {"not_committed", "watch_missed", "watch_spurious", "watch_late", "watch_very_late"}


@workload(clients=4, steps=4)
def crossed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Tasks that are cancelled, deleted and buried on their way through a long line, in some runs with clocks
    so far apart that live requests count as dead.
    """
    crowded(simulation)
    hurried(simulation)
    far_apart = simulation.random.random() < 0.3
    if far_apart:
        simulation.faults = replace(simulation.faults, clock_skew_s=FAR_APART_S)
    is_over = False
    queue = Tasks(CROSSED, None)

    def produce(client: Client, q: TaskQueue) -> None:
        nonlocal is_over
        for step in range(size.steps):
            client.runtime.sleep(client.random.choice((0.05, 0.5)))
            values = [f"{client.name}.{step}.{number}" for number in range(BURST)]
            client.call(CROSSED, "put", values, partial(q.put_many, client.db, values))
        is_over = True

    def take(client: Client, q: TaskQueue) -> None:
        for _ in range(2 * size.steps):
            with suppress(UnknownSession):
                found = took(client, q, client.random.choice((0.5, 2)))
                for task in found:
                    finish(client, q, task)
                if is_over and not found:  # hurried requests in an empty queue would look in vain for seconds
                    return

    roles = {
        "producer": queue.using(produce),
        "taker-": queue.using(take),
        "operator": queue.repeating(25 * size.steps, end),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    sessions_live = not {"die", "stall"} & set(simulation.faults.active) and not far_apart
    received = [each_take_was_received] if sessions_live else []
    return [exact_statistics(CROSSED), each_ends_once, none_begins_cancelled, no_watch_left_behind, *received]


def end(client: Client, q: TaskQueue) -> None:
    """End tasks as soon as they are taken: some are on their way to a caller."""
    client.runtime.sleep(client.random.choice((0.001, 0.02)))
    for task in q.tasks(client.db, client.random.choice("tttr"), 3):
        with suppress(TaskNotFound, NotTaken):
            verb = client.random.choice((q.cancel, q.delete, q.bury))
            client.call(CROSSED, verb.__name__, task.data, partial(verb, client.db, task.id))


def survive(client: Client, q: TaskQueue) -> None:
    audit(client, q)
    for _ in remaining(client, q):
        q.kick(client.db, MANY)
        for task in took(client, q, 1.0):
            finish(client, q, task)
    audit(client, q)
    client.call(CROSSED, "end", None, lambda: q.statistics(client.db)["calls"])


def took(client: Client, q: TaskQueue, timeout: float) -> list[Task]:
    """Take a task in the line, or, now and then, several in a transaction beside it."""
    if client.random.random() < 0.8:
        many = partial(q.take_many, client.db, 1, timeout)
        return client.call(CROSSED, "take", None, many, timeout_s=timeout)
    return client.call(CROSSED, "take", None, lambda: once(client, lambda tr: q.take_many(tr, 2)))


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    client.pause(0.05)
    with suppress(NotTaken, UnknownSession):
        client.call(CROSSED, "finish", task.data, partial(q.ack, client.db, task))


def each_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task was acked or deleted once, or was cancelled."""
    ended = Counter(op.argument for op in trace.of(CROSSED, "finish", "delete") if op.done)
    for value, count in ended.items():
        if count > 1:
            yield f"ended {count} times: {value!r}"
    cancelled = {op.argument for op in trace.of(CROSSED, "cancel")}
    unknown = {op.argument for op in trace.of(CROSSED, "finish", "delete") if op.unknown}
    for put in trace.of(CROSSED, "put"):
        for value in put.argument if put.done else ():
            if not ended[value] and value not in cancelled | unknown:
                yield f"lost: {value!r}"


def none_begins_cancelled(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take gives a task that was cancelled before."""
    for op in trace.of(CROSSED, "take"):
        for task in op.result or ():
            if task.cancel_asked is not None:
                yield f"{op.client} was given {task.data!r}, which was cancelled"


def each_take_was_received(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the takes that count are those whose tasks a caller was given. For runs in which no session
    dies.

    A take in doubt may count beside the take of its retry: a lease that another call has ended does not tell
    of its commit.
    """
    received = sum(len(op.result or ()) for op in trace.of(CROSSED, "take"))
    received_max = received + sum(_is_ended_in_doubt(trace, tr) for tr in trace.transactions)
    for op in trace.of(CROSSED, "end"):
        if op.done and not received <= op.result["take"] <= received_max:
            yield f"{op.result['take']} takes are counted, and callers were given {received} tasks"


def _is_ended_in_doubt(trace: Trace, tr: Footprint) -> bool:
    """True for a commit of a take with an unknown result, if a task was ended before that take returned."""
    take = tr.operation
    if take is None or take.name != "take" or tr.outcome != "committed, unknown to its client":
        return False
    ends = trace.of(CROSSED, "cancel", "delete", "bury")
    return any(op.done and tr.at_s < (op.ended_s or 0) < (take.ended_s or 0) for op in ends)


@workload(clients=2, steps=4)
def stops(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Takes from a task queue that are stopped, by their events or by the closing of their database."""
    cramped(simulation)
    haste = scattered(simulation.random, 0.01, 1)
    queue = Tasks(STOPS, None)

    def take(client: Client, q: TaskQueue) -> None:
        after_s = client.random.random() * 2 * haste
        stop, stopper = set_later(client, after_s)
        timeout = client.random.choice(TIMEOUTS_S)
        with suppress(WaitStopped):
            body = partial(q.take, client.db, timeout, stop=stop)
            finish_one(client, q, client.call(STOPS, "take", after_s, body))
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
        client.call(STOPS, "close", client.name, client.db.close)
        for thread in threads:
            thread.join()

    def onlook(client: Client, q: TaskQueue) -> None:
        look(client, STOPS, q)

    roles = {"producer-": queue.putting(size.steps, 0.5), "closer-": close_on_them}
    play(simulation, size, roles, {"onlooker": queue.using(onlook), "survivor": queue.using(survive_stops)})
    return list(checks(set(simulation.faults.active)))


def finish_one(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is None:
        return
    client.pause(0.2)
    with suppress(NotTaken, UnknownSession):
        client.call(STOPS, "finish", task.data, partial(q.ack, client.db, task))


def survive_stops(client: Client, q: TaskQueue) -> None:
    while total(q, client.db):
        finish_one(client, q, client.call(STOPS, "take", 0.0, partial(q.take, client.db, 1)))
    audit(client, q)


# Checkers.


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (exact_statistics(STOPS), each_finished_once, no_watch_left_behind)
    if active <= HARMLESS:
        yield from (nothing_taken_after_closing, nothing_left(STOPS), stopped_at_once)


def each_finished_once(trace: Trace, _: Database) -> Iterator[str]:
    finished = Counter(op.argument for op in trace.of(STOPS, "finish") if op.done)
    maybe = {op.argument for op in trace.of(STOPS, "finish") if not op.done}
    for put in trace.of(STOPS, "put"):
        count = finished[put.argument]
        if count > 1 or (put.done and not count and put.argument not in maybe):
            yield f"{put.argument!r} was finished {count} times"


def nothing_taken_after_closing(trace: Trace, _: Database) -> Iterator[str]:
    closed_s = {op.argument: op.ended_s for op in trace.of(STOPS, "close") if op.ended_s is not None}
    for tr in trace.transactions:
        takes = tr.operation is not None and tr.operation.name == "take"
        if takes and tr.at_s > closed_s.get(tr.who.partition("/")[0], tr.at_s):
            yield f"{tr.who} committed transaction {tr.number} after its database was closed"


def stopped_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take ends soon after its event is set, `argument` seconds after the call."""
    for take in trace.of(STOPS, "take"):
        if isinstance(take.error, WaitStopped) and take.ended_s is not None:
            late_s = take.ended_s - take.began_s - take.argument
            if late_s > PROMPT_S:
                yield f"{take.client} was stopped {late_s:.1f} s late"
