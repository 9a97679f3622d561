"""A process of the soak: it puts, takes and acks until it is killed, and keeps notes of the answers.

Each line of the notes is written by one system call, so a killed process has written it or not.

    try X     the put of X begins
    put X     the put of X has returned
    done X    the transaction with the effect of X, and its ack or dequeue, has returned
"""

import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue, transactional
from fdbqueue.errors import NotTaken, UnknownSession

NOTES = "notes"
NAME = "tasks"
TTR_S = 2.0
BATCH_MAX = 5
# Less than half, so that the queues stay short and are empty now and then.
PUT_SHARE = 0.45

SPACE = Subspace(("soak",))
EFFECTS, ENDS = SPACE["effects"], SPACE["ends"]
"""EFFECTS counts the effects of each item, ENDS the effects of each process."""
ONE = (1).to_bytes(8, "little")


def items() -> Queue:
    return Queue(SPACE["items"])


def url_in(directory: Path) -> str:
    return f"embedded:{directory / 'data'}"


def prepare(directory: Path) -> None:
    (directory / NOTES).mkdir()
    with fdbqueue.open(url_in(directory)) as db:
        TaskQueue.create(db, NAME, "fifottl", ttr=TTR_S)


class Writer:
    def __init__(self, db: Database, directory: Path, name: str) -> None:
        self._db = db
        self._name = name
        self._tasks, self._items = TaskQueue.open(db, NAME), items()
        self._notes = os.open(directory / NOTES / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._random = random.Random(name)
        self._put_count = 0

    def run(self) -> None:
        """Put and take until this process, or the soak, is killed."""
        soak = os.getppid()
        while os.getppid() == soak:
            # After a long stop its session is dead and its tasks are given back; the next take opens another.
            with suppress(NotTaken, UnknownSession):
                self._put() if self._random.random() < PUT_SHARE else self._take()

    def _note(self, word: str, values: list[str]) -> None:
        os.write(self._notes, "".join(f"{word} {value}\n" for value in values).encode())

    def _put(self) -> None:
        to_tasks = self._random.random() < 0.5
        count = self._random.choice((1, 1, BATCH_MAX))
        values = [f"{'t' if to_tasks else 'i'}.{self._name}.{self._put_count + n}" for n in range(count)]
        self._put_count += count
        self._note("try", values)
        if to_tasks:
            self._tasks.put_many(self._db, values)
        else:
            self._items.enqueue_many(self._db, values)
        self._note("put", values)

    def _take(self) -> None:
        if self._random.random() < 0.5:
            self._dequeue()
            return
        for task in self._tasks.take_many(self._db, BATCH_MAX, timeout=self._random.choice((0, 0, 0.2))):
            if self._random.random() < 0.1:
                self._tasks.release(self._db, task)
            else:
                self._finish(task)

    def _dequeue(self) -> None:
        @transactional
        def take(tr: Any) -> str | None:
            value: str | None = self._items.dequeue(tr)
            if value is not None:
                self._effect(tr, value)
            return value

        value = take(self._db)
        if value is not None:
            self._note("done", [value])

    def _finish(self, task: fdbqueue.Task) -> None:
        @transactional
        def finish(tr: Any) -> None:
            self._tasks.ack(tr, task)
            self._effect(tr, task.data)

        finish(self._db)
        self._note("done", [task.data])

    def _effect(self, tr: Any, value: str) -> None:
        tr.add(EFFECTS[value].key(), ONE)
        tr.add(ENDS[self._name].key(), ONE)


def main(arguments: list[str]) -> None:
    directory, name = Path(arguments[0]), arguments[1]
    with fdbqueue.open(url_in(directory), session_ttr_s=TTR_S) as db:
        Writer(db, directory, name).run()


if __name__ == "__main__":
    main(sys.argv[1:])
