"""Coroutines beside threads: python -m benchmarks.coroutines [--url URL] [--clients N] [--waiting N]

Three questions. What do N async clients do a second, beside N threads, for each verb? How long does an
awaited read take, beside the same read in a thread of an executor? What do waiting takes cost: threads,
memory, and the time from a put to the waiter whose turn it is?

Rates are of rounds in turn; the ratio is the median of the rounds' ratios. Needs the extra `aio`.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.measure import threaded_rate
from fdbqueue import aio

ROUNDS = 5
READS = 2_000
PUTS = 200
VERBS = ("enqueue", "dequeue", "put", "take and ack")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", help="a temporary directory by default")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = given.url or f"embedded:{directory}/data"
        root = Subspace(("fdbqueue-bench", os.urandom(8)))
        try:
            compare(url, root, given.clients, given.seconds, given.rounds)
            asyncio.run(reads(url, root))
            for number in sorted({10, given.waiting}):
                asyncio.run(waits(url, root[number], number))
        finally:
            with fdbqueue.open(url) as db:
                db.clear_range_startswith(root.key())


# Rates.


def compare(url: str, root: Subspace, clients: int, seconds: float, rounds: int) -> None:
    print(f"{clients} clients, calls a second (median of {rounds} rounds)")
    for verb in VERBS:
        threads, coroutines = [], []
        for number in range(rounds):
            space = root[verb][number]
            threads.append(thread_rate(url, space["threads"], verb, clients, seconds))
            coroutines.append(asyncio.run(coroutine_rate(url, space["coroutines"], verb, clients, seconds)))
        ratio = statistics.median(ours / theirs for ours, theirs in zip(coroutines, threads, strict=True))
        told = [f"{statistics.median(rates):8,.0f}" for rates in (threads, coroutines)]
        print(f"  {verb:14} threads {told[0]}  coroutines {told[1]}  ratio {ratio:.2f}", flush=True)


def thread_rate(url: str, root: Subspace, verb: str, clients: int, seconds: float) -> float:
    with fdbqueue.open(url) as db:
        queue = fdbqueue.Queue(root["items"], root=root)
        tasks = fdbqueue.TaskQueue.create(db, "tasks", "fifottl", ttr=60, root=root)
        fill(db, queue, tasks, verb, seconds)

        def take_and_ack() -> None:
            task = tasks.take(db, 0)
            if task is not None:
                tasks.ack(db, task)

        calls: dict[str, Callable[[], object]] = {
            "enqueue": lambda: queue.enqueue(db, "v" * 20),
            "dequeue": lambda: queue.dequeue(db),
            "put": lambda: tasks.put(db, "v" * 20),
            "take and ack": take_and_ack,
        }
        return threaded_rate(lambda _: calls[verb], clients, seconds)


async def coroutine_rate(url: str, root: Subspace, verb: str, clients: int, seconds: float) -> float:
    async with aio.open(url) as db:
        queue = aio.Queue(root["items"], root=root)
        tasks = await aio.TaskQueue.create(db, "tasks", "fifottl", ttr=60, root=root)
        await db.run_blocking(lambda blocking: fill(blocking, queue.blocking, tasks.blocking, verb, seconds))

        async def take_and_ack() -> None:
            task = await tasks.take(db, 0)
            if task is not None:
                await tasks.ack(db, task)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "enqueue": lambda: queue.enqueue(db, "v" * 20),
            "dequeue": lambda: queue.dequeue(db),
            "put": lambda: tasks.put(db, "v" * 20),
            "take and ack": take_and_ack,
        }
        return await rate_of(calls[verb], clients, seconds)


def fill(db: Any, queue: fdbqueue.Queue, tasks: fdbqueue.TaskQueue, verb: str, seconds: float) -> None:
    """Put more than the clients can take in their time."""
    for _ in range(round(100 * seconds) if verb in ("dequeue", "take and ack") else 0):
        if verb == "dequeue":
            queue.enqueue_many(db, ["v" * 20] * 200)
        else:
            tasks.put_many(db, ["v" * 20] * 200)


async def rate_of(call: Callable[[], Awaitable[object]], clients: int, seconds: float) -> float:
    began = time.perf_counter()
    counts = [0] * clients

    async def client(number: int) -> None:
        while time.perf_counter() < began + seconds:
            await call()
            counts[number] += 1

    await asyncio.gather(*map(client, range(clients)))
    return sum(counts) / (time.perf_counter() - began)


# One read.


async def reads(url: str, root: Subspace) -> None:
    """An awaited `get`, and the same read in a thread of the loop's executor."""
    key = root["read"].key()
    loop = asyncio.get_running_loop()
    async with aio.open(url) as db:
        await db.set(key, b"x")

        async def awaited() -> None:
            await db.create_transaction().get(key)

        def blocking() -> None:
            tr = db.blocking.create_transaction()  # the binding cancels the reads of a dropped one
            tr.get(key).wait()

        async def in_executor() -> None:
            await loop.run_in_executor(None, blocking)

        ours, theirs = list[float](), list[float]()
        for _ in range(READS):
            for times, read in ((ours, awaited), (theirs, in_executor)):
                began = time.perf_counter()
                await read()
                times.append(1e6 * (time.perf_counter() - began))
        awaited_us, blocking_us = statistics.median(ours), statistics.median(theirs)
        ratio = awaited_us / blocking_us
        print(f"a read: awaited {awaited_us:.0f} us, run_in_executor {blocking_us:.0f} us, ratio {ratio:.2f}")


# Waiting takes.


async def waits(url: str, root: Subspace, number: int) -> None:
    async with aio.open(url) as db:
        tasks = await aio.TaskQueue.create(db, "tasks", "fifottl", ttr=600, root=root)
        before_mb = rss_mb()
        served: list[tuple[int, float]] = []
        another = asyncio.Event()

        async def take(place: int) -> None:
            await tasks.take(db)
            served.append((place, time.perf_counter()))
            another.set()

        waiting = [asyncio.create_task(take(place)) for place in range(number)]
        await asyncio.sleep(0)
        while not db.counters.requests:
            await asyncio.sleep(0.01)
        kb_each = 1000 * (rss_mb() - before_mb) / number
        times_ms = []
        for place in range(min(PUTS, number - 1)):
            began = time.perf_counter()
            await tasks.put(db, place)
            await another.wait()
            another.clear()
            times_ms.append(1000 * (served[-1][1] - began))
        in_order = [place for place, _ in served] == list(range(len(served)))
        times_ms.sort()
        p99_ms = times_ms[int(0.99 * len(times_ms))]
        print(f"{number:,} waiting takes: {threading.active_count()} threads, {kb_each:.1f} kB each")
        order = "in order" if in_order else "NOT in order"
        print(f"  put to waiter {statistics.median(times_ms):.1f} ms (p99 {p99_ms:.1f}), {order}", flush=True)
        for task in waiting:
            task.cancel()
        began = time.perf_counter()
        await asyncio.gather(*waiting, return_exceptions=True)
        print(f"  all cancelled in {time.perf_counter() - began:.2f} s")


def rss_mb() -> float:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
