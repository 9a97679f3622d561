"""Histories of the queues: the cases, their models, and runs by threads and by processes.

The second judge is the program of tests/porcupine/, if FDBQUEUE_PORCUPINE names it.
"""

import os
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database
from fdbqueue.testing.history import Bag, Call, Fifo, Leases, Model, Recorder, lines_of, read
from tests.history import clients
from tests.spawned import Crew, crew

PORCUPINE = os.environ.get("FDBQUEUE_PORCUPINE")
needs_porcupine = pytest.mark.skipif(
    PORCUPINE is None, reason="FDBQUEUE_PORCUPINE names no checker: see tests/porcupine/README.md"
)


def by_porcupine(calls: Iterable[Call], model: str, ttr_us: int, directory: Path) -> str:
    """The verdict of Porcupine on a history."""
    assert PORCUPINE is not None
    path = directory / "history.jsonl"
    path.write_text("\n".join(lines_of(calls)))
    done = subprocess.run(
        [PORCUPINE, model, str(ttr_us), path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


PRODUCERS = 3
TTR_US = round(clients.TTR_S * 1_000_000)
MODELS: dict[str, Model] = {"bag": Bag(), "fifo": Fifo(), "keyed": Fifo(keyed=True), "leases": Leases(TTR_US)}
CASES = {
    "items of many consumers": ("items", "bag", 3),
    "items of one consumer": ("items", "fifo", 1),
    "tenants of many consumers": ("fair", "bag", 3),
    "tenants of one consumer": ("fair", "keyed", 1),
    "leases": ("leases", "leases", 3),
}
"""For each case: the queue, the model, and the number of consumers. One consumer gets a strict order."""


def by_threads(
    kind: str, consumers: int, databases: Sequence[Database], space: Subspace, directory: Path, count: int
) -> list[Call]:
    """The history of threads, which use these databases in turn. Each producer puts `count` items."""
    subject = prepared(kind, databases[0], space)

    def work(role: str, number: int) -> None:
        db, recorder = databases[number % len(databases)], Recorder(directory, f"{role}-{number}")
        if role == "producer":
            clients.produce(subject, db, recorder, str(number), count)
        else:
            clients.consume(subject, db, recorder, count * PRODUCERS // consumers)

    threads = [threading.Thread(target=work, args=("producer", number)) for number in range(PRODUCERS)]
    threads += [threading.Thread(target=work, args=("consumer", number)) for number in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clients.drain(subject, databases[0], Recorder(directory, "last"))
    return read(directory)


def by_processes(
    kind: str,
    consumers: int,
    db: Database,
    url: str,
    space: Subspace,
    directory: Path,
    count: int,
    kills: int,
) -> list[Call]:
    """The history of processes, which are killed and stalled in turn. Each makes `count` puts or takes."""
    subject = prepared(kind, db, space)
    with crew() as running:
        for role, number in (("producer", PRODUCERS), ("consumer", consumers)):
            for _ in range(number):
                running.spawn(clients.process, role, kind, url, space.key().hex(), str(directory), count)
        _strike(running, directory, count * (PRODUCERS + consumers), kills)
        running.finish()
    clients.drain(subject, db, Recorder(directory, "last"))
    return read(directory)


def _strike(running: Crew, directory: Path, calls: int, kills: int) -> None:
    """A stall is longer than a lease, and shorter than the deadline of a request in the line."""
    for strike in range(kills):
        wanted = calls * (strike + 1) // (kills + 2)
        running.kill_after(lambda wanted=wanted: len(read(directory)) >= wanted)
        running.stall_one(clients.TTR_S * 1.5)


def prepared(kind: str, db: Database, space: Subspace) -> Any:
    subject = clients.SUBJECTS[kind](space)
    if kind == "leases":
        subject.prepare(db)
    return subject
