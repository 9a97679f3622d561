"""The embedded engine against raw py-lmdb, in one run: python -m benchmarks.engine [--quick]

The unit is one transaction: get a key, set it, commit. Raw is `lmdb` itself doing the same.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb

import fdbqueue
from benchmarks.measure import (
    Operation,
    Row,
    anonymous_bytes,
    compare,
    rate,
    resident_bytes,
    table,
    threaded_rate,
)
from fdbqueue.embedded.transaction import Database, open_directory, open_private

_KEYS = 1_000
_VALUE = b"v" * 20


def raw(path: Path, durable: bool) -> Operation:
    env = lmdb.open(str(path), map_size=1 << 40, sync=durable, metasync=durable, meminit=False)
    number = 0

    def operation() -> None:
        nonlocal number
        number += 1
        key = b"k%d" % (number % _KEYS)
        with env.begin(write=True) as txn:
            txn.get(key)
            txn.put(key, _VALUE)

    return operation


def ours(database: Database, thread: int = 0) -> Operation:
    number = 0

    def operation() -> None:
        nonlocal number
        number += 1
        key = b"k%d-%d" % (thread, number % _KEYS)
        tr = database.create_transaction()
        tr.get(key).wait()
        tr.set(key, _VALUE)
        tr.commit().wait()

    return operation


def no_fsync(folder: Path, seconds: float, rounds: int) -> list[Row]:
    database = open_private()
    raw_operation, operation = raw(folder / "raw-a", False), ours(database)
    rows = compare(
        {
            "raw lmdb, 1 thread": lambda: rate(raw_operation, seconds),
            "engine, 1 thread (a)": lambda: rate(operation, seconds),
        },
        "raw lmdb, 1 thread",
        rounds,
    )
    idle = rate(lambda: database.create_transaction().get(b"k0-1").wait(), seconds)
    database.close()
    begin = Row("begin + get, one of 60,000/s (e)", idle, idle / 60_000, 1.0)
    return [*_wanting(rows, {"engine, 1 thread (a)": 0.20}), begin]


def durable(folder: Path, seconds: float, rounds: int) -> list[Row]:
    database = open_directory(str(folder / "ours-b"))
    raw_operation, operation = raw(folder / "raw-b", True), ours(database)
    rows = compare(
        {
            "raw lmdb, 1 thread": lambda: rate(raw_operation, seconds),
            "engine, 1 thread (b)": lambda: rate(operation, seconds),
            "engine, 16 threads (c)": lambda: threaded_rate(lambda n: ours(database, n), 16, seconds),
        },
        "raw lmdb, 1 thread",
        rounds,
    )
    database.close()
    return _wanting(rows, {"engine, 1 thread (b)": 0.85, "engine, 16 threads (c)": 4.0})


def _process(path: str, number: int, seconds: float, gate: Any, rates: Any) -> None:
    with fdbqueue.open(f"embedded:{path}") as database:
        operation = ours(database.engine, number)  # type: ignore[arg-type]  # the url says which engine
        operation()
        gate.wait()
        rates.put(rate(operation, seconds))


def processes(path: Path, count: int, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    gate, rates = context.Barrier(count), context.Queue()
    workers = [
        context.Process(target=_process, args=(str(path), n, seconds, gate, rates)) for n in range(count)
    ]
    for worker in workers:
        worker.start()
    total: float = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def across_processes(folder: Path, seconds: float, rounds: int) -> list[Row]:
    measures: dict[str, Callable[[], float]] = {
        f"engine, {count} process(es) durable (d)": (
            lambda count=count: processes(folder / "ours-d", count, seconds)  # type: ignore[misc]
        )
        for count in (1, 2, 4)
    }
    rows = compare(measures, "engine, 1 process(es) durable (d)", rounds)
    return _wanting(rows, {"engine, 4 process(es) durable (d)": 0.9})


def _wanting(rows: dict[str, Row], wanted: dict[str, float]) -> list[Row]:
    return [replace(row, wanted=wanted.get(name)) for name, row in rows.items()]


def streaming(keys: int) -> str:
    database = open_private()
    for start in range(0, keys, 10_000):
        tr = database.create_transaction()
        for number in range(start, start + 10_000):
            tr.set(number.to_bytes(8, "big"), b"v" * 8)
        tr.commit().wait()
    before, resident_before = anonymous_bytes(), resident_bytes()
    count, peak = 0, before
    for _ in database.create_transaction().get_range(b"", b"\xff"):
        count += 1
        if count % 50_000 == 0:
            peak = max(peak, anonymous_bytes())
    grown, resident = peak - before, resident_bytes() - resident_before
    database.close()
    return (
        f"\nA range read of {count:,} keys: {grown / 1e6:.1f} MB of memory of its own, "
        f"{resident / 1e6:.1f} MB with the file's pages that it has mapped (wanted: below 50)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it runs")
    quick = parser.parse_args().quick
    seconds, rounds = (0.3, 1) if quick else (2.0, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(table("Without fsync", no_fsync(folder, seconds, rounds)), flush=True)
        print(table("Durable", durable(folder, seconds, rounds)), flush=True)
        print(table("Durable, processes", across_processes(folder, seconds, rounds)), flush=True)
    print(streaming(100_000 if quick else 1_000_000))


if __name__ == "__main__":
    main()
