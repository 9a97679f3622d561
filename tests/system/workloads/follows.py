"""Progress: holders that tell it, lose their leases and come too late; followers that wait for it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, ids, play, taken

NAME = "follows"
TOLD = (0.25, 0.5, 0.75)
Seen = tuple[int, float | None]
"""The attempts of a task, and its progress."""


@workload(clients=2, steps=3)
def follows(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    queue = Tasks(NAME, ttr=2)
    roles = {
        "producer": queue.repeating(size.clients * size.steps, put, 0.2),
        "worker-": queue.working(2 * size.steps, attempt_one),
        "follower-": queue.repeating(2 * size.steps, follow, 0.3, pauses_first=True),
    }
    play(simulation, size, roles, {"survivor": queue.outliving(end)})
    return [exact_statistics(NAME), told_before_seen, never_backwards, told_by_holders, no_watch_left_behind]


def put(client: Client, q: TaskQueue) -> None:
    client.call(NAME, "put", None, lambda: q.put(client.db, "x").id)


def attempt_one(client: Client, q: TaskQueue, session: Session) -> None:
    if (task := taken(client, q, 1, session)) is not None:
        attempt(client, q, task)


def follow(client: Client, q: TaskQueue) -> None:
    if found := run(client.db, partial(ids, q)):
        watch(client, q, client.random.choice(found))


def end(client: Client, q: TaskQueue, task: Task) -> None:
    q.ack(client.db, task)


def attempt(client: Client, q: TaskQueue, task: Task) -> None:
    """Tell the progress step by step, and end the lease, or let it end by its time."""
    with suppress(NotTaken):
        for number in TOLD:
            client.pause(1.5)
            seen = (task.attempts, number)
            client.call(NAME, "tell", (task.id, seen), partial(q.progress, client.db, task, number))
        client.random.choice((q.ack, q.release))(client.db, task)


def watch(client: Client, q: TaskQueue, id_: str) -> None:
    """Follow the progress of one task for a while, or until the task ends."""
    seen: Seen = (0, None)

    def look() -> Seen | None:
        found = q.wait_for_progress(client.db, id_, seen[1], timeout_s)
        return None if found is None else (found.attempts, found.fraction)

    with suppress(TaskNotFound):
        for _ in range(2 * len(TOLD)):
            timeout_s = client.random.choice((0, 1, 3))
            seen = client.call(NAME, "follow", (id_, seen), look) or seen


def told_before_seen(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a follower saw the progress of an attempt only after that attempt had begun to tell it."""
    told = trace.of(NAME, "tell")
    for follow in (op for op in trace.of(NAME, "follow") if op.done and op.result):
        key = (follow.argument[0], follow.result)
        began = any(op.argument == key and not follow.before(op) for op in told)
        if follow.result[1] is not None and not began:
            yield f"{follow.client} saw {key}, which nothing had told"


def never_backwards(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a follower saw neither an earlier attempt, nor less progress of the same attempt."""
    for follow in (op for op in trace.of(NAME, "follow") if op.done and op.result):
        (_, (attempts, before)), (now, fraction) = follow.argument, follow.result
        if now < attempts or (now == attempts and fraction is not None and fraction <= (before or 0)):
            yield f"{follow.client} saw {follow.result} after {follow.argument}"


def told_by_holders(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no attempt told its progress after a later attempt had."""
    told = [op for op in trace.of(NAME, "tell") if op.done]
    for late in told:
        (id_, (attempts, _fraction)) = late.argument
        for op in told:
            if op.argument[0] == id_ and op.argument[1][0] > attempts and op.before(late):
                yield f"{late.client} told {late.argument} after {op.argument}"
