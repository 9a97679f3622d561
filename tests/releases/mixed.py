"""Processes of two releases on one queue: one that appends parts to what it stores, and the present one."""

import time
from functools import partial
from typing import Any

from fdb.subspace_impl import Subspace
from msgspec.structs import replace

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks import options
from fdbqueue.tasks.stored.records import Extra

COUNT = 40
NEWER = ("newer", 1)
SESSION_TTR_S = 1.0


def put_as_a_newer_release(url: str, space_hex: str, worker: int, workers: int) -> None:
    """Put each task once, also after a kill, with parts that the present release does not know."""
    present = options._asked

    def appended(*given: Any) -> tuple[Any, Extra]:
        wish, extra = present(*given)
        return wish, replace(extra or Extra(), more=NEWER)

    options._asked = appended
    space = Subspace(rawPrefix=bytes.fromhex(space_hex))
    with fdbqueue.open(url, session_ttr_s=SESSION_TTR_S) as db:
        queue = TaskQueue.open(db, "q", root=root_of(space))
        for number in range(worker, COUNT, workers):
            fdbqueue.transactional(partial(_put, queue, marks_of_puts(space), number))(db)
            time.sleep(0.005)  # work that takes time: kills fall into the middle


def root_of(space: Subspace) -> Subspace:
    """The root of the queue. The marks lie beside it, so `verify` knows each key."""
    return space["root"]


def marks_of_puts(space: Subspace) -> Subspace:
    """The numbers of the tasks that were put."""
    return space["put"]


def marks_of_acks(space: Subspace) -> Subspace:
    """The numbers of the tasks that were acked."""
    return space["acked"]


def _put(queue: TaskQueue, marks: Subspace, number: int, tr: Transaction) -> None:
    if not tr.get(marks.pack((number,))).present():
        queue.put(tr, number, key=f"k{number % 5}")
        tr.set(marks.pack((number,)), b"")


def work_as_the_present_release(url: str, space_hex: str) -> None:
    """Ack half of the tasks, each in one transaction with its mark; bury the others, until all are there."""
    space = Subspace(rawPrefix=bytes.fromhex(space_hex))
    with fdbqueue.open(url, session_ttr_s=SESSION_TTR_S) as db:
        queue = TaskQueue.open(db, "q", root=root_of(space))
        while seen(db, queue) < COUNT:
            task = queue.take(db, 0.1)
            if task is None:
                continue
            queue.touch(db, task, 5)
            time.sleep(0.005)
            if task.data % 2:
                queue.bury(db, task)
            else:
                fdbqueue.transactional(partial(_ack, queue, marks_of_acks(space), task))(db)


def _ack(queue: TaskQueue, marks: Subspace, task: Any, tr: Transaction) -> None:
    queue.ack(tr, task)
    tr.set(marks.pack((task.data,)), b"")


def seen(db: Database, queue: TaskQueue) -> int:
    """The number of tasks that are acked or buried."""
    counts = queue.statistics(db)["tasks"]
    return counts["done"] + counts["buried"]
