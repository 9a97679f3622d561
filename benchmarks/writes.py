"""The writes and reads of one call, counted at its transaction: python -m benchmarks.writes

Each row is one call given a database, alone in its process: its mutations, the bytes of their keys and
values, its reads, the bytes that they return, and its commits. They count as in FoundationDB's client
library: several adds to one key in a transaction are one, a cleared key is a range, which has it twice, and
a key is read once. Nothing is timed. The last rows are the bytes that a waiting item or task keeps. With
--page, the table of docs/sizing.md.
"""

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, Session, TaskQueue
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.operate.estimate import KINDS, OPTIONS, Call, calls_of, cost_of

ROOT = Subspace(("fdbqueue",))
"""The default root of a user: on a cluster, tests move DEFAULT_ROOT to a longer one."""
WAITING = 100
KEYED, TIMED = ("utube", "utubettl", "fair"), ("ttr", "ttl")
_MUTATIONS = (
    *("set", "clear_range", "max", "compare_and_clear"),
    *("set_versionstamped_key", "set_versionstamped_value"),
)


@dataclass
class Written:
    mutations: int = 0
    size_bytes: int = 0
    reads: int = 0
    bytes_read: int = 0
    commits: int = 0
    """Of transactions with mutations."""


class Counting:
    """An engine that counts the mutations of its transactions."""

    run_directly = None
    """It would pass them by."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._thread = threading.get_ident()
        self.written = Written()

    def create_transaction(self) -> "CountingTransaction":
        return CountingTransaction(self, self._engine.create_transaction())

    def count(self, *parts: bytes) -> None:
        if self.is_own():
            self.written.mutations += 1
            self.written.size_bytes += sum(map(len, parts))

    def count_read(self, size_bytes: int) -> None:
        if self.is_own():
            self.written.reads += 1
            self.written.bytes_read += size_bytes

    def count_commit(self) -> None:
        self.written.commits += self.is_own()

    def is_own(self) -> bool:
        """False in a heartbeat or a sweep."""
        return threading.get_ident() == self._thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class CountingReads:
    """A transaction, or its snapshot. A key is read once."""

    def __init__(self, engine: Counting, tr: Any, seen: set[bytes]) -> None:
        self.db = engine
        self._tr = tr
        self._seen = seen

    def get(self, key: bytes) -> Any:
        found = self._tr.get(key)
        if key not in self._seen:
            self._seen.add(key)
            self.db.count_read(len(found.value or b""))
        return found

    def get_range(self, *arguments: Any, **options: Any) -> Any:
        found = self._tr.get_range(*arguments, **options)
        self.db.count_read(sum(len(row.key) + len(row.value) for row in found.to_list()))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)


class CountingTransaction(CountingReads):
    def __init__(self, engine: Counting, tr: Any) -> None:
        super().__init__(engine, tr, set())
        self._added: set[bytes] = set()
        self._writes = False

    @property
    def snapshot(self) -> CountingReads:
        return CountingReads(self.db, self._tr.snapshot, self._seen)

    def add(self, key: bytes, param: bytes) -> None:
        if key not in self._added:
            self._count(key, param)
        self._added.add(key)
        self._tr.add(key, param)

    def clear(self, key: bytes) -> None:
        self._count(key, key + b"\x00")
        self._tr.clear(key)

    def _count(self, *parts: bytes) -> None:
        self._writes = True
        self.db.count(*parts)

    def commit(self) -> Any:
        if self._writes:
            self.db.count_commit()
        return self._tr.commit()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tr, name)
        if name not in _MUTATIONS:
            return found

        def counted(*parts: bytes) -> None:
            self._count(*parts)
            found(*parts)

        return counted


@dataclass(frozen=True)
class Shape:
    """Calls with `batch` tasks each, and the names of options as in fdbqueue.operate.estimate."""

    kind: str
    options: tuple[str, ...] = ()
    payload: int = 100
    batch: int = 1
    partitions: int = 1

    def create(self, db: Database, name: str, root: Subspace = ROOT) -> Any:
        if self.kind == "queue":
            return Queue.named(db, name, partitions=self.partitions, root=root)
        asked: dict[str, Any] = {"ttr": 60} if "ttr" in self.options else {}
        asked |= {"retain_s": 1_000} if "retain" in self.options else {}
        asked |= {"capacity": 100_000} if self.kind == "limfifottl" else {}
        return TaskQueue.create(db, name, self.kind, partitions=self.partitions, root=root, **asked)

    def of_put(self, number: int) -> dict[str, Any]:
        asked: dict[str, Any] = {"ttl": 60.0} if "ttl" in self.options else {}
        asked |= {"unique": f"{number:05}"} if "unique" in self.options else {}
        asked |= {"result_ttl": 1_000} if "result" in self.options else {}
        return asked | ({"key": f"{number:05}"} if self.kind in KEYED else {})

    def put(self, db: Database, queue: Any, numbers: range) -> Any:
        data = "x" * (self.payload - 2)  # the rest are quotes
        if self.kind == "queue" and len(numbers) == 1:
            return queue.enqueue(db, data)
        if self.kind == "queue":
            return queue.enqueue_many(db, [data] * len(numbers))
        if len(numbers) > 1:
            return queue.put_many(db, [data] * len(numbers), **self.of_put(0))
        return queue.put(db, data, **self.of_put(numbers[0]))

    def take(self, db: Database, queue: Any, session: Session | None = None) -> Any:
        if self.kind == "queue":
            return [queue.dequeue(db)] if self.batch == 1 else queue.dequeue_many(db, self.batch)
        return queue.take_many(db, self.batch, session=session)

    def ack(self, db: Database, queue: Any, tasks: Any) -> None:
        """Several acks are given a transaction, so none of them has a receipt."""
        result: dict[str, Any] = {"result": 1} if "result" in self.options else {}
        if len(tasks) == 1:
            queue.ack(db, tasks[0], **result)
        else:
            ack_all(db, queue, tasks, result)

    @property
    def puts_together(self) -> bool:
        """False if each task has a key: then a put has one."""
        return self.kind not in KEYED and "unique" not in self.options


@fdbqueue.transactional
def ack_all(tr: Any, queue: TaskQueue, tasks: Any, result: dict[str, Any]) -> None:
    for task in tasks:
        queue.ack(tr, task, **result)


class Counts:
    """An open database, and the writes and reads of its calls."""

    def __init__(self, opened: Database) -> None:
        self._engine = Counting(opened.engine)
        self.db = Database(self._engine, opened.runtime)

    def of(self, call: Callable[[], Any]) -> tuple[Any, Written]:
        self._engine.written = Written()
        answer = call()
        written, self._engine.written = self._engine.written, Written()
        return answer, written

    def of_calls(self, shape: Shape) -> dict[str, Written]:
        """Of a put, a take and an ack, beside tasks that wait in each partition."""
        db, found = self.db, dict[str, Written]()
        queue = shape.create(db, str(shape))
        # A put draws its partition: that one of four stays empty has a chance of 1e-13.
        waiting = 3 * shape.batch if shape.partitions == 1 else 30 * shape.partitions
        for number in range(waiting):
            shape.put(db, queue, range(number, number + 1))
        together = shape.batch if shape.puts_together else 1
        _, found["put"] = self.of(lambda: shape.put(db, queue, range(waiting, waiting + together)))
        session = own_session_of(db, RootKeys(ROOT)).get()
        tasks, found["take"] = self.of(lambda: shape.take(db, queue, session))
        assert len(tasks) == shape.batch
        if shape.kind != "queue":
            _, found["ack"] = self.of(lambda: shape.ack(db, queue, tasks))
        return found

    def stored_bytes(self, under: Subspace) -> int:
        rows = self.db.get_range_startswith(under.key())
        return sum(len(row.key) + len(row.value) for row in rows)


def stored(counts: Counts) -> Iterator[tuple[str, float]]:
    """Bytes of a waiting item and of a waiting task."""
    registry = Registry(ROOT)
    for what, shape in (("item", Shape("queue")), ("task", Shape("fifo"))):
        shape.put(counts.db, shape.create(counts.db, what), range(WAITING))
        contents = registry.contents(registry.find(counts.db, what))
        yield what, counts.stored_bytes(contents) / WAITING


SHAPES = (
    *(Shape(kind) for kind in KINDS),
    *(Shape("fifo", (option,)) for option in OPTIONS if option not in TIMED),
    *(Shape("fifottl", options) for options in (("ttr",), ("ttl",), ("ttr", "ttl"))),
    *(Shape("fifo", payload=1_000), Shape("fifo", partitions=4), Shape("queue", partitions=4)),
    *(Shape(kind, batch=100) for kind in ("queue", "fifo", "fair")),
)


class StillRuntime(RealRuntime):
    """A take that is half a second late tidies the line, too: no call is late by this clock."""

    def monotonic(self) -> float:
        return 0.0


@contextmanager
def counting() -> Iterator[Counts]:
    with fdbqueue.open("memory:", runtime=StillRuntime()) as opened:
        counts = Counts(opened)
        yield counts
        counts.db.close()  # before the engine: the session ends


def table() -> Iterator[str]:
    yield f"{'call':34}{'mutations':>10}{'bytes':>10}{'reads':>8}{'bytes':>10}{'commits':>9}"
    with counting() as counts:
        for shape in SHAPES:
            told = " ".join(
                (shape.kind, *shape.options, f"{shape.payload} B x{shape.batch} /{shape.partitions}")
            )
            for call, one in counts.of_calls(shape).items():
                yield (
                    f"{call:5}{told:29}{one.mutations:10,}{one.size_bytes:10,}{one.reads:8,}"
                    f"{one.bytes_read:10,}{one.commits:9,}"
                )
        for what, size_bytes in stored(counts):
            yield f"a waiting {what} keeps {size_bytes:,.0f} bytes"


PAGE_ROWS: tuple[tuple[str, Shape], ...] = (
    ("queue: enqueue, dequeue", Shape("queue")),
    ("fifo, fifottl", Shape("fifo")),
    ("bag", Shape("bag")),
    ("limfifottl", Shape("limfifottl")),
    ("utube, utubettl", Shape("utube")),
    ("fair", Shape("fair")),
    ("with ttr", Shape("fifottl", ("ttr",))),
    ("with ttl", Shape("fifottl", ("ttl",))),
    ("with unique key", Shape("fifo", ("unique",))),
    ("with result", Shape("fifo", ("result",))),
    ("retained", Shape("fifo", ("retain",))),
    ("payload of 1,000", Shape("fifo", payload=1_000)),
    ("several partitions", Shape("fifo", partitions=4)),
    ("fifo, 100 tasks a call", Shape("fifo", batch=100)),
    ("queue, 100 items a call", Shape("queue", batch=100)),
)


def page() -> Iterator[str]:
    """The table of docs/sizing.md, of the data that `fdbqueue estimate` has."""
    yield "| | put | take | ack |"
    yield "|---|---|---|---|"
    for told, shape in PAGE_ROWS:
        calls = calls_of(shape.kind, shape.options, shape.partitions)._asdict()
        costs = [
            cost_of(call, name, shape.payload, shape.batch, shape.kind)
            for name, call in calls.items()
            if call != Call()
        ]
        cells = [
            f"{one.mutations:,}, {one.bytes_written:,}; {one.reads:,}, {one.bytes_read:,}" for one in costs
        ]
        yield f"| {told} | {' | '.join([*cells, ''][:3])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true")
    for line in page() if parser.parse_args().page else table():
        print(line)


if __name__ == "__main__":
    main()
