"""Functions that the stress tests run in processes of their own; they wait for a signal to begin."""

import os
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue

DONE = 2


def queue_in(space: Subspace, contended: str = "staged") -> Queue:
    return Queue(space[0], root=space[1], contended=contended)


def put_and_take(url: str, prefix: bytes, worker: int, items: int, answers: Any) -> None:
    """Put `items`, and take as many as were put in all that can be had; report them."""
    queue, taken = queue_in(Subspace(rawPrefix=prefix)), []
    with fdbqueue.open(url) as db:
        for number in range(items):
            queue.enqueue(db, worker * items + number)
            if number % 2:
                taken.append(queue.dequeue(db))
        while (value := queue.dequeue(db, timeout=1.0)) is not None:
            taken.append(value)
    answers.put([value for value in taken if value is not None])


def take_into_transaction(url: str, prefix: bytes) -> None:
    """Take for ever, and note each item in the transaction that takes it."""
    space = Subspace(rawPrefix=prefix)
    queue = queue_in(space)

    @fdbqueue.transactional
    def step(tr: Any) -> bool:
        value = queue.dequeue(tr)
        if value is not None:
            tr.add(space.pack((DONE, value)), (1).to_bytes(8, "little"))
        return value is not None

    with fdbqueue.open(url) as db:
        while True:
            if not step(db):
                db.runtime.sleep(0.01)


def take_into_file(url: str, prefix: bytes, path: str, wait: bool) -> None:
    """Take for ever, and append each item to a file at once."""
    queue = queue_in(Subspace(rawPrefix=prefix))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with fdbqueue.open(url) as db:
        while True:
            value = queue.dequeue(db, timeout=5.0 if wait else 0)
            if value is not None:
                os.write(file, b"%d\n" % value)


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []
