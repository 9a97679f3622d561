"""The element queue: elements that are locked by name. A lock that is too old is broken."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from fdbqueue.core.database import Database
from fdbqueue.core.errors import ElementNotLocked, LockLost, QueueLockError
from fdbqueue.core.seam import Transaction
from fdbqueue.core.transactional import transactional
from fdbqueue.queues.elements.base import LockToken
from fdbqueue.queues.elements.queue import ElementQueue
from tests.system.soak.client import Client
from tests.system.soak.order import in_turn
from tests.system.soak.rules import LEASED
from tests.system.soak.subject import Subject

NAMES_MAX = 50
GONE = (ElementNotLocked, LockLost, QueueLockError)


class Elements(Subject):
    name = "elements"
    rules = (*LEASED, in_turn)

    def prepare(self, db: Database) -> None:
        ElementQueue.named(db, self.name, {"value": "string"}, root=self.setup.queues)

    def open(self, db: Database) -> None:
        self._queue = ElementQueue.named(db, self.name, create=False, root=self.setup.queues)

    def put(self, client: Client, count: int) -> None:
        for value in client.values(min(count, 5)):
            client.call(self.name, "put", [value], partial(self._queue.add, client.db, {"value": value}))

    def take(self, client: Client, count: int) -> bool:
        if client.calm or client.chance(0.05):
            self._queue.purge(client.db, maxlock=self.setup.ttr_s)
        names = list(islice(self._queue.copy().names(client.db), NAMES_MAX))
        begin = 0 if client.calm else client.random.randrange(len(names) or 1)
        taken = [self._take_one(client, name) for name in names[begin : begin + min(count, 5)]]
        return any(taken)

    def _take_one(self, client: Client, name: str) -> bool:
        if client.chance(0.2):
            one = client.call(
                self.name,
                "dequeue",
                1,
                lambda: self._queue.dequeue(client.db, name),
                shown=lambda pieces: [pieces["value"]],
                refusals=GONE,
            )
            return one is not None
        lease = client.call(self.name, "take", 1, partial(self._lock, client, name), shown=_one_or_none)
        if lease is not None:
            self._end(client, name, lease)
        return lease is not None

    def _lock(self, client: Client, name: str) -> list[str] | None:
        """The value of the element and the token of its lock; None if another client was faster."""
        token = self._queue.acquire(client.db, name)
        if token is None:
            return None
        with suppress(*GONE):
            return [self._queue.get(client.db, name, token=token)["value"], token]
        return None

    def _end(self, client: Client, name: str, lease: list[str]) -> None:
        token = LockToken(lease[1])
        if client.chance(0.05):
            return  # a purge breaks the lock
        if client.chance(0.1):
            self._call(client, "release", lease, lambda: self._queue.unlock(client.db, name, token=token))
        elif client.chance(0.3):
            self._call(client, "ack", lease, lambda: self._queue.remove(client.db, name, token=token))
        else:
            self._call(client, "finish", lease, lambda: self._finish(client, name, lease))

    def _call(self, client: Client, verb: str, lease: list[str], function: Callable[[], object]) -> None:
        client.call(self.name, verb, [lease], function, refusals=GONE)

    def _finish(self, client: Client, name: str, lease: list[str]) -> None:
        @transactional
        def finish(tr: Transaction) -> None:
            self._queue.remove(tr, name, token=LockToken(lease[1]))
            client.effect(tr, self.name, [lease[0]])

        finish(client.db)

    def left(self, db: Database) -> list[str]:
        found = []
        for name in self._queue.copy().names(db):
            with suppress(QueueLockError):
                found.append(self._queue.get_element(db, name)["value"])
                continue
            found.append(f"the locked element {name}")
        return found

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        return {"elements": (self._queue.count(db), len(left))}


def _one_or_none(lease: list[str] | None) -> list[list[str]]:
    return [] if lease is None else [lease]
