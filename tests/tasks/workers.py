"""Processes that work on one queue and may be killed at any moment."""

import os
import random
import signal
import time
import traceback
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue import Session, TaskQueue, transactional
from fdbqueue.errors import NotTaken, UnknownSession

NAME = "killed"
EFFECTS = b"effects/"


def counted(tr: Any, number: int) -> None:
    """The effect of a task, written beside its ack: a counter that must end up as one."""
    tr.add(EFFECTS + b"%06d" % number, b"\x01")


def consume(directory: Path, until_empty_for_s: float) -> None:
    with fdbqueue.open(f"embedded:{directory}") as db:
        while not _drained(db, until_empty_for_s):
            pass  # taken for dead, on a machine that is busy: go on in a new session


def _drained(db: fdbqueue.Database, until_empty_for_s: float) -> bool:
    with Session(db, ttr=1.5) as session:
        try:
            _consume(TaskQueue.open(db, NAME), db, session, until_empty_for_s)
        except UnknownSession:
            return False
    return True


def _consume(queue: TaskQueue, db: fdbqueue.Database, session: Session, until_empty_for_s: float) -> None:
    @transactional
    def finish(tr: Any, task: fdbqueue.Task) -> None:
        queue.ack(tr, task, session=session)
        counted(tr, task.data)

    while True:
        tasks = queue.take_many(db, random.choice([1, 1, 1, 5]), until_empty_for_s, session=session)
        if not tasks and not queue.statistics(db)["tasks"]["total"]:
            return
        if not tasks:
            queue.kick(db, 100)  # what one who was killed has buried
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
        pass  # taken for dead, or kicked free by another: somebody else has it


def produce(directory: Path, first: int, count: int) -> None:
    with fdbqueue.open(f"embedded:{directory}") as db:
        queue = TaskQueue.open(db, NAME)
        for number in range(first, first + count, 10):
            queue.put_many(db, range(number, number + 10))


def fork(work: Any, *args: Any) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


class Crowd:
    """Consumers that are killed at random, and replaced, until told to stop."""

    def __init__(self, directory: Path, size: int) -> None:
        self.killed = 0
        self._directory = directory
        self._living = [self._start() for _ in range(size)]

    def _start(self) -> int:
        return fork(consume, self._directory, 2.0)

    def kill_one(self) -> None:
        at = random.randrange(len(self._living))
        os.kill(self._living[at], signal.SIGKILL)
        os.waitpid(self._living[at], 0)
        self.killed += 1
        self._living[at] = self._start()

    def finish(self, within_s: float) -> list[int]:
        """How each of them ended."""
        deadline = time.monotonic() + within_s
        codes = []
        for process in self._living:
            done, status = 0, 0
            while not done and time.monotonic() < deadline:
                done, status = os.waitpid(process, os.WNOHANG)
                time.sleep(0.01)
            if not done:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                status = 0xFF00
            codes.append(os.waitstatus_to_exitcode(status))
        return codes
