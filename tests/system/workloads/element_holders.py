"""The workers of the workload `elements`: they look at locked elements, renew locks, hand them over, finish,
and put back.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import ElementNotLocked, QueueLockError
from fdbqueue.queues.elements.base import LockToken
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.element_checks import DONE, NAME

HELD_MAX = 3

Desks = Mapping[str, deque[tuple[str, LockToken]]]
"""The locks that were handed over to each worker, by its name; without workers, none is handed over."""


def desks_of(seed: int, workers: Sequence[str]) -> Desks:
    """A desk for each of the workers; in half of the runs none, so that no lock is handed over."""
    hands_over = Random(f"{seed} hands over").random() < 0.5
    return {name: deque() for name in workers} if hands_over else {}


def hold(client: Client, q: ElementQueue, maxlock_s: float, desks: Desks) -> None:
    """Lock some elements, work for a while, renew their locks or not, and finish those still held."""
    held, does_one = handed_to(client, desks), [keep, keep, renew, renew, renew, finish, put_back]
    if desks:
        does_one += [partial(hand_over, desks)] * 2
    for name in q.names(client.db):
        token = client.call(NAME, "acquire", name, partial(q.acquire, client.db, name))
        if token is not None:
            held[name] = token
        if len(held) >= HELD_MAX:
            break
    if not held:
        client.runtime.sleep(0.002)
    for _ in range(3 if held else 0):
        client.runtime.sleep(client.random.choice((0, maxlock_s / 2, maxlock_s, maxlock_s)))
        for name, token in list(held.items()):
            if not client.random.choice(does_one)(client, q, name, token):
                del held[name]


def handed_to(client: Client, desks: Desks) -> dict[str, LockToken]:
    """The locks on the desk of this client."""
    desk = desks.get(client.name, deque())
    held = dict(desk)
    desk.clear()
    return held


def hand_over(desks: Desks, client: Client, _: ElementQueue, name: str, token: LockToken) -> bool:
    """Let another worker, or this one later, go on under the lock."""
    to = client.random.choice(list(desks))
    client.hand_over(token, to)
    desks[to].append((name, token))
    return False


def keep(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    return client.call(NAME, "look", (name, token), partial(holds, client, q, name, token))


def renew(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    if not client.call(NAME, "renew", (name, token), partial(renewed, client, q, name, token)):
        return False
    return keep(client, q, name, token)


def put_back(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    q.unlock(client.db, name, permissive=True, token=token)
    return False


def holds(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    try:
        q.get(client.db, name, token=token)
    except ElementNotLocked:
        return False
    return True


def renewed(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    def body(tr: Any) -> None:
        q.get(tr, name, token=token)
        q.touch(tr, name)

    try:
        run(client.db, body)
    except ElementNotLocked:
        return False
    return True


def finish(client: Client, q: ElementQueue, name: str, token: LockToken) -> bool:
    def body(tr: Any) -> None:
        done(tr, q.get(tr, name, token=token))
        q.remove(tr, name, token=token)

    try:
        run(client.db, body)
    except ElementNotLocked:
        client.pause(0.1)  # too late, or done by a commit with an unknown result
    return False


def at_once(client: Client, q: ElementQueue, name: str) -> None:
    if not name:
        return
    try:
        run(client.db, lambda tr: done(tr, q.dequeue(tr, name)))
    except QueueLockError:
        client.pause(0.01)


def done(tr: Any, data: dict[str, Any]) -> None:
    tr.add(DONE + data["body"].encode(), b"\x01")
