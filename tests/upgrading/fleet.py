"""Processes of the present release on the data of e93aa1e: some upgrade them, others work meanwhile."""

import time
from functools import partial

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Task, TaskQueue, limits
from fdbqueue.registry.registry import Registry
from fdbqueue.seam import Transaction
from fdbqueue.upgrading.upgrade import Upgrade
from tests.upgrading.write_old import COUNT, KINDS
from tests.upgrading.written import Later

SESSION_TTR_S = 1.0
ONE = b"\x01"


def root_of(space: Subspace) -> Subspace:
    """The root of the queues. The marks of acks lie beside it, so `verify` knows each key."""
    return space["root"]


def marks_of(space: Subspace) -> Subspace:
    """One counter for each task: the number of its acks."""
    return space["acked"]


def upgrade_slowly(url: str, space_hex: str) -> None:
    limits.VERB_BATCH = 2
    space = Subspace(rawPrefix=bytes.fromhex(space_hex))
    with fdbqueue.open(url, runtime=Later()) as db:
        work = Upgrade(db, Registry(root_of(space)))
        for one in work.plan():
            for _ in work.steps(one):
                time.sleep(0.02)  # kills fall between the steps, too


def work_on_each_kind(url: str, space_hex: str) -> None:
    """Kick and ack all tasks, each ack in one transaction with its mark."""
    space = Subspace(rawPrefix=bytes.fromhex(space_hex))
    with fdbqueue.open(url, session_ttr_s=SESSION_TTR_S, runtime=Later()) as db:
        queues = [TaskQueue.open(db, f"tasks-{kind}", root=root_of(space)) for kind in KINDS]
        while acked(db, space) < COUNT * len(KINDS):
            for queue in queues:
                queue.kick(db, 1)
                task = queue.take(db, 0)
                if task is not None:
                    time.sleep(0.02)
                    fdbqueue.transactional(partial(_ack, queue, task, marks_of(space)))(db)


def _ack(queue: TaskQueue, task: Task, marks: Subspace, tr: Transaction) -> None:
    queue.ack(tr, task)
    tr.add(marks.pack(tuple(task.data[:2])), ONE)


def acked(db: Database, space: Subspace) -> int:
    """The number of tasks that were acked."""
    return len(list(db.get_range_startswith(marks_of(space).key())))
