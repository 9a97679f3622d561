"""Celery on fdbqueue, and on Redis: python -m benchmarks.frameworks [--url URL] [--tasks 500] [--rounds 3]

The work: a program sends small tasks, one `delay()` after the other. Then a worker with two processes runs
them, with late acks and stored results. A round measures each broker in turn; a figure is the median of the
rounds. The time of the worker is that from its first to its last result. The table is Markdown.

Needs the extra `celery`, the package `redis` and Debian's redis-server. `--url`: the address of one more
broker, such as fdbqueue+fdb:///etc/foundationdb/fdb.cluster.
"""

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peer_queues import free_port

WORKER = ("worker", "--concurrency", "2", "--loglevel", "ERROR")
START_S = 120.0


class Rates(NamedTuple):
    """Tasks a second: sent by one program, and run by one worker."""

    sent: float
    run: float


class Broker(NamedTuple):
    name: str
    address: str
    server: Sequence[str] = ()


def brokers(folder: Path, more: str | None) -> list[Broker]:
    ours = f"fdbqueue+embedded://{folder}"
    found = [
        Broker("fdbqueue, directory", f"{ours}/now"),
        Broker("fdbqueue, directory, durability=soon", f"{ours}/soon?durability=soon"),
        redis(folder, "always"),
        redis(folder, "everysec"),
    ]
    return [*found, Broker(more, more)] if more else found


def redis(folder: Path, fsync: str) -> Broker:
    port, place = free_port(), folder / fsync
    place.mkdir()
    flags = ("--port", str(port), "--dir", str(place), "--appendonly", "yes", "--appendfsync", fsync)
    return Broker(
        f"Redis, appendfsync {fsync}", f"redis://127.0.0.1:{port}/0", ("redis-server", *flags, "--save", "")
    )


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(address: str, tasks: int) -> Rates:
    os.environ["BENCHMARK_BROKER"] = address
    sys.modules.pop("benchmarks.celery_tasks", None)
    module: Any = importlib.import_module("benchmarks.celery_tasks")
    module.number.delay(0)  # connects
    began = time.monotonic()
    sent = [module.number.delay(given) for given in range(tasks)]
    sent_s = time.monotonic() - began
    command = (sys.executable, "-m", "celery", "--app", "benchmarks.celery_tasks", *WORKER)
    with running(command, BENCHMARK_BROKER=address):
        for one in sent:
            one.get(timeout=START_S)
    done = sorted(one.date_done.timestamp() for one in sent)
    module.app.close()
    return Rates(tasks / sent_s, (tasks - 1) / (done[-1] - done[0]))


def rows(found: dict[str, list[Rates]]) -> Iterator[str]:
    yield "| broker and results | tasks sent, a second | tasks run, a second |"
    yield "|---|---|---|"
    for name, rounds in found.items():
        sent, run = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        yield f"| {name} | {sent:,.0f} | {run:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="the address of one more broker")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[Rates]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="fdbqueue-bench-") as folder:
            for broker in brokers(Path(folder), arguments.url):
                with running(broker.server or ("true",)):
                    found.setdefault(broker.name, []).append(measure(broker.address, arguments.tasks))
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
