"""What the demo's processes do: a producer puts paths, a consumer counts files."""

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.database import Database, engine_errors
from fdbqueue.demo.files import count, source_files
from fdbqueue.demo.ledger import Ledger, Work
from fdbqueue.open import open as open_database
from fdbqueue.seam import Transaction

T = TypeVar("T")

PATHS_PER_PUT = 10
WAKE_EVERY_S = 1.0
CONFLICT = 1020


def produce(url: str, space: Subspace, name: str, share: int, shares: int) -> None:
    """Put every `shares`-th path of the input, beginning with number `share`."""
    with open_database(url) as database:
        worker = Worker(database, Ledger(space), name)
        mine = source_files()[share::shares]
        for start in range(0, len(mine), PATHS_PER_PUT):
            worker.put(mine[start : start + PATHS_PER_PUT])


def consume(url: str, space: Subspace, name: str) -> None:
    """Count files until there are none, and none will come."""
    with open_database(url) as database:
        worker = Worker(database, Ledger(space), name)
        while worker.count_one():
            pass


class Worker:
    def __init__(self, database: Database, ledger: Ledger, name: str) -> None:
        self._database = database
        self._runtime = database.runtime
        self._ledger = ledger
        self._name = name
        self._done = Work(began_s=self._runtime.monotonic())

    def put(self, paths: list[str]) -> None:
        def body(tr: Transaction) -> None:
            self._ledger.put(tr, paths)
            self._note(tr, len(paths))

        self._run(body)
        self._done.items += len(paths)

    def count_one(self) -> bool:
        """Take a path, and write what its file comes to, in one transaction; False if it was the last."""

        def body(tr: Transaction) -> object:
            found = self._ledger.next_or_watch(tr)
            if isinstance(found, str):
                self._ledger.count(tr, found, count(found))
                self._note(tr, 1)
            return found

        found = self._run(body)
        if isinstance(found, str):
            self._done.items += 1
        elif found is not None:
            self._runtime.wait_any([found], WAKE_EVERY_S)  # type: ignore[list-item]  # a watch
        return found is not None and _parent_lives()

    def _note(self, tr: Transaction, items: int) -> None:
        # With the work itself: what is counted here was committed, also by one that is killed.
        now = replace(self._done, items=self._done.items + items, ended_s=self._runtime.monotonic())
        self._ledger.note(tr, self._name, now)

    def _run(self, body: Callable[[Transaction], T]) -> T:
        """fdbqueue.database.run, which counts what goes wrong on the way."""
        tr = self._database.create_transaction()
        while True:
            try:
                result = body(tr)
                tr.commit().wait()
                return result
            except engine_errors() as error:
                self._note_failure(error)
                tr.on_error(error).wait()

    def _note_failure(self, error: Any) -> None:
        self._done.retries += 1
        self._done.conflicts += error.code == CONFLICT


def _parent_lives() -> bool:
    # The parent ends its children, unless it is itself killed.
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()
