"""The ledger of a test run: produced and consumed items, in the database itself.

    (0, process)                    -> "open" or "closed": whether that process still has something to write
    (1, process, number)            -> ""  the item was produced: the call said so, or its transaction did
    (2, process, number, delivery)  -> ""  a delivery of it
    (3, process, number)            -> ""  the call that produced it failed: it may be there, or not

An item is named by the process that produced it and a number. A delivery has an id of its own, so that two of
them are two keys, and a write that is repeated after an unknown result is one. A consumer of tasks writes
it in the transaction of the ack. A consumer of a recipe queue puts it into its `Book`, which writes many
together.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue

ItemId = tuple[str, int]

_PROCESSES, _PRODUCED, _CONSUMED, _DOUBTFUL = range(4)
_OPEN, _CLOSED = b"open", b"closed"
_ROWS_TOGETHER = 500
_ROWS_READ = 2_000
_EXAMPLES = 5


class Ledger:
    """Its keys, below `space`. Writes are blind; each may be repeated."""

    def __init__(self, space: Subspace) -> None:
        self._space = space

    def produced(self, tr: Any, item: ItemId) -> bool:
        """Note the item; False if this was done before: then an earlier attempt has committed."""
        return self._note(tr, self.produced_row(item))

    def consumed(self, tr: Any, item: ItemId, delivery: bytes) -> bool:
        """Note the delivery; False as `produced`."""
        return self._note(tr, self.consumed_row(item, delivery))

    def _note(self, tr: Any, key: bytes) -> bool:
        if tr[key].present():
            return False
        tr[key] = b""
        return True

    def produced_row(self, item: ItemId) -> bytes:
        return bytes(self._space.pack((_PRODUCED, *item)))

    def consumed_row(self, item: ItemId, delivery: bytes) -> bytes:
        return bytes(self._space.pack((_CONSUMED, *item, delivery)))

    def doubtful_row(self, item: ItemId) -> bytes:
        return bytes(self._space.pack((_DOUBTFUL, *item)))

    def open_book(self, db: Any, process: str) -> None:
        db[self._space.pack((_PROCESSES, process))] = _OPEN

    def close_book(self, db: Any, process: str) -> None:
        db[self._space.pack((_PROCESSES, process))] = _CLOSED

    def open_books(self, db: Any) -> list[str]:
        """The processes that may still have something to write."""
        rows = db.get_range_startswith(self._space.pack((_PROCESSES,)))
        return [self._space.unpack(row.key)[1] for row in rows if row.value == _OPEN]

    def produced_items(self, db: Any) -> Iterator[ItemId]:
        return ((process, number) for process, number, *_ in self._rows(db, _PRODUCED))

    def consumed_items(self, db: Any) -> Iterator[ItemId]:
        return ((process, number) for process, number, _ in self.deliveries(db))

    def deliveries(self, db: Any) -> Iterator[tuple[str, int, bytes]]:
        return ((process, number, delivery) for process, number, delivery in self._rows(db, _CONSUMED))

    def doubtful_items(self, db: Any) -> set[ItemId]:
        return {(process, number) for process, number, *_ in self._rows(db, _DOUBTFUL)}

    def _rows(self, db: Any, column: int) -> Iterator[tuple[Any, ...]]:
        """In order; a bounded number in each transaction, so that none gets too old."""
        whole = self._space.range((column,))
        begin = whole.start
        while rows := read_some(db, begin, whole.stop):
            for key in rows:
                yield self._space.unpack(key)[1:]
            begin = rows[-1] + b"\x00"


@fdbqueue.transactional
def read_some(tr: Any, begin: bytes, end: bytes) -> list[bytes]:
    """The next keys of a range, by snapshot."""
    return [bytes(row.key) for row in tr.snapshot.get_range(begin, end, limit=_ROWS_READ)]


@fdbqueue.transactional
def write_rows(tr: Any, rows: list[bytes]) -> None:
    """Blind; conflicts with nothing, may be repeated."""
    for row in rows:
        tr[row] = b""


class Book:
    """What one process has yet to write into the ledger. Its threads share it."""

    def __init__(self, db: fdbqueue.Database, ledger: Ledger, process: str) -> None:
        self._db = db
        self._ledger = ledger
        self._process = process
        self._rows: deque[bytes] = deque()
        ledger.open_book(db, process)

    def produced(self, item: ItemId) -> None:
        self._add(self._ledger.produced_row(item))

    def doubtful(self, item: ItemId) -> None:
        self._add(self._ledger.doubtful_row(item))

    def consumed(self, item: ItemId) -> None:
        self._add(self._ledger.consumed_row(item, self._db.runtime.random_bytes(8)))

    def write(self) -> None:
        """Write the remaining rows."""
        while self._rows:
            self._write()

    def close(self) -> None:
        """Write the remaining rows, as the final report of this process."""
        self.write()
        self._ledger.close_book(self._db, self._process)

    def _add(self, row: bytes) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_TOGETHER:
            self._write()

    def _write(self) -> None:
        # Each row goes to one thread, as popleft is atomic; one that cannot be written goes back.
        rows = list(islice(iter(self._pop, None), _ROWS_TOGETHER))
        try:
            write_rows(self._db, rows)
        except BaseException:
            self._rows.extend(rows)
            raise

    def _pop(self) -> bytes | None:
        try:
            return self._rows.popleft()
        except IndexError:
            return None


@dataclass
class Verdict:
    """The judgement of the ledger after all queues are drained."""

    produced: int = 0
    consumed: int = 0
    doubtful: int = 0
    lost: int = 0
    twice: int = 0
    unknown: int = 0
    """Deliveries of items that were never produced."""
    open_books: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Contradictions between the stored keys of the queues, which a verification found."""

    @property
    def holds(self) -> bool:
        # Of nothing, nothing can be lost: that would be no proof.
        wrong = self.lost or self.twice or self.unknown or self.open_books or self.findings
        return bool(self.produced) and not wrong

    def __str__(self) -> str:
        told = [
            f"{self.produced:,} items produced, {self.consumed:,} deliveries: "
            f"{self.lost:,} lost, {self.twice:,} delivered twice, {self.unknown:,} never produced"
        ]
        if not self.produced:
            told.append("nothing was produced: this run proves nothing")
        if self.doubtful:
            told.append(f"{self.doubtful:,} calls that produce failed: their items may be there, or not")
        if self.open_books:
            told.append(f"no final report from {', '.join(self.open_books)}: some of their work is unknown")
        if self.findings:
            told.append(f"{len(self.findings):,} findings of the verification")
        return "; ".join([*told, *self.examples, *self.findings[:_EXAMPLES]])

    def blame(self, what: str, item: ItemId) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{what}: {item}")


