"""The persistent queue. Its items are moved in transactions, too: an item that has moved has a "+" more."""

from collections.abc import Mapping, Sequence
from functools import partial
from queue import Empty

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotUnacked, UnknownSession
from fdbqueue.queues.persistent import PersistentQueue, Proxy
from fdbqueue.tasks.queue import TaskQueue
from tests.system.soak.client import Client, as_noted
from tests.system.soak.order import in_turn
from tests.system.soak.rules import LEASED
from tests.system.soak.subject import Subject
from tests.system.soak.subjects.leases import STORED_STATES, stored_in

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
