"""A framework on fdbqueue, and on Redis: python -m benchmarks.frameworks taskiq [--url URL]

The work: a program sends small tasks, one after the other. Then a worker with two processes runs them, acks
each when it has run, and stores its result. A round measures each broker in turn; a figure is the median of
the rounds. The time of the worker is that from its first to its last result. The table is Markdown.

The framework is celery, dramatiq, taskiq or django. Needs its extra, `bench`, and Debian's redis-server.
`--url`: one more database, such as fdb:/etc/foundationdb/fdb.cluster. `--tasks 500`, `--rounds 3`: the
length of a run.
"""

import argparse
import importlib
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from benchmarks.peer_queues import free_port

FRAMEWORKS = ("celery", "dramatiq", "taskiq", "django")


class Framework(Protocol):
    """A module benchmarks/NAME_tasks.py: an application on the broker that $BENCHMARK_BROKER names."""

    WORKERS: Sequence[Sequence[str]]
    """The commands of `python -m` that run tasks in two processes, one in each at a time."""

    def send(self, given: int) -> Any:
        """Send one task, and return its handle."""

    def ended(self, sent: Any) -> float:
        """Wait for the result of a task. Return the time of its end, in seconds since the epoch."""


class Rates(NamedTuple):
    """Tasks a second: sent by one program, and run by one worker."""

    sent: float
    run: float


class Broker(NamedTuple):
    name: str
    url: str
    server: Sequence[str] = ()


def brokers(folder: Path, more: str | None) -> list[Broker]:
    ours = f"embedded:{folder}"
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
def running(command: Sequence[str]) -> Iterator[None]:
    """A process with its children. They are killed at the end: some workers wait for ever after SIGTERM."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def serving(broker: Broker) -> Iterator[None]:
    """The server of the broker, if it has one, which accepts connections."""
    if not broker.server:
        yield
        return
    with running(broker.server):
        port = urlsplit(broker.url).port
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        yield


def measured(framework: str, url: str, tasks: int) -> Rates:
    """Measure in a fresh process: a framework has one broker, or one set of settings, in each."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, framework, url, tasks).result()


def measure(framework: str, url: str, tasks: int) -> Rates:
    os.environ["BENCHMARK_BROKER"] = url
    module: Framework = importlib.import_module(f"benchmarks.{framework}_tasks")
    module.send(0)  # connects
    began = time.monotonic()
    sent = [module.send(given) for given in range(tasks)]
    sent_s = time.monotonic() - began
    with ExitStack() as workers:
        for worker in module.WORKERS:
            workers.enter_context(running((sys.executable, "-m", *worker)))
        done = sorted(module.ended(one) for one in sent)
    return Rates(tasks / sent_s, (tasks - 1) / (done[-1] - done[0]))


def rows(found: dict[str, list[Rates]]) -> Iterator[str]:
    yield "| broker and results | tasks sent, a second | tasks run, a second |"
    yield "|---|---|---|"
    for name, rounds in found.items():
        sent, run = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        yield f"| {name} | {sent:,.0f} | {run:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", nargs="?", choices=FRAMEWORKS, default="celery")
    parser.add_argument("--url", help="one more database")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[Rates]] = {}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="fdbqueue-bench-") as folder:
            for broker in brokers(Path(folder), arguments.url):
                with serving(broker):
                    found.setdefault(broker.name, []).append(
                        measured(arguments.framework, broker.url, arguments.tasks)
                    )
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
