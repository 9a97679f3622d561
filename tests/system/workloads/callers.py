"""Takes in transactions of callers, each of which happens once."""

from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue.core.calls.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.checkers import RETURNING
from fdbqueue.testing.simulation import Client

T = TypeVar("T")


def once(client: Client, body: Callable[[Transaction], T]) -> T:
    """Run `body` in a transaction of the client, with its effect once, whatever becomes of the commit."""
    return run_once(client.db, RootKeys(DEFAULT_ROOT), body)


def dequeue_within(client: Client, q: Queue, name: str, count: int, back: int = 0) -> list[Any]:
    """Dequeue `count` values in a transaction. With `back`, dequeue more, and give the last ones back."""

    def body(tr: Transaction) -> list[Any]:
        values = q.dequeue_many(tr, count + back)
        if values[count:]:
            q.give_back(tr, values[count:])
        return values[:count]

    return client.call(name, RETURNING if back else "dequeue", count + back, lambda: once(client, body))


def dequeue_and_give_back(client: Client, q: Queue, name: str, count: int, back: int) -> list[Any]:
    """Dequeue values, and give the last ones back in a transaction of their own. Not for clients that die."""
    more: list[Any] = []

    def body() -> list[Any]:
        values = q.dequeue_many(client.db, count + back)
        more.extend(values[count:])
        return values[:count]

    kept = client.call(name, "dequeue", count, body)
    client.pause(0.1)
    if more:
        client.call(name, RETURNING, 0, lambda: q.give_back(client.db, more))
    return kept
