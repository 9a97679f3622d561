"""A worker in Python beside those in Node, until it is killed: `tests/node/fleet_worker.js` in Python.

The ack of a task adds to a key of it, in one transaction: 1, and 1 in the upper half of the number, where a
worker in Node adds nothing.
"""

import struct
import sys
from functools import partial
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Database, Failure, Subspace, Task, TaskQueue
from fdbqueue.core.errors import NotTaken
from fdbqueue.testing.history import REFUSED, Recorder


def lease_of(task: Task | None) -> list[Any] | None:
    return None if task is None or task.token is None else [task.data["n"], task.token.hex()]


class Worker:
    def __init__(self, db: Database, queue: TaskQueue, recorder: Recorder, effects: bytes) -> None:
        self._db, self._queue, self._recorder, self._effects = db, queue, recorder, effects
        self._acked = fdbqueue.transactional(self._ack)

    def _ack(self, tr: Any, task: Task) -> None:
        tr.add(self._effects + struct.pack(">I", task.data["n"]), struct.pack("<II", 1, 1))
        self._queue.ack(tr, task)

    def work(self) -> None:
        take = partial(self._queue.take, self._db, timeout=1)
        task = self._recorder.call(
            "take", None, take, shown=lambda one: one and [*(lease_of(one) or ()), one.attempts]
        )
        if task is None:
            return
        for part in range(task.data["parts"]):
            if part:
                self._renew(task)
            self._db.runtime.sleep(task.data["s"])
        self._end(task)

    def _renew(self, task: Task) -> None:
        renew = partial(self._queue.renew, self._db, [task])
        self._recorder.call(
            "renew", lease_of(task), renew, shown=lambda renewed: None if task.id in renewed else REFUSED
        )

    def _end(self, task: Task) -> None:
        what = task.data["do"] if task.attempts == 1 or task.data["do"] == "bury" else "ack"
        failure = Failure("Planned", "as planned")
        body = {
            "ack": partial(self._acked, self._db, task),
            "release": partial(self._queue.release, self._db, task),
            "fail": partial(self._queue.release, self._db, task, delay=0.1, failure=failure),
            "bury": partial(self._queue.bury, self._db, task, failure=failure),
        }[what]
        self._recorder.call(what, lease_of(task), body, shown=lambda _: None, refusals=(NotTaken,))


def main(url: str, root_hex: str, effects_hex: str, history: str) -> None:
    path = Path(history)
    with fdbqueue.open(url, session_ttr_s=9) as db:
        queue = TaskQueue.open(db, "shared", root=Subspace(rawPrefix=bytes.fromhex(root_hex)))
        worker = Worker(db, queue, Recorder(path.parent, path.stem), bytes.fromhex(effects_hex))
        while True:
            worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
