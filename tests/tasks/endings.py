"""Programs that end without db.close(): `python -m tests.tasks.endings HOW URL`."""

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fdbqueue
from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits

NAME = "q"
KEPT: list[Any] = []
"""Open until the end of the program, as a module's globals are."""


def opened(url: str) -> Database:
    KEPT.append(fdbqueue.open(url))
    return KEPT[-1]


def take(url: str) -> None:
    db = opened(url)
    assert TaskQueue.open(db, NAME).take(db, 0) is not None


def take_for_a_session(url: str) -> None:
    db = opened(url)
    KEPT.append(Session(db))
    assert TaskQueue.open(db, NAME).take(db, 0, session=KEPT[-1]) is not None


def take_for_a_named_session(url: str) -> None:
    db = opened(url)
    KEPT.append(Session(db, name="worker"))
    assert TaskQueue.open(db, NAME).take(db, 0, session=KEPT[-1]) is not None


def take_in_a_daemon_thread(url: str) -> None:
    thread = threading.Thread(target=take, args=(url,), daemon=True)
    thread.start()
    thread.join()


def take_then_exit(url: str) -> None:
    take(url)
    sys.exit(3)


def take_then_fail(url: str) -> None:
    take(url)
    raise RuntimeError("nothing catches this")


def ack_in_a_pool_thread(url: str) -> None:
    """Its thread is at work when the function of the process has returned."""
    db = opened(url)
    queue, may_ack = TaskQueue.open(db, NAME), threading.Event()
    task = queue.take(db, 0)
    assert task is not None

    def work() -> None:
        may_ack.wait()
        queue.ack(db, task)

    KEPT.append(ThreadPoolExecutor(2))
    KEPT[-1].submit(work)
    threading.Timer(0.2, may_ack.set).start()


def take_and_lose_the_database(url: str) -> None:
    """Two databases that do not answer any more."""
    limits.CLOSE_TIMEOUT_S = 0.3
    take(url)
    KEPT.append(Session(opened(url)))

    def silent() -> Any:
        threading.Event().wait()

    for db in KEPT[:2]:
        db.create_transaction = silent


def in_a_child(method: str, what: str, url: str) -> None:
    child = multiprocessing.get_context(method).Process(target=globals()[what], args=(url,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


def main() -> None:
    how, url = sys.argv[1:]
    method, _, what = how.rpartition(":")
    if method:
        in_a_child(method, what, url)
    else:
        globals()[what](url)


if __name__ == "__main__":
    main()
