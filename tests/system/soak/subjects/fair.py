"""The fair queue: values without leases, in rounds of their keys."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.page import every_page
from fdbqueue.core.seam import Transaction
from fdbqueue.core.transactional import transactional
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.fair import FairQueue, FairSnapshot
from fdbqueue.testing.trace import told
from tests.system.soak.client import Client, as_noted
from tests.system.soak.evidence import key_of
from tests.system.soak.order import in_turn_by_key
from tests.system.soak.rules import ITEMS
from tests.system.soak.subject import PAGE_ROWS, Subject
from tests.system.soak.subjects.keyed import COLOURS


class Tenants(Subject):
    name = "tenants"
    rules = (*ITEMS, in_turn_by_key)

    def prepare(self, db: Database) -> None:
        """A fair queue is made by its first put."""

    def open(self, db: Database) -> None:  # noqa: ARG002
        self._queue = FairQueue(
            self.setup.space["tenants"], key=key_of, capacity=None, weights={"red": 3}, root=self.setup.queues
        )

    def put(self, client: Client, count: int) -> None:
        for value in client.values(min(count, 5), client.random.choice(COLOURS)):
            client.call(self.name, "put", [value], partial(self._queue.put, client.db, value))

    def take(self, client: Client, count: int) -> bool:
        if client.chance(0.2):
            wait_s = client.wait_s()
            got = client.call(
                self.name,
                "dequeue",
                1,
                lambda: self._queue.get(client.db, timeout=wait_s),
                shown=lambda value: [] if value is None else [value],
            )
            return got is not None
        few = min(count, 5)
        consume = partial(self._consume, client, few)
        values = client.call(self.name, "consume", few, consume, shown=as_noted)
        return bool(values)

    def _consume(self, client: Client, count: int) -> list[str]:
        @transactional
        def consume(tr: Transaction) -> list[str]:
            values = [value for _ in range(count) if (value := self._queue.get(tr)) is not None]
            client.effect(tr, self.name, values)
            return values

        return consume(client.db)

    def left(self, db: Database) -> list[str]:
        pages = every_page(partial(self._queue.snapshot, db, PAGE_ROWS))
        return [value for page in pages for value in _values(page)]

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        return {"values": (self._queue.size(db), len(left))}

    def findings(self, db: Database) -> Sequence[str]:
        return list(told(verify(db, self._queue)))


def _values(page: FairSnapshot) -> Iterator[str]:
    yield from page.round
    for _, values in page.lines:
        yield from values
