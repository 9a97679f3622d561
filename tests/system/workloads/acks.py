"""Machines of many threads that ack: the acks of a machine combine, while other calls change its tasks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads import by_key, stage
from tests.system.workloads.common import cramped
from tests.system.workloads.keyed import never_more_than_allowed, taken_of_keys
from tests.system.workloads.stage import Tasks, in_threads, outlive, play, put_plain, total

NAME, NUMBERS, KEYS = "acks", "acks: numbers", "acks: keys"
THREADS, ROUND = 4, b"\x03"  # the round of a fair queue stays (disciplines/keyed.py)
KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("fifottl", {}),
    ("utubettl", {"key_concurrency": 1}),
    ("utubettl", {"key_concurrency": 3}),
    ("fair", {}),
)


@workload(clients=2, steps=3)
def acks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(
        ACKS_APART_MAX=random.choice((0, 0, 1)), VERB_BATCH=random.choice((2, 200)), KEY_LEVEL_MIN=1
    )
    kind, options = random.choice(KINDS)
    queue = Tasks(NAME, kind, ttr=2, **options)

    def everything(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            in_threads(client, {f"{n}": partial(work, q, session) for n in range(THREADS)})

    def work(q: TaskQueue, session: Session, client: Client) -> None:
        with suppress(UnknownSession):  # it stalled, so its session died
            for step in range(2 * size.steps):
                once(client, q, session, step)

    audit = partial(audit_keys, options.get("key_concurrency"))

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, finish)
        audit(client, q)
        client.call(NAME, "end", None, lambda: run(client.db, partial(end, q)))

    roles = {
        "producer-": queue.putting(THREADS * size.steps, 0.1, put),
        "machine-": queue.using(everything),
        "auditor": queue.repeating(2 * size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    exact = exact_statistics(NAME), exact_statistics(NUMBERS)
    return [*exact, never_more_than_allowed(KEYS), each_told_once, no_watch_left_behind]


def put(client: Client, q: TaskQueue, value: str) -> None:
    put_plain(client, q, value, key=None if q.kind == "fifottl" else client.random.choice("ab"))


def audit_keys(concurrency: int | None, client: Client, q: TaskQueue) -> None:
    stage.audit(client, q)
    if q.kind != "fifottl":
        by_key.look(client, NUMBERS, TaskKeys(q.contents), partial(total, q))
    if concurrency is not None:
        client.call(KEYS, "audit", concurrency, lambda: run(client.db, partial(taken_of_keys, q)))


def once(client: Client, q: TaskQueue, session: Session, step: int) -> None:
    """Take a task, if there is one, and ack it, while another thread may do the same with this task."""
    task = q.take(client.db, client.random.choice((0, 1)), session=session)
    if task is None:
        return
    client.pause(0.1)
    beside = client.random.sample((finish, renew, give_back), client.random.choice((0, 0, 1, 2)))
    others = [client.thread(partial(does, q=q, task=task), f"{task.data}-{step}") for does in beside]
    finish(client, q, task)
    for other in others:
        other.join()


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    with suppress(NotTaken):
        client.call(NAME, "ack", task.data, lambda: q.ack(client.db, task).data)


def renew(client: Client, q: TaskQueue, task: Task) -> None:
    q.renew(client.db, [task])


def give_back(client: Client, q: TaskQueue, task: Task) -> None:
    with suppress(NotTaken):
        q.release(client.db, task)


def end(q: TaskQueue, tr: Any) -> tuple[int, int]:
    """Return the number of tasks counted as done, and the number of keys left in the queue."""
    keys = TaskKeys(q.contents)
    found = tr.snapshot.get_range(keys.contents.start, keys.contents.stop)
    return q.statistics(tr)["tasks"]["done"], sum(row.key != keys.beside + ROUND for row in found)


def each_told_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that one ack of each put task returned, with that task, and no other count or key is left."""
    told = [op for op in trace.of(NAME, "ack") if op.done]
    untold = {op.argument for op in trace.of(NAME, "ack") if op.unknown}
    for op in told:
        if op.result != op.argument:
            yield f"the ack of {op.argument!r} returned {op.result!r}"
    acked = Counter(op.argument for op in told)
    yield from (f"acked {count} times: {value!r}" for value, count in acked.items() if count > 1)
    for op in trace.of(NAME, "put"):
        if op.done and op.argument not in acked and op.argument not in untold:
            yield f"no ack of {op.argument!r} returned"
    for done, left in (op.result for op in trace.of(NAME, "end") if op.done):
        if left or not len(acked) <= done <= len(acked.keys() | untold):
            yield f"{left} keys are left, {done} tasks done: {len(acked)} acks came back"
