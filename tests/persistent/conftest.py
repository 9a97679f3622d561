"""`opened("name", maxsize=3)`: a PersistentQueue below the test's own root, on every engine."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import PersistentQueue
from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.keeper import keeper_of
from tests.conftest import TEST_ROOT, open_engine
from tests.tasks.support import StillClock

Opened = Callable[..., PersistentQueue]


@pytest.fixture
def opened(db: fdbqueue.Database, space: Subspace) -> Iterator[Opened]:
    """Opens a queue; all of them are closed afterwards. Without a name it is always the same one."""
    queues: list[PersistentQueue] = []

    def make(name: str = "q", maxsize: int = 0, owner: str | None = None, **options: Any) -> PersistentQueue:
        queues.append(PersistentQueue(db, name, maxsize, owner, root=space, **options))
        return queues[-1]

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def q(opened: Opened) -> PersistentQueue:
    return opened()


class Still:
    """A database of the engine on a clock set by hand: nothing happens in the background."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.clock = StillClock()
        self.root = TEST_ROOT[os.urandom(8)]
        self.db = open_engine(engine, directory, self.clock)

    def opened(self, name: str = "q", maxsize: int = 0, owner: str | None = None, **options: Any) -> Any:
        return PersistentQueue(self.db, name, maxsize, owner, root=self.root, **options)

    def tick(self) -> None:
        keeper_of(self.db, RootKeys(self.root)).tick()

    def end_the_dead(self) -> None:
        """As another process does."""
        end_the_dead(self.db, RootKeys(self.root))

    def stored(self) -> list[tuple[bytes, bytes]]:
        """Everything there is, but receipts."""
        receipts = RootKeys(self.root).receipts
        rows = self.db.get_range_startswith(self.root.key())
        return [
            (bytes(row.key), bytes(row.value))
            for row in rows
            if not receipts.start <= bytes(row.key) < receipts.stop
        ]


@pytest.fixture
def still(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Still]:
    if engine == "fdb":  # the clock of its database does not stand still
        monkeypatch.setattr(limits, "SESSION_HOLD_SHARE", 0)
    made = Still(engine, tmp_path / "still")
    with made.db:
        yield made
        made.db.clear_range_startswith(made.root.key())
