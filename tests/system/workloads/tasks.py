"""A task queue: workers that die, stall, or end their sessions with tasks in hand; effects beside acks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys, record_of
from fdbqueue.tasks.records.statistics import LIVE
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, or_a_bag, values_of
from tests.system.workloads.effects import EFFECTS, effects_in, taken

NAME = "tasks"
ENOUGH_S = 200.0
STATES = dict(zip("rt!~", LIVE, strict=True))


@workload(clients=2, steps=4)
def tasks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    kind = or_a_bag(simulation, "fifottl")

    def produce(client: Client) -> None:
        q = opened(client, kind)
        for value in values_of(client, size.steps):
            delay = client.random.choice((0, 0, 0.5))
            client.call(NAME, "put", value, partial(q.put, client.db, value, delay=delay))
            client.pause(0.2)

    def work(client: Client) -> None:
        q = opened(client, kind)
        for _ in range(2):
            try:
                with Session(client.db, ttr=3) as session:
                    for _ in range(size.steps):
                        once(client, q, session)
            except UnknownSession:
                client.pause(0.5)  # it stalled, so its session died

    def look(client: Client) -> None:
        q = opened(client, kind)
        for _ in range(size.steps):
            client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))
            client.pause(0.5)

    def survive(client: Client) -> None:
        q = opened(client, kind)
        outlive(client, q, finish)
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(look, "auditor")
    simulation.afterwards(survive, "survivor")
    return [exact_statistics(NAME), once_each, no_watch_left_behind]


def opened(client: Client, kind: str = "fifottl") -> TaskQueue:
    return TaskQueue.create(client.db, NAME, kind, ttr=2, if_not_exists=True)


def outlive(client: Client, q: TaskQueue, finish: Callable[[Client, TaskQueue, Task], None]) -> None:
    """Finish all remaining tasks, those of dead sessions too."""
    until = client.runtime.monotonic() + ENOUGH_S
    while total(q, client.db) and client.runtime.monotonic() < until:
        q.kick(client.db, 9)
        task = taken(client, q, 1.0)
        if task is not None:
            finish(client, q, task)


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and call one method with it, by chance."""
    task = taken(client, q, client.random.choice((0, 1, 3)), session)
    if task is None:
        return
    client.pause(0.5)
    does: list[Callable[[], Any]] = [
        partial(finish, client, q, task),
        partial(finish, client, q, task),
        partial(q.release, client.db, task, delay=client.random.choice((0, 0.5))),
        partial(q.touch, client.db, task, 1),
        partial(q.bury, client.db, task),
        partial(q.kick, client.db, 2),
        partial(q.release_all, client.db),
    ]
    try:
        client.random.choice(does)()
    except NotTaken:
        client.pause(0.1)  # too late: another session has the lease


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Any) -> None:
        # Only the latest lease may end a task; another one is recorded like two effects.
        latest = q.ack(tr, task).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    try:
        client.call(NAME, "finish", task.data, lambda: run(client.db, body))
    except NotTaken:
        client.pause(0.1)


def counted_and_found(q: TaskQueue, tr: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the statistics and the counts of the stored tasks, from one transaction."""
    live = {name: count for name, count in q.statistics(tr)["tasks"].items() if name in LIVE}
    found = Counter(STATES[record_of(entry.value).state] for entry in all_tasks(q, tr))
    return live, {name: found[name] for name in LIVE}


def total(q: TaskQueue, target: Any) -> int:
    return q.statistics(target)["tasks"]["total"]


def all_tasks(q: TaskQueue, tr: Any) -> Any:
    under = TaskKeys(q.contents).tasks
    return tr.snapshot.get_range(under.start, under.stop)


def once_each(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task had its effect once, and no other value had one."""
    effects = effects_in(database)
    puts = {op.argument: op for op in trace.of(NAME, "put")}
    for value, count in effects.items():
        if count != 1 or value not in puts:
            yield f"{count} effects of {value!r}"
    for value, op in puts.items():
        if op.done and value not in effects:
            yield f"lost: {value!r}"
