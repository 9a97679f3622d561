"""What each part of the embedded engine gains: python -m benchmarks.parts [--quick]

A part is taken away in the same process, and rounds with it and without it take turns. The ratio is "with"
over "without".
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from benchmarks.engine import ours, raw
from benchmarks.measure import rate, threaded_rate
from fdbqueue.core.limits import KEYS_RUNG_MAX
from fdbqueue.embedded import store
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.durability import Checkpoints
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import Journal
from fdbqueue.embedded.layout import RecentCommits
from fdbqueue.embedded.transaction import Database, open_directory, open_private
from fdbqueue.embedded.watches import Doorbell
from fdbqueue.embedded.writes import Flush

R = TypeVar("R")
_OLD_COMMITS = 2_000
_PROCESSES = 4
_COPIED_BYTES = 128 << 20


def ratio(name: str, rounds: int, having: Callable[[], float], lacking: Callable[[], float]) -> None:
    pairs = [(having(), lacking()) for _ in range(rounds)]
    ratios = sorted(with_it / without for with_it, without in pairs)
    print(f"{name}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


@contextmanager
def directory(flush: Flush = Flush.NOW) -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as path, open_directory(path, flush=flush) as database:
        yield database


def without(owner: Any, name: str, stands_for_it: Any, measure: Callable[[], R]) -> R:
    with patch.object(owner, name, stands_for_it):
        return measure()


def durability(seconds: float, rounds: int) -> None:
    with directory() as now, directory(Flush.SOON) as soon, directory(Flush.NEVER) as never:
        per_second = {one.flush: (lambda one=one: rate(ours(one), seconds)) for one in (now, soon, never)}
        ratio("durability=soon, by now", rounds, per_second[Flush.SOON], per_second[Flush.NOW])
        ratio("durability=process, by soon", rounds, per_second[Flush.NEVER], per_second[Flush.SOON])
        threads = partial(threaded_rate, partial(ours, now), 16, seconds)
        ratio("a group of 16 threads, by 1", rounds, threads, per_second[Flush.NOW])
        with tempfile.TemporaryDirectory() as path:
            flushed = raw(Path(path), True)
            ratio(
                "the journal, by LMDB's flushes",
                rounds,
                per_second[Flush.NOW],
                lambda: rate(flushed, seconds),
            )


def journal(seconds: float, rounds: int) -> None:
    def unwritten(_: Journal, file: Any, entry: Any) -> None:
        file.written_end = entry.end.end

    with directory() as ahead, directory() as behind:
        ratio(
            "zeros ahead in the journal",
            rounds,
            lambda: rate(ours(ahead), seconds),
            lambda: without(Journal, "_write_ahead", unwritten, lambda: rate(ours(behind), seconds)),
        )
    with directory(Flush.NEVER) as database:

        def commits() -> float:
            return rate(ours(database), seconds)

        for name, owner, part in (
            ("checkpoints (a cost)", Checkpoints, "make_due"),
            ("the look at the names (a cost)", Environment, "require_in_place"),
        ):
            lacking = partial(without, owner, part, lambda _: None, commits)
            ratio(name, rounds, commits, lacking)


def decoded_log(seconds: float, rounds: int) -> None:
    """Commits of transactions that began many commits ago."""
    database = open_private()
    batches = database._store.committer._batches
    operation = ours(database)

    def run() -> None:
        tr = database.create_transaction()
        tr.set_read_version(version)
        tr.get(b"old").wait()
        tr.set(b"new", b"")
        tr.commit().wait()

    def forgetful() -> None:
        batches._recent = RecentCommits()
        run()

    holding = database.create_transaction()
    version = holding.get_read_version().wait()
    for _ in range(_OLD_COMMITS):
        operation()
    run()
    ratio(
        f"the decoded log, {_OLD_COMMITS} commits back",
        rounds,
        lambda: rate(run, seconds / 10),
        lambda: rate(forgetful, seconds / 10),
    )
    database.close()


def _work(path: str, number: int, seconds: float, has_pool: bool, gate: Any, rates: Any) -> None:
    if not has_pool:
        setattr(Committer, "_open_pool", lambda _: None)  # noqa: B010  # a function, to mypy
    with open_directory(path) as database:
        operation = ours(database, number)
        operation()
        gate.wait()
        rates.put(rate(operation, seconds))


def pool(seconds: float, rounds: int) -> None:
    def together(has_pool: bool) -> float:
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

    ratio(f"commits.1, {_PROCESSES} processes", rounds, lambda: together(True), lambda: together(False))


def _watch(path: str, ready: Any, end: Any) -> None:
    with open_directory(path) as database:
        watches = [database.get_and_watch(b"watched-%d" % n)[1] for n in range(10)]
        ready.set()
        end.wait()
        del watches


def marks(seconds: float, rounds: int) -> None:
    """Commits beside a process that watches other keys."""
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    with tempfile.TemporaryDirectory() as path, open_directory(path, flush=Flush.NEVER) as database:
        watcher = context.Process(target=_watch, args=(path, ready, end))
        watcher.start()
        ready.wait()
        commits = partial(rate, ours(database), seconds)
        unmarked = partial(without, Doorbell, "_slots_of", _all_slots, commits)
        ratio("marks of watched keys", rounds, commits, unmarked)
        end.set()
        watcher.join()


def _all_slots(bell: Doorbell, _keys: object, of: Callable[..., set[int]] = Doorbell._slots_of) -> set[int]:
    return of(bell, [b""] * (KEYS_RUNG_MAX + 1))


def copying(rounds: int) -> None:
    """The copy that a recovery makes, in bytes a second."""

    def plain(_from: int, _to: int, _count: int) -> int:
        raise OSError(95, "not here")

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "from").write_bytes(os.urandom(_COPIED_BYTES))

        def copied() -> float:
            began_s, left = time.perf_counter(), _COPIED_BYTES
            with open(f"{name}/from", "rb") as source, open(f"{name}/to", "wb") as target:
                while left:
                    left -= store._copy_some(source.fileno(), target.fileno(), left)
            return _COPIED_BYTES / (time.perf_counter() - began_s)

        lacking = partial(without, os, "copy_file_range", plain, copied)
        ratio("copy_file_range in a recovery", rounds, copied, lacking)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs")
    seconds, rounds = (0.1, 1) if parser.parse_args().quick else (0.5, 11)
    durability(seconds, rounds)
    journal(seconds, rounds)
    decoded_log(seconds, rounds)
    marks(seconds, rounds)
    copying(rounds)
    pool(2 * seconds, max(1, rounds // 2))


if __name__ == "__main__":
    main()
