"""The calls of clients in the workload of unique keys: puts, takes and their ends, and a look at the end."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, QueueFull, TaskNotFound, UniqueTaskBusy
from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.effects import taken
from tests.system.workloads.unique_checks import LATEST_S, NAME, WINDOW_S, Put

SCOPES: dict[str, Any] = {"a": "queued", "b": "unfinished", "c": WINDOW_S, "d": "unfinished"}
MORTAL = "bc"
"""The keys of tasks that may expire."""
DELAYS = (0, 0, 0.5, 1.5)


def put(client: Client, q: TaskQueue, data: str) -> None:
    """Put with one of the keys; sometimes twice in a transaction of the caller."""
    random = client.random
    key, conflict = random.choice(list(SCOPES)), random.choice(("skip", "skip", "replace", "debounce"))
    options: dict[str, Any] = {"unique": key, "scope": SCOPES[key], "on_conflict": conflict}
    options["delay"] = random.choice(DELAYS)
    if key in MORTAL:
        options["ttl"] = random.choice((None, 2.0))
    if conflict == "debounce":
        options["debounce_max"] = LATEST_S
    if q.kind == "utubettl":
        options["key"] = random.choice("xy")
    call: Callable[[], Task] = partial(q.put, client.db, data, **options)
    twice = random.random() < 0.3
    if twice:
        call = partial(run, client.db, partial(put_twice, q, data, options))
    with suppress(UniqueTaskBusy, QueueFull):
        client.call(NAME, "put", Put(key, data, conflict, twice), call)


def put_twice(q: TaskQueue, data: str, options: dict[str, Any], tr: Transaction) -> Task:
    first, second = (q.put(tr, data, **options) for _ in range(2))
    is_one = (second.id, second.existed) == (first.id, True)
    assert is_one or options["unique"] in MORTAL  # its time may be over in between
    return first


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and end its lease by chance, or let it end by its time."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is None:
        return
    client.pause(0.4)
    deeds: list[Callable[[], object]] = [
        partial(end, client, q, "ack", task),
        partial(q.release, client.db, task),
        partial(q.give_back, client.db, task),
        partial(q.release, client.db, task, delay=0.3),
        partial(q.bury, client.db, task),
        partial(q.kick, client.db, 2),
        partial(q.release_all, client.db),
    ]
    with suppress(NotTaken):
        client.random.choice(deeds)()


def end(client: Client, q: TaskQueue, verb: str, task: Task | str) -> None:
    id_ = task.id if isinstance(task, Task) else task
    with suppress(NotTaken, TaskNotFound):
        client.call(NAME, verb, id_, lambda: str(getattr(q, verb)(client.db, task).state))


def left(q: TaskQueue, tr: Transaction) -> int:
    """Return the number of entries and windows."""
    keys = SharedKeys(q.contents)
    return sum(
        len(tr.snapshot.get_range(under.start, under.stop).to_list())
        for under in (keys.uniques, keys.windows)
    )