def judge(db: Any, ledger: Ledger) -> Verdict:
    """Compare the produced items with the deliveries. Reads all of it, a bounded part at a time."""
    doubtful = ledger.doubtful_items(db)
    verdict = Verdict(doubtful=len(doubtful), open_books=ledger.open_books(db))
    for item, produced, deliveries in merged(ledger.produced_items(db), ledger.consumed_items(db)):
        verdict.produced += produced
        verdict.consumed += deliveries
        if deliveries > 1:
            verdict.twice += 1
            verdict.blame("delivered twice", item)
        if not deliveries:
            verdict.lost += 1
            verdict.blame("lost", item)
        if not produced and item not in doubtful:
            verdict.unknown += 1
            verdict.blame("never produced", item)
    return verdict


def merged(produced: Iterator[ItemId], consumed: Iterator[ItemId]) -> Iterator[tuple[ItemId, bool, int]]:
    """Both, each in order, item by item: whether it was produced, and how often it was delivered."""
    made, got = next(produced, None), next(consumed, None)
    while made is not None or got is not None:
        item = min((known for known in (made, got) if known is not None), key=layer.pack)
        is_produced, deliveries = item == made, 0
        if is_produced:
            made = next(produced, None)
        while got == item:
            deliveries += 1
            got = next(consumed, None)
        yield item, is_produced, deliveries
