"""Micro-queues: workers that die or stall with tasks of busy keys, puts that meet acks at the empty edge."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, UnknownSession
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
from tests.system.workloads.tasks import all_tasks, outlive, total

NAME, NUMBERS = "keyed", "keyed: numbers"
DONE = b"done/"


@workload(clients=3, steps=4)
def keyed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(KEY_LEVEL_MIN=1)
    concurrency = simulation.random.choice((1, 1, 2))

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(
            client.db, NAME, "utubettl", ttr=2, key_concurrency=concurrency, if_not_exists=True
        )

    def produce(client: Client) -> None:
        q = opened(client)
        for value in values_of(client, size.steps):
            key, pri = client.random.choice("abcdef"), client.random.choice((0, 0, 1))
            put = partial(q.put, client.db, value, key=key, pri=pri)
            client.call(NAME, "put", value, put)
            client.pause(client.random.choice((0.01, 0.5)))  # into a full line, or as its last is acked

    def work(client: Client) -> None:
        q = opened(client)
        try:
            with Session(client.db, ttr=3) as session:
                for _ in range(2 * size.steps):
                    once(client, q, session)
        except UnknownSession:
            client.pause(0.5)  # it stalled, so its session died

    def look(client: Client) -> None:
        q = opened(client)
        for _ in range(2 * size.steps):
            client.call(NAME, "audit", concurrency, lambda: run(client.db, partial(taken_of_keys, q)))
            by_key.look(client, NUMBERS, TaskKeys(q.contents), partial(total, q))
            client.pause(0.2)

    def survive(client: Client) -> None:
        q = opened(client)
        outlive(client, q, finish)
        by_key.look(client, NUMBERS, TaskKeys(q.contents), partial(total, q))

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(look, "auditor")
    simulation.afterwards(survive, "survivor")
    return [never_more_than_allowed(NAME), exact_statistics(NUMBERS), all_done_once, no_watch_left_behind]


def once(client: Client, q: TaskQueue, session: Session) -> None:
    task = q.take(client.db, client.random.choice((0, 1, 1)), session=session)
    if task is None:
        return
    client.pause(client.random.choice((0.01, 0.3)))
    does = client.random.choice((finish, finish, finish, put_aside, put_off, give_back))
    does(client, q, task)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Any) -> None:
        q.ack(tr, task)
        tr.add(DONE + task.data.encode(), b"\x01")

    attempt(client, lambda: run(client.db, body))


def put_aside(client: Client, q: TaskQueue, task: Task) -> None:
    attempt(client, lambda: q.bury(client.db, task))
    client.pause(0.2)
    q.kick(client.db, 1)


def put_off(client: Client, q: TaskQueue, task: Task) -> None:
    attempt(client, lambda: q.release(client.db, task, delay=0.5))


def give_back(client: Client, q: TaskQueue, task: Task) -> None:
    attempt(client, lambda: q.release(client.db, task))


def attempt(client: Client, body: Any) -> None:
    try:
        body()
    except NotTaken:
        client.pause(0.1)  # too late: another worker has the lease


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


def all_done_once(trace: Trace, database: Database) -> Iterator[str]:
    done = {e.key[len(DONE) :].decode(): e.value[0] for e in database.get_range_startswith(DONE)}
    for value, count in done.items():
        if count != 1:
            yield f"done {count} times: {value!r}"
    for op in trace.of(NAME, "put"):
        if op.done and op.argument not in done:
            yield f"lost: {op.argument!r}"
