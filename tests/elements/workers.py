"""Processes that add to one element queue, and consume it, and may be killed at any moment."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import ElementQueue, LockToken, transactional
from fdbqueue.errors import ElementNotLocked

SPACE = Subspace(("killed",))
EFFECTS = b"effects/"
MAXLOCK_S = 1.0


def queue() -> ElementQueue:
    return ElementQueue(SPACE, {"body": "string"})


def produce(directory: Path, writer: int, count: int) -> None:
    with fdbqueue.open(f"embedded:{directory}") as db:
        q = queue()
        for number in range(count):
            q.add(db, {"body": f"{writer}.{number}"})


def progress(directory: Path) -> int:
    """How many effects there are."""
    with fdbqueue.open(f"embedded:{directory}") as db:
        return len(list(db.get_range_startswith(EFFECTS)))


def consume(directory: Path, expected: int) -> None:
    """Until every element's effect is there."""
    with fdbqueue.open(f"embedded:{directory}") as db:
        q = queue()
        while len(list(db.get_range_startswith(EFFECTS))) < expected:
            for name in q.names(db):
                # Not all from the head: who loses there loses again at the next one.
                token = q.acquire(db, name) if random.random() < 0.4 else None
                if token is not None:
                    _finish(db, q, name, token)
            q.purge(db, maxlock=MAXLOCK_S)
            db.runtime.sleep(0.01)


def _finish(db: fdbqueue.Database, q: ElementQueue, name: str, token: LockToken) -> None:
    @transactional
    def effect(tr: Any) -> None:
        body = q.get(tr, name, token=token)["body"]
        tr.add(EFFECTS + body.encode(), b"\x01")
        q.remove(tr, name, token=token)

    with suppress(ElementNotLocked):  # taken for dead: somebody else has it
        effect(db)
