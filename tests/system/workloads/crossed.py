"""Tasks that are cancelled, deleted and buried on their way through a long line, in some runs with clocks so
far apart that live requests count as dead.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import crowded, hurried, once
from tests.system.workloads.stage import Tasks, audit, play, remaining

NAME = "crossed"
FAR_APART_S = 2 * limits.REQUEST_DEADLINE_S
BURST, MANY = 4, 1_000


@workload(clients=4, steps=4)
def crossed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    crowded(simulation)
    hurried(simulation)
    far_apart = simulation.random.random() < 0.3
    if far_apart:
        simulation.faults = replace(simulation.faults, clock_skew_s=FAR_APART_S)
    is_over = False
    queue = Tasks(NAME, None)

    def produce(client: Client, q: TaskQueue) -> None:
        nonlocal is_over
        for step in range(size.steps):
            client.runtime.sleep(client.random.choice((0.05, 0.5)))
            values = [f"{client.name}.{step}.{number}" for number in range(BURST)]
            client.call(NAME, "put", values, partial(q.put_many, client.db, values))
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
    return [exact_statistics(NAME), each_ends_once, none_begins_cancelled, no_watch_left_behind, *received]


def end(client: Client, q: TaskQueue) -> None:
    """End tasks as soon as they are taken: some are on their way to a caller."""
    client.runtime.sleep(client.random.choice((0.001, 0.02)))
    for task in q.tasks(client.db, client.random.choice("tttr"), 3):
        with suppress(TaskNotFound, NotTaken):
            verb = client.random.choice((q.cancel, q.delete, q.bury))
            client.call(NAME, verb.__name__, task.data, partial(verb, client.db, task.id))


def survive(client: Client, q: TaskQueue) -> None:
    audit(client, q)
    for _ in remaining(client, q):
        q.kick(client.db, MANY)
        for task in took(client, q, 1.0):
            finish(client, q, task)
    audit(client, q)
    client.call(NAME, "end", None, lambda: q.statistics(client.db)["calls"])


def took(client: Client, q: TaskQueue, timeout: float) -> list[Task]:
    """Take a task in the line, or, now and then, several in a transaction beside it."""
    if client.random.random() < 0.8:
        many = partial(q.take_many, client.db, 1, timeout)
        return client.call(NAME, "take", None, many, timeout_s=timeout)
    return client.call(NAME, "take", None, lambda: once(client, lambda tr: q.take_many(tr, 2)))


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    client.pause(0.05)
    with suppress(NotTaken, UnknownSession):
        client.call(NAME, "finish", task.data, partial(q.ack, client.db, task))


def each_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task was acked or deleted once, or was cancelled."""
    ended = Counter(op.argument for op in trace.of(NAME, "finish", "delete") if op.done)
    for value, count in ended.items():
        if count > 1:
            yield f"ended {count} times: {value!r}"
    cancelled = {op.argument for op in trace.of(NAME, "cancel")}
    unknown = {op.argument for op in trace.of(NAME, "finish", "delete") if op.unknown}
    for put in trace.of(NAME, "put"):
        for value in put.argument if put.done else ():
            if not ended[value] and value not in cancelled | unknown:
                yield f"lost: {value!r}"


def none_begins_cancelled(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take gives a task that was cancelled before."""
    for op in trace.of(NAME, "take"):
        for task in op.result or ():
            if task.cancel_asked is not None:
                yield f"{op.client} was given {task.data!r}, which was cancelled"


def each_take_was_received(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the takes that count are those whose tasks a caller was given. For runs in which no session
    dies.
    """
    received = sum(len(op.result or ()) for op in trace.of(NAME, "take"))
    for op in trace.of(NAME, "end"):
        if op.done and op.result["take"] != received:
            yield f"{op.result['take']} takes are counted, and callers were given {received} tasks"
