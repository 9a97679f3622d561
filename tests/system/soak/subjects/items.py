"""The recipe queue: values without leases, which end when they are removed."""

from collections.abc import Mapping, Sequence
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.transactional import transactional
from fdbqueue.queues.recipe.queue import Queue
from tests.system.soak.client import Client, as_noted
from tests.system.soak.order import in_turn
from tests.system.soak.rules import ITEMS
from tests.system.soak.subject import PAGE_ROWS, Subject

# A killed process may have removed the values that its dequeue asked for, and no note tells which.
DEQUEUED_MAX = 5


class Items(Subject):
    name = "items"
    rules = (*ITEMS, in_turn)

    def prepare(self, db: Database) -> None:
        Queue.named(db, self.name, root=self.setup.queues)

    def open(self, db: Database) -> None:
        self._queue = Queue.named(db, self.name, create=False, root=self.setup.queues)

    def put(self, client: Client, count: int) -> None:
        values = client.values(count)
        client.call(self.name, "put", values, lambda: self._queue.enqueue_many(client.db, values))

    def take(self, client: Client, count: int) -> bool:
        if client.chance(0.2):
            return self._dequeue(client, count)
        consume = partial(self._consume, client, count)
        values = client.call(self.name, "consume", count, consume, shown=as_noted)
        return bool(values)

    def _dequeue(self, client: Client, count: int) -> bool:
        few = min(count, DEQUEUED_MAX)
        if few > 1:
            dequeue = partial(self._queue.dequeue_many, client.db, few)
            values = client.call(self.name, "dequeue", few, dequeue, shown=as_noted)
            return bool(values)
        wait_s = client.wait_s()
        one = client.call(
            self.name,
            "dequeue",
            1,
            lambda: self._queue.dequeue(client.db, timeout=wait_s),
            shown=lambda value: [] if value is None else [value],
        )
        return one is not None

    def _consume(self, client: Client, count: int) -> list[str]:
        """Remove values, and count an effect of each in the same transaction."""

        @transactional
        def consume(tr: Transaction) -> list[str]:
            values: list[str] = self._queue.dequeue_many(tr, count)
            client.effect(tr, self.name, values)
            return values

        return consume(client.db)

    def left(self, db: Database) -> list[str]:
        return list(every_row(partial(self._queue.items, db, PAGE_ROWS)))

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        return {"values": (self._queue.size(db), len(left))}
