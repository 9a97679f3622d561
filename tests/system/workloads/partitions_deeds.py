"""The deeds of the clients of the workload `partitions`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, RepartitionUnderWay, TaskNotFound
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.effects import EFFECTS
from tests.system.workloads.partitions_checks import KEYS, NAME, SURVIVOR_S, is_under_way
from tests.system.workloads.partitions_more import More
from tests.system.workloads.tasks import total

DONE = b"done/"


def put(client: Client, q: TaskQueue, value: str, more: More) -> list[str]:
    """Put a task, or two of different keys in one transaction. Return their ids, none if there is no room."""
    key = client.random.choice((*KEYS, value)) if q.kind in ("utubettl", "fair") else None
    options: dict[str, Any] = {"delay": client.random.choice((0, 0, 0, 0.5)), "key": key}
    options |= more.options(client, key)
    key = options.pop("key")
    names = [value, f"{value}+"] if client.random.random() < 0.3 else [value]

    def together(tr: Any) -> list[str]:
        if tr.get(DONE + value.encode()).present():
            return []  # an attempt with an unknown result has committed
        tr.set(DONE + value.encode(), b"")
        return [q.put(tr, one, key=key and key * n, **options).id for n, one in enumerate(names, 1)]

    def alone() -> list[str]:
        patience: dict[str, Any] = {} if more.capacity is None else {"timeout": 1}
        return [q.put(client.db, value, key=key, **patience, **options).id]

    ids: list[str] = []
    with suppress(QueueFull):
        argument = (names, key, options["delay"], options.get("ttl"))
        does = alone if len(names) == 1 else partial(run, client.db, together)
        ids = client.call(NAME, "put", argument, does)
    return ids


def once(client: Client, q: TaskQueue, session: Session, db: Database) -> None:
    """Take a task, if there is one, and call a method with it, by chance."""
    timeout = client.random.choice((0, 1, 5))
    task = client.random.choice((took, took, took_within))(client, q, session, db, timeout)
    if task is None:
        return
    client.pause(0.2)
    does: list[Callable[[], Any]] = [
        partial(finish, client, q, task, db),
        partial(finish, client, q, task, db),
        partial(q.release, db, task, delay=client.random.choice((0, 0.5))),
        partial(q.touch, db, task, 1),
        partial(q.bury, db, task),
        partial(q.release_all, db),
    ]
    with suppress(NotTaken):
        client.random.choice(does)()


def took(client: Client, q: TaskQueue, session: Session, db: Database, timeout: float) -> Task | None:
    found: list[Task] = []

    def body() -> str | None:
        found.extend(q.take_many(db, 1, timeout, session=session))
        return found[0].data if found else None

    client.call(NAME, "take", timeout, body)
    return found[0] if found else None


def took_within(client: Client, q: TaskQueue, session: Session, db: Database, _: float) -> Task | None:
    """Take in a transaction of the caller, which also writes: so its answer of nothing has to hold."""
    found: list[Task | None] = []

    def body(tr: Any) -> str | None:
        found.append(q.take(tr, session=session))
        tr.set(b"answer", b"")
        return None if found[-1] is None else found[-1].data

    client.call(NAME, "take", None, lambda: run(db, body))
    return found[-1]


def by_id(client: Client, q: TaskQueue, ids: Sequence[str]) -> None:
    """Call a verb with the id of a task, wherever it is."""
    if not ids:
        return
    id_ = client.random.choice(ids)
    verb = client.random.choice((q.peek, q.bury, q.delete, q.cancel))
    with suppress(TaskNotFound, NotTaken):
        name = "remove" if verb in (q.delete, q.cancel) else "look"
        client.call(NAME, name, id_, lambda: verb(client.db, id_).data)


def finish(client: Client, q: TaskQueue, task: Task, db: Database) -> None:
    def body(tr: Any) -> None:
        latest = q.ack(tr, task).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    with suppress(NotTaken):
        client.call(NAME, "finish", task.data, lambda: run(db, body))


def repartition(client: Client, q: TaskQueue, way: Sequence[int]) -> None:
    for count in way:
        client.pause(0.5)
        if client.random.random() < 0.15:
            return  # in the middle, as it may be: another process finishes
        for _ in range(20):
            with suppress(RepartitionUnderWay):
                client.call(NAME, "repartition", count, partial(q.repartition, client.db, count))
                break
            client.pause(0.5)


def outlive(client: Client, q: TaskQueue) -> None:
    """Finish all remaining tasks, and wait for the end of the repartition."""
    until = client.runtime.monotonic() + SURVIVOR_S
    q.resume(client.db)
    while client.runtime.monotonic() < until and (total(q, client.db) or is_under_way(q, client.db)):
        q.kick(client.db, 9)
        task = q.take(client.db, 1.0)
        if task is not None:
            finish(client, q, task, client.db)
    client.call(NAME, "is under way", None, lambda: is_under_way(q, client.db))
