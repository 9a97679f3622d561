"""What the demo keeps in the database, beside its queue.

D["queue", ...]        the queue of paths
D["file", path]        (digest, lines), written in the transaction that takes the path
D["times", path]       how often that happened, an atomic add: the proof of "once"
D["files"]             how many files were counted, an atomic add
D["lines"]             how many lines they have, an atomic add
D["work", worker]      (items, conflicts, retries, began, ended) of one process
D["producing"]         there as long as more paths may come
D["bell"]              changes with every put, for those who found nothing
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.queue import Queue
from fdbqueue.seam import Future, Transaction

_ONE = struct.pack("<q", 1)


@dataclass(frozen=True)
class Counted:
    """What one file came to."""

    digest: bytes
    lines: int


@dataclass
class Work:
    """What one process did. Times are runtime.monotonic(), which the processes of a machine share."""

    items: int = 0
    conflicts: int = 0
    retries: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0


class Ledger:
    def __init__(self, space: Subspace) -> None:
        self._space = space
        self.queue = Queue(space["queue"], root=space["root"])

    def open(self, tr: Transaction) -> None:
        tr[self._space["producing"]] = b""

    def no_more(self, tr: Transaction) -> None:
        """No path comes any more; wakes those who wait for one."""
        tr.clear(self._space["producing"].key())
        tr.add(self._space["bell"], _ONE)

    def put(self, tr: Transaction, paths: list[str]) -> None:
        self.queue.enqueue_many(tr, paths)
        tr.add(self._space["bell"], _ONE)

    def next_or_watch(self, tr: Transaction) -> str | Future | None:
        """The next path; else a watch, to wait for one; else None: there will be none."""
        path: str | None = self.queue.dequeue(tr)
        if path is not None:
            return path
        return tr.watch(self._space["bell"]) if tr[self._space["producing"]].present() else None

    def count(self, tr: Transaction, path: str, counted: Counted) -> None:
        tr[self._space["file"][path]] = layer.pack((counted.digest, counted.lines))
        tr.add(self._space["times"][path], _ONE)
        tr.add(self._space["files"], _ONE)
        tr.add(self._space["lines"], struct.pack("<q", counted.lines))

    def note(self, tr: Transaction, worker: str, work: Work) -> None:
        tr[self._space["work"][worker]] = layer.pack(
            (work.items, work.conflicts, work.retries, work.began_s, work.ended_s)
        )

    def progress(self, tr: Transaction) -> tuple[int, int]:
        """How many files are counted, and how many wait."""
        return _number(tr[self._space["files"]].value), self.queue.size(tr)

    def lines(self, tr: Transaction) -> int:
        return _number(tr[self._space["lines"]].value)

    def work(self, tr: Transaction) -> dict[str, Work]:
        return {path: Work(*layer.unpack(value)) for path, value in self._entries(tr, "work")}

    def files(self, tr: Transaction) -> dict[str, Counted]:
        return {path: Counted(*layer.unpack(value)) for path, value in self._entries(tr, "file")}

    def times(self, tr: Transaction) -> dict[str, int]:
        return {path: _number(value) for path, value in self._entries(tr, "times")}

    def erase(self, tr: Transaction) -> None:
        everything = self._space.range()
        tr.clear_range(everything.start, everything.stop)

    def _entries(self, tr: Transaction, column: str) -> Iterator[tuple[Any, bytes]]:
        space = self._space[column]
        inside = space.range()
        for entry in tr.get_range(inside.start, inside.stop):
            yield space.unpack(entry.key)[0], entry.value


def _number(value: bytes | None) -> int:
    number: int = struct.unpack("<q", value)[0] if value is not None else 0
    return number
