"""What each part of the embedded engine gains: python -m benchmarks.parts [--quick]

Calls with a part and without it take turns in one process. A figure is the time without it over the time
with it, by the medians. The groups of threads and of processes take turns by rounds.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fdbqueue
from benchmarks.engine import ours, raw
from benchmarks.measure import Operation, compare, rate, threaded_rate
from fdbqueue import TaskQueue
from fdbqueue.core.limits import KEYS_RUNG_MAX
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.durability import Checkpoints
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import Journal
from fdbqueue.embedded.layout import RecentCommits
from fdbqueue.embedded.transaction import Database, open_directory, open_private
from fdbqueue.embedded.watches import Doorbell
from fdbqueue.embedded.writes import Flush

_OLD_COMMITS = 1_000
_PROCESSES = 4


def _seconds(operation: Operation) -> float:
    began_s = time.perf_counter()
    operation()
    return time.perf_counter() - began_s


def gain(name: str, count: int, having: Operation, lacking: Operation) -> None:
    pairs = [(_seconds(having), _seconds(lacking)) for _ in range(count)]
    with_it, without = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{name}: {without / with_it:.2f} ({without * 1e6:.0f} and {with_it * 1e6:.0f} µs)", flush=True)


def without(owner: Any, name: str, stands_for_it: Any, operation: Operation) -> Operation:
    def lacking() -> object:
        with patch.object(owner, name, stands_for_it):
            return operation()

    return lacking


@contextmanager
def directory(flush: Flush = Flush.NOW) -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as path, open_directory(path, flush=flush) as database:
        yield database


def durability(count: int) -> None:
    with directory() as now, directory(Flush.SOON) as soon, directory(Flush.NEVER) as never:
        gain("durability=soon, beside now", count, ours(soon), ours(now))
        gain("durability=process, beside soon", count, ours(never), ours(soon))
        with tempfile.TemporaryDirectory() as path:
            gain("the journal, beside LMDB's flushes", count, ours(now), raw(Path(path), True))


def _without_zeros(_: Journal, file: Any, entry: Any) -> None:
    file.written_end = entry.end.end


def journal(count: int) -> None:
    with directory() as ahead, directory() as behind:
        lacking = without(Journal, "_write_ahead", _without_zeros, ours(behind))
        having = without(Journal, "_write_ahead", Journal._write_ahead, ours(ahead))
        gain("zeros ahead in the journal", count, having, lacking)
    with directory(Flush.NEVER) as database:
        for name, owner, part in (
            ("checkpoints (a price)", Checkpoints, "make_due"),
            ("the look at the names (a price)", Environment, "require_in_place"),
        ):
            # Both of them pay for the patch.
            having = without(owner, part, getattr(owner, part), ours(database))
            gain(name, count, having, without(owner, part, lambda _: None, ours(database)))


def decoded_log(count: int) -> None:
    """Commits of transactions that began many commits ago."""
    database = open_private()
    operation, batches = ours(database), database._store.committer._batches
    begun = [database.create_transaction() for _ in range(2 * count)]
    for tr in begun:
        tr.get(b"old").wait()
    for _ in range(_OLD_COMMITS):
        operation()

    def commit() -> None:
        tr = begun.pop()
        tr.set(b"new", b"")
        tr.commit().wait()

    def forgetful() -> None:
        with patch.object(batches, "_recent", RecentCommits()):
            commit()

    gain(f"the decoded log, {_OLD_COMMITS} commits back", count, commit, forgetful)
    database.close()


def _watch(path: str, ready: Any, end: Any) -> None:
    with open_directory(path) as database:
        watches = [database.get_and_watch(b"watched-%d" % n)[1] for n in range(10)]
        ready.set()
        end.wait()
        del watches


def _all_slots(bell: Doorbell, _keys: object, of: Callable[..., set[int]] = Doorbell._slots_of) -> set[int]:
    return of(bell, [b""] * (KEYS_RUNG_MAX + 1))


def marks(count: int) -> None:
    """Commits beside a process that watches other keys."""
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    with tempfile.TemporaryDirectory() as path, open_directory(path, flush=Flush.NEVER) as database:
        watcher = context.Process(target=_watch, args=(path, ready, end))
        watcher.start()
        ready.wait()
        ringing = without(Doorbell, "_slots_of", _all_slots, ours(database))
        marked = without(Doorbell, "_slots_of", Doorbell._slots_of, ours(database))
        gain("marks of watched keys", count, marked, ringing)
        end.set()
        watcher.join()


def _work(path: str, number: int, seconds: float, has_pool: bool, gate: Any, rates: Any) -> None:
    if not has_pool:
        setattr(Committer, "_open_pool", lambda _: None)  # noqa: B010  # a function, to mypy
    with open_directory(path) as database:
        operation = ours(database, number)
        operation()
        gate.wait()
        rates.put(rate(operation, seconds))


def _together(seconds: float, has_pool: bool) -> float:
    context = multiprocessing.get_context("spawn")
    gate, rates = context.Barrier(_PROCESSES), context.Queue()
    with tempfile.TemporaryDirectory() as path:
        workers = [
            context.Process(target=_work, args=(path, n, seconds, has_pool, gate, rates))
            for n in range(_PROCESSES)
        ]
        for worker in workers:
            worker.start()
        total = sum(rates.get() for _ in workers)
        for worker in workers:
            worker.join()
    return float(total)


def groups(seconds: float, rounds: int) -> None:
    with directory() as database:
        one = partial(rate, ours(database), seconds)
        threads = partial(threaded_rate, partial(ours, database), 16, seconds)
        rows = compare({"1 thread": one, "16 threads": threads}, "1 thread", rounds)
    print(f"a group of 16 threads: {rows['16 threads'].ratio:.2f}", flush=True)
    alone = partial(_together, seconds, False)
    rows = compare({"without": alone, "with": partial(_together, seconds, True)}, "without", rounds)
    print(f"commits.1, {_PROCESSES} processes: {rows['with'].ratio:.2f}", flush=True)


def _life(db: fdbqueue.Database, queue: TaskQueue, _: int = 0) -> Operation:
    def operation() -> None:
        queue.put(db, "v" * 20)
        while (task := queue.take(db, 0)) is None:
            pass
        queue.ack(db, task)

    return operation


def direct(count: int, seconds: float, rounds: int) -> None:
    """The put, take and ack of a task, by one thread and by eight."""
    with tempfile.TemporaryDirectory() as path:
        for url in ("memory:", f"embedded:{path}?durability=process", f"embedded:{path}"):
            with fdbqueue.open(url) as db:
                queue = TaskQueue.create(db, url)
                ordinary = patch.object(Database, "run_directly", None)
                having = without(Database, "run_directly", Database.run_directly, _life(db, queue))
                told = f"direct transactions, {url.replace(path, 'PATH')}"
                gain(told, count, having, without(Database, "run_directly", None, _life(db, queue)))
                many = partial(threaded_rate, partial(_life, db, queue), 8, seconds)

                def without_them(many: Callable[[], float] = many, ordinary: Any = ordinary) -> float:
                    with ordinary:
                        return many()

                rows = compare({"without": without_them, "with": many}, "without", rounds)
                print(f"{told}, 8 threads: {rows['with'].ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls, to see that it runs")
    count, rounds, seconds = (100, 1, 0.2) if parser.parse_args().quick else (1_500, 5, 1.0)
    durability(count)
    journal(count)
    decoded_log(min(count, 40))
    marks(count)
    direct(count, seconds, rounds)
    groups(seconds, rounds)


if __name__ == "__main__":
    main()
