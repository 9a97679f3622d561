"""Bounds of a task queue: taken tasks of a task key, the capacity, and acks that combine."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys, record_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads import fairness, stage
from tests.system.workloads.common import checker, cramped, draw_limits, values_of
from tests.system.workloads.stage import (
    Tasks,
    all_tasks,
    by_chance,
    in_threads,
    once_each,
    outlive,
    play,
    put_plain,
    taken,
    total,
)

NAME, NUMBERS = "keyed", "keyed: numbers"
DONE = b"done/"
ACKS, ACKS_NUMBERS, KEYS = "acks", "acks: numbers", "acks: keys"
THREADS, ROUND = 4, b"\x03"  # the round of a fair queue stays (stored/keyed.py)
KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("fifottl", {}),
    ("utubettl", {"key_concurrency": 1}),
    ("utubettl", {"key_concurrency": 3}),
    ("fair", {}),
)
BOUNDED = "bounded"
EVERY_S = 0.1
"""In half of the runs, all producers put at multiples of this time."""


@workload(clients=3, steps=4)
def keyed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Micro-queues: workers die or stall with tasks of busy keys, and puts meet the last ack of a key."""
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
    fairness.look(client, NUMBERS, TaskKeys(q.contents), partial(total, q))


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


@checker
def never_more_than_allowed(trace: Trace, _: Database, name: str) -> Iterator[str]:
    """Check that each `audit` found at most as many taken tasks of a key as its argument."""
    for op in trace.of(name, "audit"):
        for key, count in (op.result or {}).items():
            if count > op.argument:
                yield f"{count} tasks of {key!r} are taken, {op.argument} may be"


@workload(clients=2, steps=3)
def acks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Machines of many threads: their acks combine, while other calls change the tasks."""
    cramped(simulation)
    random = simulation.random
    simulation.limit(KEY_LEVEL_MIN=1)
    draw_limits(simulation, random, VERB_BATCH=(2, 200))
    kind, options = random.choice(KINDS)
    queue = Tasks(ACKS, kind, ttr=2, **options)

    def everything(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            in_threads(client, {f"{n}": partial(work, q, session) for n in range(THREADS)})

    def work(q: TaskQueue, session: Session, client: Client) -> None:
        with suppress(UnknownSession):  # it stalled, so its session died
            for step in range(2 * size.steps):
                ack_once(client, q, session, step)

    audit = partial(audit_keys, options.get("key_concurrency"))

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, ack_one)
        audit(client, q)
        client.call(ACKS, "end", None, lambda: run(client.db, partial(end, q)))

    roles = {
        "producer-": queue.putting(THREADS * size.steps, 0.1, put_by_chance),
        "machine-": queue.using(everything),
        "auditor": queue.repeating(2 * size.steps, audit, 0.3),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    exact = exact_statistics(ACKS), exact_statistics(ACKS_NUMBERS)
    return [*exact, never_more_than_allowed(KEYS), each_told_once, no_watch_left_behind]


def put_by_chance(client: Client, q: TaskQueue, value: str) -> None:
    put_plain(client, q, value, key=None if q.kind == "fifottl" else client.random.choice("ab"))


def audit_keys(concurrency: int | None, client: Client, q: TaskQueue) -> None:
    stage.audit(client, q)
    if q.kind != "fifottl":
        fairness.look(client, ACKS_NUMBERS, TaskKeys(q.contents), partial(total, q))
    if concurrency is not None:
        client.call(KEYS, "audit", concurrency, lambda: run(client.db, partial(taken_of_keys, q)))


def ack_once(client: Client, q: TaskQueue, session: Session, step: int) -> None:
    """Take a task, if there is one, and ack it, while another thread may do the same with this task."""
    task = q.take(client.db, client.random.choice((0, 1)), session=session)
    if task is None:
        return
    client.pause(0.1)
    beside = client.random.sample((ack_one, renew, give_back), client.random.choice((0, 0, 1, 2)))
    others = [client.thread(partial(does, q=q, task=task), f"{task.data}-{step}") for does in beside]
    ack_one(client, q, task)
    for other in others:
        other.join()


def ack_one(client: Client, q: TaskQueue, task: Task) -> None:
    with suppress(NotTaken):
        client.call(ACKS, "ack", task.data, lambda: q.ack(client.db, task).data)


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
    told = [op for op in trace.of(ACKS, "ack") if op.done]
    untold = {op.argument for op in trace.of(ACKS, "ack") if op.unknown}
    for op in told:
        if op.result != op.argument:
            yield f"the ack of {op.argument!r} returned {op.result!r}"
    acked = Counter(op.argument for op in told)
    yield from (f"acked {count} times: {value!r}" for value, count in acked.items() if count > 1)
    for op in trace.of(ACKS, "put"):
        if op.done and op.argument not in acked and op.argument not in untold:
            yield f"no ack of {op.argument!r} returned"
    for done, left in (op.result for op in trace.of(ACKS, "end") if op.done):
        if left or not len(acked) <= done <= len(acked.keys() | untold):
            yield f"{left} keys are left, {done} tasks done: {len(acked)} acks came back"


@workload(clients=4, steps=5)
def bounded(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A queue near its capacity: batches that are put at the same moment, and room for several at once."""
    capacity = simulation.random.choice((2, 4, 8, 12))
    together = simulation.random.random() < 0.5
    batches = simulation.random.choice(((1,), (1, 1, 2), (2, 4), (1, 4)))
    partitions = Random(f"{simulation.seed} partitions").choice((1, 1, 2, 3))
    queue = Tasks(BOUNDED, "limfifottl", capacity=capacity, partitions=partitions)

    def produce(client: Client, q: TaskQueue) -> None:
        for step in range(2 * size.steps):
            if together:
                client.runtime.sleep(EVERY_S - client.runtime.monotonic() % EVERY_S)
            wanted = client.random.choice(batches)
            try:
                q.put_many(client.db, [step] * wanted, timeout=client.random.choice((0, 0, 1)))
            except QueueFull:
                client.pause(0.1)
            count_all(client, q)

    def work(client: Client, q: TaskQueue) -> None:
        """Make room for one task, or for several in one transaction: then puts meet far below the bound."""
        if client.random.random() < 0.5:
            q.truncate_some(client.db, client.random.randint(1, capacity))
        else:
            make_room(client, q)

    def look(client: Client, q: TaskQueue) -> None:
        count_all(client, q)
        client.runtime.sleep(0.05)

    def within_capacity(trace: Trace, _: Database) -> Iterator[str]:
        for op in trace.of(BOUNDED, "audit"):
            if op.done and op.result > capacity:
                yield f"{op.result} tasks in a queue for {capacity}"

    auditor = queue.repeating(4 * size.steps, look)
    roles = {
        "producer-": queue.using(produce),
        "worker": queue.repeating(2 * size.steps, work, 0.1),
        "auditor": auditor,
    }
    play(simulation, size, roles, {"last look": auditor})
    return [within_capacity]


def make_room(client: Client, q: TaskQueue) -> None:
    task = taken(client, q, 1)
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)


def count_all(client: Client, q: TaskQueue) -> None:
    client.call(BOUNDED, "audit", None, partial(total, q, client.db))
