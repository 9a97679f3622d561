"""What the journal costs beside the commits: python -m benchmarks.checkpoints [--seconds S] [--commits N]

Waits: one client, and eight threads, put tasks into a durable directory for S seconds (0: not at all). This
is done in turn with checkpoints (a generation of the usual size) and without (one of 4 GB). A row has the
median, the 99th and the 99.9th of 100 calls, and the longest one, in milliseconds.

Sizes: one client enqueues and dequeues, N commits in all, with 1,000 items in the queue; its commits are
written, and not flushed. The rows show the files of the directory, and the memory of the process without the
pages of the files, on the way.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.growth import rss_mb
from fdbqueue.core import limits

ROUNDS = 3
BACKLOG = 1_000
LOOKS = 10
FILES = ("data.mdb", "base.mdb", "journal.0", "journal.1")
USUAL_BYTES, ENDLESS_BYTES = limits.GENERATION_BYTES_MAX, 4 << 30


def waits_ms(generation_bytes: int, threads: int, seconds: float) -> list[float]:
    """The milliseconds of each put, in order of length."""
    limits.GENERATION_BYTES_MAX = generation_bytes
    with tempfile.TemporaryDirectory() as folder, fdbqueue.open(f"embedded:{folder}/data") as db:
        queue = fdbqueue.TaskQueue.create(db, "waits")
        found: list[float] = []
        workers = [threading.Thread(target=put, args=(db, queue, seconds, found)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return sorted(found)


def put(db: fdbqueue.Database, queue: "fdbqueue.TaskQueue", seconds: float, found: list[float]) -> None:
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        queue.put(db, "v" * 20)
        found.append((time.perf_counter() - began) * 1e3)


def waits(seconds: float) -> Iterator[str]:
    yield "| clients | checkpoints | puts | median | 99 % | 99.9 % | longest |"
    yield "|---|---|---|---|---|---|---|"
    for threads in (1, 8):
        for _ in range(ROUNDS):
            for name, generation_bytes in (("yes", USUAL_BYTES), ("no", ENDLESS_BYTES)):
                found = waits_ms(generation_bytes, threads, seconds)
                shown = [found[int(len(found) * share)] for share in (0.5, 0.99, 0.999)] + found[-1:]
                yield f"| {threads} | {name} | {len(found):,} | {' | '.join(f'{ms:.2f}' for ms in shown)} |"


def sizes(commits: int) -> Iterator[str]:
    limits.GENERATION_BYTES_MAX = USUAL_BYTES
    yield f"| commits | {' | '.join(f'{name}, MB' for name in FILES)} | memory, MB |"
    yield "|---|---|---|---|---|---|"
    url = "embedded:{}/data?durability=process"
    with tempfile.TemporaryDirectory() as folder, fdbqueue.open(url.format(folder)) as db:
        queue = fdbqueue.Queue(Subspace(("sizes",)))
        queue.enqueue_many(db, range(BACKLOG))
        for look in range(1, LOOKS + 1):
            for number in range(commits // LOOKS // 2):
                queue.enqueue(db, number)
                queue.dequeue(db)
            yield f"| {commits * look // LOOKS:,} | {' | '.join(file_sizes(Path(folder, 'data')))} |"


def file_sizes(directory: Path) -> Iterator[str]:
    for name in FILES:
        yield f"{os.stat(directory / name).st_blocks * 512 / 1e6:.1f}"
    yield f"{rss_mb():.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--commits", type=int, default=200_000)
    given = parser.parse_args()
    if given.seconds:
        for line in waits(given.seconds):
            print(line, flush=True)
    for line in sizes(given.commits):
        print(line, flush=True)


if __name__ == "__main__":
    main()
