"""Processes of two releases on one queue: one that appends parts to what it stores, and the present one."""

import time
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace
from msgspec.structs import replace

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.records.extra import Extra
from fdbqueue.seam import Transaction
from fdbqueue.tasks import kinds

COUNT = 40
NEWER = ("newer", 1)
PUT, DONE = Subspace(("mixed", "put")), Subspace(("mixed", "done"))
SESSION_TTR_S = 1.0


def put_as_a_newer_release(url: str, worker: int, workers: int) -> None:
    """Put each task once, also after a kill, with parts that the present release does not know."""
    present = kinds._extra

    def appended(*given: Any) -> Extra:
        return replace(present(*given) or Extra(), more=NEWER)

    kinds._extra = appended
    with fdbqueue.open(url, session_ttr_s=SESSION_TTR_S) as db:
        queue = TaskQueue.open(db, "q")
        for number in range(worker, COUNT, workers):
            fdbqueue.transactional(partial(_put, queue, number))(db)
            time.sleep(0.005)  # work that takes time: kills fall into the middle


def _put(queue: TaskQueue, number: int, tr: Transaction) -> None:
    if not tr.get(PUT.pack((number,))).present():
        queue.put(tr, number, key=f"k{number % 5}")
        tr.set(PUT.pack((number,)), b"")


def work_as_the_present_release(url: str) -> None:
    """Ack half of the tasks, each in one transaction with its mark; bury the others, until all are there."""
    with fdbqueue.open(url, session_ttr_s=SESSION_TTR_S) as db:
        queue = TaskQueue.open(db, "q")
        while seen(db) < COUNT:
            task = queue.take(db, 0.1)
            if task is None:
                continue
            queue.touch(db, task, 5)
            time.sleep(0.005)
            if task.data % 2:
                queue.bury(db, task)
            else:
                fdbqueue.transactional(partial(_ack, queue, task))(db)


def _ack(queue: TaskQueue, task: Any, tr: Transaction) -> None:
    queue.ack(tr, task)
    tr.set(DONE.pack((task.data,)), b"")


def seen(db: Database) -> int:
    """The number of tasks that are acked or buried."""
    counts = TaskQueue.open(db, "q").statistics(db)["tasks"]
    return counts["done"] + counts["buried"]
