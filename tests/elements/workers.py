"""Processes that add to one element queue, and consume it, and may be killed at any moment."""

import random
from contextlib import suppress
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import ElementQueue, LockToken, transactional
from fdbqueue.core.errors import ElementNotLocked
from tests.elements.support import element_queue

MAXLOCK_S = 1.0


def queue(space: Subspace) -> ElementQueue:
    return element_queue(space, {"body": "string"})


def effects(db: fdbqueue.Database, space: Subspace) -> dict[str, int]:
    """How often each element has had its effect."""
    under = space["effects"]
    rows = db.get_range_startswith(under.key())
    return {under.unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in rows}


def produce(url: str, prefix: str, writer: int, count: int) -> None:
    with fdbqueue.open(url) as db:
        q = queue(Subspace((), bytes.fromhex(prefix)))
        for number in range(count):
            q.add(db, {"body": f"{writer}.{number}"})


def consume(url: str, prefix: str, expected: int) -> None:
    """Until every element's effect is there."""
    space = Subspace((), bytes.fromhex(prefix))
    with fdbqueue.open(url) as db:
        q = queue(space)
        while len(effects(db, space)) < expected:
            for name in q.names(db):
                # They do not all start at the head: a loser there loses again at the next name.
                token = q.acquire(db, name) if random.random() < 0.4 else None
                if token is not None:
                    _finish(db, space, name, token)
            q.purge(db, maxlock=MAXLOCK_S)
            db.runtime.sleep(0.01)


def _finish(db: fdbqueue.Database, space: Subspace, name: str, token: LockToken) -> None:
    q = queue(space)

    @transactional
    def effect(tr: Any) -> None:
        body = q.get(tr, name, token=token)["body"]
        tr.add(space["effects"][body].key(), b"\x01")
        q.remove(tr, name, token=token)

    with suppress(ElementNotLocked):  # its lock was purged: another worker has the element
        effect(db)
