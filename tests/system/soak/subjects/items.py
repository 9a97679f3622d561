"""Queues without leases and of locks: the recipe, the fair, the element and the persistent queue."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty

from fdbqueue.core.database import Database
from fdbqueue.core.errors import ElementNotLocked, LockLost, NotUnacked, QueueLockError, UnknownSession
from fdbqueue.core.page import every_page, every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.transactional import transactional
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.elements.base import LockToken
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.fair import FairQueue, FairSnapshot
from fdbqueue.queues.persistent import PersistentQueue, Proxy
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.trace import told
from tests.system.soak.client import PAGE_ROWS, Client, Subject, as_noted
from tests.system.soak.rules import ITEMS, LEASED, in_turn, in_turn_by_key, key_of
from tests.system.soak.subjects.tasks import KEYS, STORED_STATES, stored_in

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
        for value in client.values(min(count, 5), client.random.choice(KEYS)):
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


REFUSALS = (NotUnacked, UnknownSession)
MOVED = "+"
FETCHED_MAX = 5


class Persistent(Subject):
    """A move keeps the value: in one commit it ends an item and puts the next one."""

    name = "persistent"
    rules = (*LEASED, in_turn)

    def prepare(self, db: Database) -> None:
        TaskQueue.create(db, self.name, "fifo", root=self.setup.queues)

    def open(self, db: Database) -> None:
        self._queue = PersistentQueue(db, self.name, ttr=self.setup.ttr_s, root=self.setup.queues)
        self._number = 0

    def put(self, client: Client, count: int) -> None:
        values = client.values(min(count, FETCHED_MAX))
        if client.chance(0.5):
            client.call(self.name, "put", values, lambda: self._put_together(values), refusals=REFUSALS)
            return
        for value in values:
            client.call(self.name, "put", [value], partial(self._queue.put, value))

    def _put_together(self, values: Sequence[str]) -> None:
        with self._queue.transaction():
            for value in values:
                self._queue.put(value)

    def take(self, client: Client, count: int) -> bool:
        if client.chance(0.2):
            moved = client.call(self.name, "move", 1, self._move, shown=as_noted, refusals=REFUSALS)
            return bool(moved)
        proxy = self._queue.connect() if client.chance(0.2) else self._queue
        fetched = [one for _ in range(min(count, FETCHED_MAX)) if (one := self._fetch(client, proxy))]
        # An ack names its item. If the item was lost meanwhile, and came once more, it ends the last lease.
        leases = {item: lease for lease, item in fetched}
        if proxy is not self._queue:
            client.call(self.name, "release", [*leases.values()], proxy.close)
            return bool(leases)
        for item, lease in leases.items():
            client.call(self.name, "ack", [lease], partial(proxy.ack, item), refusals=REFUSALS)
        return bool(leases)

    def _fetch(self, client: Client, proxy: Proxy) -> tuple[list[str], str] | None:
        """Fetch an item: its value with a token of this fetch, and the item."""
        self._number += 1
        token = f"{client.name}:{self._number}"
        wait_s = client.wait_s()
        item = client.call(
            self.name,
            "take",
            1,
            lambda: _got(proxy, wait_s),
            shown=lambda item: [] if item is None else [[item.rstrip(MOVED), token]],
            refusals=REFUSALS,
        )
        return None if item is None else ([item.rstrip(MOVED), token], item)

    def _move(self) -> list[str]:
        with self._queue.transaction():
            item = _got(self._queue, 0)
            if item is None:
                return []
            self._queue.put(item + MOVED)
            self._queue.ack(item)
        return [item.rstrip(MOVED)]

    def left(self, db: Database) -> list[str]:
        tasks = TaskQueue.open(db, self.name, root=self.setup.queues)
        rows = [row for state in STORED_STATES for row in stored_in(db, tasks, state)]
        return [str(task.data).rstrip(MOVED) for task in rows]

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        told = TaskQueue.open(db, self.name, root=self.setup.queues).statistics(db)
        return {
            "tasks": (told["tasks"]["total"], len(left)),
            "items that wait": (self._queue.qsize(), len(left)),
            "items put": (told["calls"]["put"], told["tasks"]["done"] + len(left)),
        }


def _got(proxy: Proxy, wait_s: float) -> str | None:
    try:
        item: str = proxy.get(timeout=wait_s) if wait_s else proxy.get(False)
    except Empty:
        return None
    return item
