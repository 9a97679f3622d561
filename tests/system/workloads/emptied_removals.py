"""The ways in which the workload `emptied` takes ready tasks from the takers."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.errors import TaskNotFound
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.emptied_checks import NAME

BURSTS, BRIEF, LONGER_S = 4, 9, 60.0


def rest(client: Client, mean_s: float) -> None:
    """Sleep, also in busy runs: only takers without tasks wait."""
    client.runtime.sleep(client.random.expovariate(1 / mean_s) if client.random.random() < 0.6 else 0.0)


def put_brief_tasks(opened: Callable[[Client], TaskQueue], client: Client) -> None:
    """Put tasks that expire together, more than one take sweeps, before a task that stays for a while."""
    q = opened(client)
    for _ in range(BURSTS):
        q.put_many(client.db, ["brief"] * BRIEF, ttl=client.random.choice((0.01, 0.3)))
        q.put(client.db, "longer", ttl=LONGER_S)
        rest(client, 2.0)


def delete(client: Client, q: TaskQueue, ids: Sequence[str]) -> None:
    for id_ in ids[-4:]:
        with suppress(TaskNotFound):
            client.call(NAME, "remove", id_, partial(removed, client, q, id_))


def removed(client: Client, q: TaskQueue, id_: str) -> str:
    data: str = client.random.choice((q.delete, q.cancel))(client.db, id_).data
    return data


def truncate(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "truncate", None, partial(q.truncate, client.db))


def truncate_some(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "truncate", None, partial(q.truncate_some, client.db, 2))


def pause(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "pause", None, partial(q.pause, client.db))
    rest(client, 2.0)
    client.call(NAME, "resume", None, partial(q.resume, client.db))


REMOVALS: Sequence[Callable[[Client, TaskQueue, Sequence[str]], None]] = (
    delete,
    truncate,
    truncate_some,
    pause,
    pause,
)
