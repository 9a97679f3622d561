"""Work that goes on while servers die: every number is put once, and must arrive once."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, Session, TaskQueue, transactional, verify
from fdbqueue.core.errors import NotTaken, UnknownSession

CLIENTS = 4


class Load:
    """Producers and consumers of a recipe queue and of a task queue, until told to stop.

    Items of the recipe queue are dequeued by database (each call its own transactions, the line included):
    the results of the calls are the deliveries. Tasks are acked in a transaction beside their effect.
    """

    def __init__(self, cluster_file: Path, space: Subspace) -> None:
        self.db = fdbqueue.open(f"fdb:{cluster_file}")
        self._effects = space["effects"]
        self._root = space["root"]
        self._items = Queue(space["items"], root=self._root)
        self._tasks = TaskQueue.create(self.db, "tasks", "fifottl", ttr=60, root=self._root)
        self._stopping = threading.Event()
        self._produced = threading.Event()
        self._lock = threading.Lock()
        self._numbers = {"item": 0, "task": 0}
        self._arrived: Counter[int] = Counter()
        self._failures: list[BaseException] = []

    def __enter__(self) -> "Load":
        self._producers = self._start(self._enqueue, self._put)
        self._consumers = self._start(self._dequeue, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        """No more is produced; all that was is consumed."""
        self._stopping.set()
        for thread in self._producers:
            thread.join()
        self._produced.set()
        for thread in self._consumers:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def progress(self) -> int:
        """How many items and tasks have been put so far."""
        with self._lock:
            return sum(self._numbers.values())

    def check(self) -> None:
        """Nothing lost, nothing twice, and every stored key agrees with the others."""
        assert self._arrived == Counter(range(self._numbers["item"]))
        effects = {
            self._effects.unpack(row.key)[0]: int.from_bytes(row.value, "little")
            for row in self.db.get_range_startswith(self._effects.key())
        }
        assert effects == dict.fromkeys(range(self._numbers["task"]), 1)
        counts = self._tasks.statistics(self.db)
        assert (counts["tasks"]["done"], counts["tasks"]["total"]) == (self._numbers["task"], 0)
        assert self._items.size(self.db) == 0
        assert verify(self.db, root=self._root).findings == ()
        assert verify(self.db, self._items).findings == ()

    def _start(self, *bodies: Callable[[], None]) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._guarded, args=(body,)) for body in bodies for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self._failures.append(error)

    def _next(self, kind: str) -> int:
        with self._lock:
            self._numbers[kind] += 1
            return self._numbers[kind] - 1

    def _enqueue(self) -> None:
        while not self._stopping.is_set():
            self._items.enqueue(self.db, self._next("item"))

    def _put(self) -> None:
        while not self._stopping.is_set():
            self._tasks.put(self.db, self._next("task"))

    def _dequeue(self) -> None:
        while (
            number := self._items.dequeue(self.db, timeout=0.5)
        ) is not None or not self._produced.is_set():
            if number is not None:
                with self._lock:
                    self._arrived[number] += 1

    def _take(self) -> None:
        while not self._produced.is_set() or self._tasks.statistics(self.db)["tasks"]["total"]:
            try:
                with Session(self.db, ttr=20, root=self._root) as session:
                    self._take_in(session)
            except UnknownSession:
                pass  # frozen for longer than the session lives: on in a new one, as a worker would

    def _take_in(self, session: Session) -> None:
        @transactional
        def finish(tr: Any, task: fdbqueue.Task) -> None:
            self._tasks.ack(tr, task, session=session)
            tr.add(self._effects.pack((task.data,)), b"\x01")

        while task := self._tasks.take(self.db, 0.5, session=session):
            # Not taken: the first attempt's commit had succeeded (1021), or the lease ran out meanwhile.
            with suppress(NotTaken):
                finish(self.db, task)
