"""Work that goes on while servers die: every number is put once, and must arrive once."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, Session, TaskQueue, transactional, verify
from fdbqueue.core.errors import NotTaken, UnknownSession
from loadtest.drills.servers import PATIENCE_S
from loadtest.ledger import ItemId, Ledger, Verdict, judge

CLIENTS = 4


class Witness(Ledger):
    """What calls of this process have confirmed, in its memory: no failover can take that back.

    A delivery is in both, the memory and the database. If a cluster forgets an ack, its task is given again:
    that are two deliveries.
    """

    def __init__(self, space: Subspace) -> None:
        super().__init__(space)
        self._begun: set[ItemId] = set()
        self._confirmed: dict[ItemId, float] = {}
        self._delivered: set[tuple[str, int, bytes]] = set()

    def begins(self, item: ItemId) -> None:
        self._begun.add(item)

    def confirms(self, item: ItemId) -> None:
        self._confirmed[item] = time.monotonic()

    def delivers(self, item: ItemId, delivery: bytes) -> None:
        self._delivered.add((*item, delivery))

    def count(self) -> int:
        return len(self._confirmed)

    def times(self) -> list[float]:
        """When puts were confirmed."""
        return sorted(self._confirmed.values())

    def produced_items(self, _: Any) -> Iterator[ItemId]:
        return iter(sorted(self._confirmed))

    def doubtful_items(self, _: Any) -> set[ItemId]:
        return self._begun - self._confirmed.keys()

    def consumed_items(self, db: Any) -> Iterator[ItemId]:
        return ((kind, number) for kind, number, _ in sorted(self._delivered.union(self.deliveries(db))))


class Load:
    """Producers and consumers of a recipe queue and of a task queue, until told to stop.

    Items of the recipe queue are dequeued by database (each call its own transactions, the line included):
    the results of the calls are the deliveries. Tasks are acked in a transaction beside their effect.
    """

    def __init__(self, cluster_file: Path, space: Subspace, clients: int = CLIENTS) -> None:
        self.db = fdbqueue.open(f"fdb:{cluster_file}")
        self.root = space["root"]
        self.witness = Witness(space["effects"])
        self._clients = clients
        self._items = Queue(space["items"], root=self.root)
        self._tasks = TaskQueue.create(self.db, "tasks", "fifottl", ttr=60, root=self.root)
        self.taking = threading.Event()
        """While it is clear, no consumer begins to take."""
        self.taking.set()
        self._stopping = threading.Event()
        self._produced = threading.Event()
        self._numbers = {"item": count(), "task": count()}
        self._failures: list[BaseException] = []

    def __enter__(self) -> "Load":
        self._producers = self._start(self._enqueue, self._put)
        self._consumers = self._start(self._dequeue, self._take)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """No more is produced; all that was is consumed. After an error, nothing is waited for."""
        self._stopping.set()
        self.taking.set()
        if error is not None:
            return
        self._join(self._producers)
        self._produced.set()
        self._join(self._consumers)
        if self._failures:
            raise self._failures[0]

    def progress(self) -> int:
        """How many items and tasks have been put so far."""
        return self.witness.count()

    def silence(self) -> float:
        """The longest time without a confirmed put."""
        return max((later - sooner for sooner, later in pairwise(self.witness.times())), default=0.0)

    def judge(self) -> Verdict:
        """Nothing lost, nothing twice, and every stored key agrees with the others."""
        counts = self._tasks.statistics(self.db)["tasks"]
        differences = {
            "tasks are left": counts["total"],
            "items are left": self._items.size(self.db),
            "acks are counted, and not stored": counts["done"] - len(list(self.witness.deliveries(self.db))),
        }
        found = [*verify(self.db, root=self.root).findings, *verify(self.db, self._items).findings]
        told = [f"{number} {what}" for what, number in differences.items() if number]
        return replace(judge(self.db, self.witness), findings=[*told, *(finding.text for finding in found)])

    def _start(self, *bodies: Callable[[], None]) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._guarded, args=(body,), daemon=True)
            for body in bodies
            for _ in range(self._clients)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + 2 * PATIENCE_S
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError("the load does not end: its calls wait for the cluster")

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self._failures.append(error)

    def _produce(self, kind: str, put: Callable[[fdbqueue.Database, int], Any]) -> None:
        while not self._stopping.is_set():
            item = kind, next(self._numbers[kind])
            self.witness.begins(item)
            put(self.db, item[1])
            self.witness.confirms(item)

    def _enqueue(self) -> None:
        self._produce("item", self._items.enqueue)

    def _put(self) -> None:
        self._produce("task", self._tasks.put)

    def _dequeue(self) -> None:
        number = None
        while number is not None or not self._produced.is_set():
            self.taking.wait()
            number = self._items.dequeue(self.db, timeout=0.5)
            if number is not None:
                self.witness.delivers(("item", number), os.urandom(8))

    def _take(self) -> None:
        while not self._produced.is_set() or self._tasks.statistics(self.db)["tasks"]["total"]:
            try:
                with Session(self.db, ttr=20, root=self.root) as session:
                    self._take_in(session)
            except UnknownSession:
                pass  # frozen for longer than the session lives: on in a new one, as a worker would

    def _take_in(self, session: Session) -> None:
        @transactional
        def finish(tr: Any, task: fdbqueue.Task, delivery: bytes) -> None:
            self._tasks.ack(tr, task, session=session)
            self.witness.consumed(tr, ("task", task.data), delivery)

        while self.taking.wait() and (task := self._tasks.take(self.db, 0.5, session=session)):
            # Not taken: the first attempt's commit had succeeded (1021), or the lease ran out meanwhile.
            with suppress(NotTaken):
                delivery = os.urandom(8)
                finish(self.db, task, delivery)
                self.witness.delivers(("task", task.data), delivery)
