"""The writes of one call, counted at its transaction: python -m benchmarks.writes

Each row is one call given a database, alone in its process: its mutations, the bytes of their keys and
values together, and the mutations that add to a counter. FoundationDB's client library joins several adds to
one key in a transaction, so they count as one. Nothing is timed. The last rows are the bytes that a waiting
item or task keeps.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, Session, TaskQueue
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.session import own_session_of

PAYLOAD = "x" * 98
"""100 bytes as JSON."""
BATCH = 100
_MUTATIONS = (
    *("set", "clear", "clear_range", "max", "compare_and_clear"),
    *("set_versionstamped_key", "set_versionstamped_value"),
)


@dataclass
class Written:
    mutations: int = 0
    size_bytes: int = 0
    added: int = 0
    """Mutations that add to a counter: those of one queue are of one or two keys."""


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

    def count(self, *parts: bytes, adds: bool = False) -> None:
        if threading.get_ident() != self._thread:
            return  # a heartbeat or a sweep
        self.written.mutations += 1
        self.written.size_bytes += sum(map(len, parts))
        self.written.added += adds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class CountingTransaction:
    def __init__(self, engine: Counting, tr: Any) -> None:
        self.db = engine
        self._tr = tr
        self._added: set[bytes] = set()

    def add(self, key: bytes, param: bytes) -> None:
        if key not in self._added:
            self.db.count(key, param, adds=True)
        self._added.add(key)
        self._tr.add(key, param)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tr, name)
        if name not in _MUTATIONS:
            return found

        def counted(*parts: bytes) -> None:
            self.db.count(*parts)
            found(*parts)

        return counted


class Counts:
    """Calls, and their writes."""

    def __init__(self, db: Database, engine: Counting) -> None:
        self.db = db
        self._engine = engine
        self.rows: dict[str, Written] = {}

    def of(self, what: str, call: Callable[[], Any]) -> Any:
        self._engine.written = Written()
        answer = call()
        self.rows[what], self._engine.written = self._engine.written, Written()
        return answer

    def stored_bytes(self, under: Subspace) -> int:
        rows = self.db.get_range_startswith(under.key())
        return sum(len(row.key) + len(row.value) for row in rows)


def count_items(counts: Counts) -> None:
    db, queue = counts.db, Queue.named(counts.db, "items")
    counts.of("enqueue", lambda: queue.enqueue(db, PAYLOAD))
    counts.of("dequeue", lambda: queue.dequeue(db))
    counts.of(f"enqueue_many, {BATCH}", lambda: queue.enqueue_many(db, [PAYLOAD] * BATCH))
    counts.of(f"dequeue_many, {BATCH}", lambda: queue.dequeue_many(db, BATCH))


def count_tasks(counts: Counts, session: Session, kind: str, what: str, **options: Any) -> None:
    db, queue = counts.db, TaskQueue.create(counts.db, what, kind, **options)
    ttl: dict[str, Any] = {"ttl": 60.0} if kind == "fifottl" else {}
    for _ in range(2 * options.get("partitions", 1)):  # each partition has a flag
        queue.put(db, PAYLOAD, **ttl)
    counts.of(f"put ({what})", lambda: queue.put(db, PAYLOAD, **ttl))
    task = counts.of(f"take ({what})", lambda: queue.take(db, session=session))
    counts.of(f"ack ({what})", lambda: queue.ack(db, task))


def count_batches(counts: Counts, session: Session) -> None:
    db, queue = counts.db, TaskQueue.create(counts.db, "batches", "fifo")
    queue.put(db, PAYLOAD)
    counts.of(f"put_many, {BATCH} (fifo)", lambda: queue.put_many(db, [PAYLOAD] * BATCH))
    tasks = counts.of(f"take_many, {BATCH} (fifo)", lambda: queue.take_many(db, BATCH, session=session))

    @fdbqueue.transactional
    def ack_all(tr: Any) -> None:
        for task in tasks:
            queue.ack(tr, task)

    counts.of(f"{BATCH} acks (fifo)", lambda: ack_all(db))


def stored(counts: Counts) -> Iterator[tuple[str, float]]:
    """Bytes of a waiting item and of a waiting task."""
    items, tasks = Queue.named(counts.db, "some"), TaskQueue.create(counts.db, "more", "fifo")
    items.enqueue_many(counts.db, [PAYLOAD] * BATCH)
    tasks.put_many(counts.db, [PAYLOAD] * BATCH)
    registry = Registry(DEFAULT_ROOT)
    for what, name in (("item", "some"), ("task", "more")):
        contents = registry.contents(registry.find(counts.db, name))
        yield what, counts.stored_bytes(contents) / BATCH


def table() -> Iterator[str]:
    with fdbqueue.open("memory:") as opened:
        engine = Counting(opened.engine)
        db = Database(engine, opened.runtime)
        counts, session = Counts(db, engine), own_session_of(db, RootKeys(DEFAULT_ROOT)).get()
        count_items(counts)
        count_tasks(counts, session, "fifo", "fifo")
        count_tasks(counts, session, "fifottl", "fifo with ttl")
        count_tasks(counts, session, "fifo", "fifo, 4 partitions", partitions=4)
        count_batches(counts, session)
        yield f"{'call':32}{'mutations':>10}{'bytes':>10}{'of counters':>13}"
        for what, one in counts.rows.items():
            yield f"{what:32}{one.mutations:10,}{one.size_bytes:10,}{one.added:13,}"
        kept = list(stored(counts))
        db.close()  # before the engine: the session ends
        for what, size_bytes in kept:
            yield f"a waiting {what} keeps {size_bytes:,.0f} bytes"


def main() -> None:
    for line in table():
        print(line)


if __name__ == "__main__":
    main()
