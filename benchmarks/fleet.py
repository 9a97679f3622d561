"""Worker fleets: python -m benchmarks.fleet [--quick] [--url URL]

Measures the tasks per second of fleets of 1 to 8 processes, with handlers that do nothing, that take 1 ms and
that take 100 ms, and compares a worker with bare take and ack calls. Measures an idle fleet, and the time
from a put to the call of its handler. Without --url: the embedded engine, with fsync in a temporary
directory, and (one process) in memory without fsync.

With --celery: nothing but fleets that do nothing, in turn with Celery over a Redis that logs nothing (late
acks, prefetch 1, eight children). Needs the extra `bench` and Debian's redis-server.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fdbqueue
from benchmarks.frameworks import Broker, serving
from benchmarks.frameworks import running as running_command
from benchmarks.fresh import fresh_queue, leaving_nothing
from benchmarks.measure import Row, compare, table
from benchmarks.peer_queues import free_port
from fdbqueue import Database, Fleet, FleetStatus, Hooks, TaskQueue, Worker
from fdbqueue.embedded import transaction as embedded_transaction

THREADS = 8
OVERHEAD_MAX = 1.5
IDLE_PROCESSES, IDLE_THREADS = 4, 50
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def nothing(_: Any) -> None:
    """The handler that costs nothing."""


def a_millisecond(_: Any) -> None:
    time.sleep(0.001)


def a_tenth(_: Any) -> None:
    time.sleep(0.1)


PROCESSES = (1, 2, 4, 8)
SHARES = {"nothing": 1.0, "a_millisecond": 1.0, "a_tenth": 0.2}
"""The handlers, and their shares of the tasks: with slow ones, fewer tasks measure as well."""


def filled_queue(db: Database, tasks: int = 0) -> TaskQueue:
    queue = fresh_queue(db, ttr=60)
    for start in range(0, tasks, 500):
        queue.put_many(db, [None] * min(500, tasks - start))
    return queue


# Tasks per second of a worker, and of bare take and ack calls in the same number of threads.


def overhead(db: Database, tasks: int, rounds: int) -> list[Row]:
    """Bare take + ack, by one thread and by as many as the worker has, and the worker itself."""

    def bare(threads: int) -> float:
        queue = filled_queue(db, tasks=tasks)
        began = time.perf_counter()
        together = [threading.Thread(target=take_and_ack, args=(db, queue)) for _ in range(threads)]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
        return tasks / (time.perf_counter() - began)

    def worker(threads: int) -> float:
        queue, left, done = filled_queue(db, tasks=tasks), [tasks], threading.Event()

        def count(_: object) -> None:
            left[0] -= 1
            if left[0] <= 0:
                done.set()

        made = Worker(db, queue, nothing, threads=threads, hooks=Hooks(succeeded=count))
        began = time.perf_counter()
        made.start()
        while not done.wait(0.05) and queue.statistics(db)["tasks"]["total"]:
            pass
        rate = tasks / (time.perf_counter() - began)
        made.stop()
        made.join()
        return rate

    measures = {
        f"bare take + ack, {THREADS} threads": lambda: bare(THREADS),
        "bare take + ack, 1 thread": lambda: bare(1),
        f"worker, {THREADS} threads": lambda: worker(THREADS),
        "worker, 1 thread": lambda: worker(1),
    }
    rows = compare(measures, "bare take + ack, 1 thread", rounds)
    alone, together = rows["bare take + ack, 1 thread"], rows[f"bare take + ack, {THREADS} threads"]
    crowd, single = rows[f"worker, {THREADS} threads"], rows["worker, 1 thread"]
    return [
        alone,
        Row(single.name, single.per_second, single.ratio, 1 / OVERHEAD_MAX),
        together,
        Row(crowd.name, crowd.per_second, crowd.per_second / together.per_second, 1 / OVERHEAD_MAX),
    ]


def take_and_ack(db: Database, queue: TaskQueue) -> None:
    while (task := queue.take(db, 0)) is not None:
        queue.ack(db, task)


# Fleets of processes.


Seen = list[tuple[float, int]]
"""Times, and the tasks that were done until each."""


def fleet(url: str, tasks: int, handler: str, count: int) -> float:
    """Tasks a second while a fleet of `count` processes works."""
    with fdbqueue.open(url) as db:
        queue = filled_queue(db, tasks=tasks)
        seen: Seen = []

        def look(_: FleetStatus) -> None:
            seen.append((time.perf_counter(), queue.statistics(db)["calls"]["ack"]))
            if seen[-1][1] == tasks:
                made.stop()

        made = Fleet(url, queue.name, f"benchmarks.fleet:{handler}", processes=count, threads=THREADS)
        made.run(look)
    return between(seen, tasks)


def between(seen: Seen, tasks: int) -> float:
    """Tasks a second from the first look that sees a done task to the last one before the end."""
    busy = [(at, done) for at, done in seen if 0 < done < tasks] or seen
    (began, first), (ended, last) = busy[0], busy[-1]
    return (last - first) / (ended - began) if ended > began else 0.0


def processes(url: str, tasks: int, rounds: int, handler: str) -> list[Row]:
    measures: dict[str, Callable[[], float]] = {
        f"{count} processes": partial(fleet, url, tasks, handler, count) for count in PROCESSES
    }
    return list(compare(measures, "1 processes", rounds).values())


# Beside Celery.


def beside_celery(url: str, tasks: int, rounds: int) -> list[Row]:
    name = f"Celery, {CHILDREN} children"
    measures: dict[str, Callable[[], float]] = {name: partial(celery, tasks)}
    for count in (1, 4):
        measures[f"fdbqueue, {count} x {THREADS} threads"] = partial(fleet, url, tasks, "nothing", count)
    return list(compare(measures, name, rounds).values())


CHILDREN = 8


def celery(tasks: int) -> float:
    """Tasks a second that Celery takes from its queue in a Redis without a log."""
    from redis import Redis

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        flags = ("--port", str(port), "--dir", folder, "--appendonly", "no", "--save", "")
        broker = Broker("Redis", f"redis://127.0.0.1:{port}/0", ("redis-server", *flags))
        os.environ["BENCHMARK_BROKER"] = broker.url
        words = ("--concurrency", str(CHILDREN), "--prefetch-multiplier", "1", "--loglevel", "ERROR")
        worker = (sys.executable, "-m", "celery", "--app", "benchmarks.celery_tasks", "worker", *words)
        with serving(broker):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                process.submit(send_to_celery, tasks).result()
            seen, client = [(0.0, 0)], Redis(port=port)
            with running_command(worker):
                while seen[-1][1] < tasks:
                    seen.append((time.perf_counter(), tasks - int(client.llen("celery"))))
                    time.sleep(0.02)
    return between(seen, tasks)


def send_to_celery(tasks: int) -> None:
    """In a process of its own, which reads the address of the broker."""
    from benchmarks.celery_tasks import number

    for given in range(tasks):
        number.apply_async((given,), ignore_result=True)


# Idling.


@contextmanager
def running(fleet: Fleet) -> Iterator[list[FleetStatus]]:
    """A fleet in the background; its last status."""
    last: list[FleetStatus] = []
    ready = threading.Event()

    def look(status: FleetStatus) -> None:
        last[:] = [status]
        if status.processes and all(process.state == "working" for process in status.processes):
            ready.set()

    thread = threading.Thread(target=lambda: fleet.run(look))
    thread.start()
    ready.wait(60)
    try:
        yield last
    finally:
        fleet.stop()
        thread.join()


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def idle(url: str, seconds: float, wake_ups: int) -> None:
    """CPU, memory and wake-up latency of a fleet that waits."""
    with fdbqueue.open(url) as db:
        queue = filled_queue(db)
        fleet = Fleet(
            url, queue.name, "benchmarks.fleet:nothing", processes=IDLE_PROCESSES, threads=IDLE_THREADS
        )
        with running(fleet) as last:
            time.sleep(2)
            ids = [process.process_id for process in last[0].processes]
            before = sum(map(cpu_seconds, ids))
            time.sleep(seconds)
            share = (sum(map(cpu_seconds, ids)) - before) / seconds
            memory = [process.rss_bytes / 1e6 for process in last[0].processes]
            delays = sorted(latency_ms(db, queue) for _ in range(wake_ups))
        print(
            f"\n{IDLE_PROCESSES} processes of {IDLE_THREADS} idle threads: {100 * share:.1f} % of one core, "
            f"{statistics.median(memory):.0f} MB resident per process\n"
            f"from a put to the handler's ack: p50 {statistics.median(delays):.1f} ms, "
            f"max {delays[-1]:.1f} ms of {wake_ups}"
        )


def latency_ms(db: Database, queue: TaskQueue) -> float:
    acked = queue.statistics(db)["calls"]["ack"]
    time.sleep(0.1)
    began = time.perf_counter()
    queue.put(db, None)
    while queue.statistics(db)["calls"]["ack"] == acked:
        time.sleep(0.0002)
    return 1e3 * (time.perf_counter() - began)


def idle_transactions(seconds: float) -> None:
    """Transactions a second of one idle worker process, counted where they commit."""
    counted = [0]
    commit = embedded_transaction.Transaction.commit

    def counting(tr: Any) -> Any:
        counted[0] += 1
        return commit(tr)

    with fdbqueue.open("memory:") as db:
        worker = Worker(db, filled_queue(db), nothing, threads=IDLE_THREADS)
        worker.start()
        time.sleep(1)
        with patch.object(embedded_transaction.Transaction, "commit", counting):
            time.sleep(seconds)
        worker.stop()
        worker.join()
    print(f"one idle worker of {IDLE_THREADS} threads: {counted[0] / seconds:.1f} transactions a second")


def measure(url: str, arguments: argparse.Namespace, tasks: int, rounds: int, seconds: float) -> None:
    for where in dict.fromkeys((url if arguments.url else "memory:", url)):
        with fdbqueue.open(where) as db:
            few = tasks if where == "memory:" else tasks // 5
            kind = "no fsync" if where == "memory:" else "durable"
            print(table(f"cost of a worker ({kind})", overhead(db, few, rounds)), flush=True)
    for handler, share in SHARES.items():
        rows = processes(url, round(share * tasks), min(rounds, 3), handler)
        print(table(f"fleets of {THREADS} threads each, durable, handler {handler!r}", rows), flush=True)
    without_fsync = Path("/dev/shm")
    if not arguments.url and without_fsync.is_dir():
        with tempfile.TemporaryDirectory(dir=without_fsync) as fast:
            rows = processes(f"embedded:{fast}/data", 4 * tasks, min(rounds, 3), "nothing")
            print(table(f"fleets of {THREADS} threads each, an fsync costs nothing", rows), flush=True)
    idle(url, seconds, 10 if arguments.quick else 50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--celery", action="store_true", help="only fleets beside Celery")
    arguments = parser.parse_args()
    tasks, rounds, seconds = (1_000, 1, 5.0) if arguments.quick else (4_000, 5, 20.0)
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.url or f"embedded:{folder}/data"
        with leaving_nothing(url):
            if arguments.celery:
                print(table("beside Celery with a Redis without a log", beside_celery(url, tasks, rounds)))
                return
            measure(url, arguments, tasks, rounds, seconds)
    idle_transactions(seconds)


if __name__ == "__main__":
    main()
