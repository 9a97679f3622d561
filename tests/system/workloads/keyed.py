"""Micro-queues: workers that die or stall with tasks of busy keys, puts that meet acks at the empty edge."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys, record_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads import by_key
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.stage import (
    Tasks,
    all_tasks,
    by_chance,
    once_each,
    outlive,
    play,
    put_plain,
    total,
)

NAME, NUMBERS = "keyed", "keyed: numbers"
DONE = b"done/"


@workload(clients=3, steps=4)
def keyed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    concurrency = simulation.random.choice((1, 1, 2))
    queue = Tasks(NAME, "utubettl", ttr=2, key_concurrency=concurrency)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, size.steps):
            put_plain(
                client, q, value, key=client.random.choice("abcdef"), pri=client.random.choice((0, 0, 1))
            )
            client.pause(client.random.choice((0.01, 0.5)))  # into a full line, or as its last is acked

    def look(client: Client, q: TaskQueue) -> None:
        client.call(NAME, "audit", concurrency, lambda: run(client.db, partial(taken_of_keys, q)))
        count(client, q)

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, finish)
        count(client, q)

    roles = {
        "producer-": queue.using(produce),
        "worker-": queue.working(2 * size.steps, once, after_death_s=0.5),
        "auditor": queue.repeating(2 * size.steps, look, 0.2),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    done_once = partial(once_each, NAME, prefix=DONE)
    return [never_more_than_allowed(NAME), exact_statistics(NUMBERS), done_once, no_watch_left_behind]


def count(client: Client, q: TaskQueue) -> None:
    by_key.look(client, NUMBERS, TaskKeys(q.contents), partial(total, q))


def once(client: Client, q: TaskQueue, session: Session) -> None:
    task = q.take(client.db, client.random.choice((0, 1, 1)), session=session)
    if task is not None:
        client.pause(client.random.choice((0.01, 0.3)))
        by_chance(client, q, task, VERBS, delays_s=(0.5,), late_s=0.1)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Any) -> None:
        q.ack(tr, task)
        tr.add(DONE + task.data.encode(), b"\x01")

    try:
        run(client.db, body)
    except NotTaken:
        client.pause(0.1)  # too late: another worker has the lease


def put_aside(client: Client, q: TaskQueue, task: Task) -> None:
    try:
        q.bury(client.db, task)
    except NotTaken:
        client.pause(0.1)
    client.pause(0.2)
    q.kick(client.db, 1)


VERBS = (finish, finish, finish, put_aside, "put off", "release")


def taken_of_keys(q: TaskQueue, tr: Any) -> dict[bytes, int]:
    """Return the number of taken tasks of each key, at one version."""
    records = (record_of(entry.value) for entry in all_tasks(q, tr))
    return dict(Counter(record.key for record in records if record.state == TaskState.TAKEN))


def never_more_than_allowed(name: str) -> Checker:
    """Check that each `audit` found at most as many taken tasks of a key as its argument."""

    def check(trace: Trace, _: Database) -> Iterator[str]:
        for op in trace.of(name, "audit"):
            for key, count in (op.result or {}).items():
                if count > op.argument:
                    yield f"{count} tasks of {key!r} are taken, {op.argument} may be"

    return check
