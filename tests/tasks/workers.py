"""Processes that work on one queue and may be killed at any moment."""

import random
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, Session, TaskQueue, transactional
from fdbqueue.core.errors import NotTaken, UnknownSession

NAME = "killed"
WAIT_S = 1.0


def consume(url: str, prefix: str, expected: int) -> None:
    """Work until `expected` tasks are done."""
    root = Subspace((), bytes.fromhex(prefix))
    with fdbqueue.open(url) as db:
        while not _drained(db, root, expected):
            pass  # taken for dead, on a machine that is busy: go on in a new session


def _drained(db: fdbqueue.Database, root: Subspace, expected: int) -> bool:
    with Session(db, ttr=1.5, root=root) as session:
        try:
            _consume(db, root, session, expected)
        except UnknownSession:
            return False
    return True


def _consume(db: fdbqueue.Database, root: Subspace, session: Session, expected: int) -> None:
    queue = TaskQueue.open(db, NAME, root=root)

    @transactional
    def finish(tr: Any, task: fdbqueue.Task) -> None:
        queue.ack(tr, task, session=session)
        # Beside the ack: a counter that must end up as one.
        tr.add(root["effects"][task.data].key(), b"\x01")

    while True:
        tasks = queue.take_many(db, random.choice([1, 1, 1, 5]), WAIT_S, session=session)
        if not tasks and queue.statistics(db)["tasks"]["done"] >= expected:
            return
        if not tasks:
            queue.kick(db, 100)  # tasks that a killed worker has buried
        for task in tasks:
            _work(queue, db, task, finish)


def _work(queue: TaskQueue, db: fdbqueue.Database, task: fdbqueue.Task, finish: Any) -> None:
    try:
        if random.random() < 0.02:
            queue.release(db, task)
        elif random.random() < 0.01:
            queue.bury(db, task)
            queue.kick(db, 3)
        else:
            finish(db, task)
    except NotTaken:
        pass  # its session ended, or another worker kicked the task: another session has it


def produce(url: str, prefix: str, count: int) -> None:
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, NAME, root=Subspace((), bytes.fromhex(prefix)))
        for number in range(0, count, 10):
            queue.put_many(db, range(number, number + 10))


def hold_and_wait(url: str, prefix: str) -> None:
    """Take the task that is there, if any, and wait for more."""
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, NAME, root=Subspace((), bytes.fromhex(prefix)))
        queue.take(db, 0)
        queue.take(db, 600)


def wait_for_item(url: str, prefix: str) -> None:
    with fdbqueue.open(url) as db:
        Queue(Subspace((), bytes.fromhex(prefix))["items"]).dequeue(db, timeout=600)


def hand_off_and_wait(url: str, prefix: str) -> None:
    """Take two tasks, hand the first one off, and hold the other one."""
    with fdbqueue.open(url) as db:
        root = Subspace((), bytes.fromhex(prefix))
        queue = TaskQueue.open(db, NAME, root=root)
        with Session(db, ttr=1.5, root=root) as session:
            first, _ = (queue.take(db, 60, session=session) for _ in range(2))
            assert first is not None
            queue.hand_off(db, first, 3600, for_="Ada")
            queue.take(db, 600, session=session)
