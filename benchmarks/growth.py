"""What piles up, and how fast it goes: python -m benchmarks.growth [--sessions N] [--queues N] [--seconds S]

Dead sessions: a process opens sessions by a clock that is an hour late, and is killed. Then 1 and 4
processes that do nothing but sweep clear them, for at most S seconds; a durable directory of the embedded
engine. Queues: one process uses N named queues, each dropped afterwards, and ten times as many queues in
subspaces; the rows show how its own resident memory grows.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime

KEYS = RootKeys(DEFAULT_ROOT)
SPACE = Subspace(("growth",))
SPAWN = multiprocessing.get_context("spawn")


class AnHourAgo(RealRuntime):
    def now(self) -> float:
        return time.time() - 3_600


def open_sessions(url: str, count: int) -> None:
    """They are dead at once: no heartbeat is due while they are opened."""
    db = fdbqueue.open(url, runtime=AnHourAgo())
    fdbqueue.TaskQueue.create(db, "swept")
    for _ in range(count):
        fdbqueue.Session(db, ttr=900)
    os.kill(os.getpid(), signal.SIGKILL)  # else closing would end them


def sweep(url: str, over: "multiprocessing.synchronize.Event") -> None:
    with fdbqueue.open(url) as db:
        fdbqueue.TaskQueue.open(db, "swept").put(db, os.getpid())  # from now on the keeper sweeps
        over.wait()


def entries(db: fdbqueue.Database) -> int:
    return len(db.get_range(KEYS.beats_due.start, KEYS.beats_due.stop))


def clear_sessions(sessions: int, processes: int, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as directory:
        url = f"embedded:{directory}"
        opener = SPAWN.Process(target=open_sessions, args=(url, sessions))
        opener.start()
        opener.join()
        with fdbqueue.open(url) as db:
            over = SPAWN.Event()
            sweepers = [SPAWN.Process(target=sweep, args=(url, over)) for _ in range(processes)]
            began, before = time.monotonic(), entries(db)
            for sweeper in sweepers:
                sweeper.start()
            while (left := entries(db)) > 0 and time.monotonic() < began + seconds:
                time.sleep(0.1)
            took_s = time.monotonic() - began
            over.set()
            for sweeper in sweepers:
                sweeper.join()
        cleared = before - left
        return (
            f"{processes} processes: {cleared} of {before} in {took_s:.1f} s, {cleared / took_s:.0f} a second"
        )


def rss_mb() -> float:
    """Without the pages of the database's file."""
    gc.collect()
    with open("/proc/self/status") as file:
        [kilobytes] = [line.split()[1] for line in file if line.startswith("RssAnon:")]
    return int(kilobytes) * 1024 / 1e6


def use_named(db: fdbqueue.Database, number: int) -> None:
    queue = fdbqueue.TaskQueue.create(db, f"growth {number}")
    queue.put(db, number)
    task = queue.take(db, 0)
    assert task is not None
    queue.ack(db, task)
    queue.drop(db)


def use_subspace(db: fdbqueue.Database, number: int) -> None:
    queue = fdbqueue.Queue(SPACE[number])
    queue.enqueue(db, number)
    queue.dequeue(db)
    queue.clear(db)


def growth(use: Callable[[fdbqueue.Database, int], None], count: int) -> str:
    with fdbqueue.open("memory:") as db:
        for number in range(min(200, count)):
            use(db, number)
        before = rss_mb()
        for number in range(count):
            use(db, number)
        after = rss_mb()
    return f"{count} queues, {use.__name__}: {before:.0f} to {after:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    for processes in (1, 4):
        print(clear_sessions(given.sessions, processes, given.seconds))
    print(growth(use_named, given.queues))
    print(growth(use_subspace, 10 * given.queues))


if __name__ == "__main__":
    main()
