"""Common parts of the tests of queues: requests of a line, unknown results, counted reads and writes."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

from fdbqueue import Queue
from fdbqueue.core.database import Database
from fdbqueue.core.line.decision import Ticket
from fdbqueue.core.line.staging import Line
from fdbqueue.core.runtime import RealRuntime, Runtime, Thread
from tests.support import CLUSTER_VERSION_CHANGED, COMMIT_UNKNOWN, NOT_COMMITTED, PATIENCE_S, IdleThread

Fate = Callable[[int], tuple[int, bool]]
"""For the number of a commit: an error code or 0, and whether it takes place."""


def in_turn(*fates: tuple[int, bool]) -> Fate:
    """The fates of one commit after the other, again and again."""
    return lambda n: fates[(n - 1) % len(fates)]


_DONE, _CONFLICT = (0, True), (NOT_COMMITTED, False)
_UNKNOWN_DONE, _UNKNOWN_NOT_DONE = (COMMIT_UNKNOWN, True), (COMMIT_UNKNOWN, False)

FATES: dict[str, Fate] = {
    "unknown, committed": in_turn(_UNKNOWN_DONE, _DONE),
    "unknown, not committed": in_turn(_UNKNOWN_NOT_DONE, _DONE, _DONE),
    "unknown, either way, twice": in_turn(_UNKNOWN_DONE, _UNKNOWN_NOT_DONE, _DONE),
    "conflict": in_turn(_CONFLICT, _DONE),
    "conflict, then unknown, committed": in_turn(_CONFLICT, _UNKNOWN_DONE, _DONE),
    "conflict, then unknown, not committed": in_turn(_CONFLICT, _UNKNOWN_NOT_DONE, _DONE, _DONE),
    "unknown, not committed, then conflict": in_turn(_UNKNOWN_NOT_DONE, _CONFLICT, _DONE, _DONE),
}
"""Commits that fail again and again: every call has its effect once all the same.

A take that is tried again after an unknown result first looks after the earlier attempt, by a commit of its
own. So one that has not committed is followed by two that do, or no take would ever end.
"""

QUEUE_CALLS: dict[str, Callable[[Queue, Any], Any]] = {
    "empty": lambda queue, tr: queue.empty(tr),
    "size": lambda queue, tr: queue.size(tr),
    "peek": lambda queue, tr: queue.peek(tr),
    "items": lambda queue, tr: queue.items(tr, 9),
    "dequeue": lambda queue, tr: queue.dequeue(tr),
    "dequeue_many": lambda queue, tr: queue.dequeue_many(tr, 9),
    "enqueue": lambda queue, tr: queue.enqueue(tr, 1),
    "enqueue_many": lambda queue, tr: queue.enqueue_many(tr, [1, 2]),
    "give_back": lambda queue, tr: queue.give_back(tr, [1]),
    "clear": lambda queue, tr: queue.clear(tr),
}
"""The calls of a queue, in a transaction or not."""


def registered(db: Any, line: Line, rid: bytes, now_us: int, count: int = 1, params: bytes = b"") -> Ticket:
    """A place in a line."""
    return registered_by(db.create_transaction(), line, rid, now_us, count, params)


def registered_by(
    tr: Any, line: Line, rid: bytes, now_us: int, count: int = 1, params: bytes = b""
) -> Ticket:
    line.register(tr, rid, count, params, now_us)
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    return Ticket(bytes(stamp.wait()), rid, count, params)


class CountingTransaction:
    """A transaction of an engine that injects results of commits and counts keys."""

    def __init__(self, owner: "FaultyEngine") -> None:
        self._owner = owner
        self._tr = owner.engine.create_transaction()

    @property
    def snapshot(self) -> "CountingSnapshot":
        return CountingSnapshot(self._owner, self._tr.snapshot)

    def get_range(self, *args: Any, **kwargs: Any) -> "CountingRange":
        return CountingRange(self._owner, self._tr.get_range(*args, **kwargs))

    def set(self, key: Any, value: Any) -> None:
        self._owner.written += 1
        self._tr.set(key, value)

    def clear(self, key: Any) -> None:
        self._owner.written += 1
        self._tr.clear(key)

    def commit(self) -> Any:
        return FatedCommit(self._owner, self._tr)

    def on_error(self, error: Any) -> Any:
        """Go on after 1039 as a client does that meets it: it has the libraries of two releases."""
        if error.code != CLUSTER_VERSION_CHANGED:
            return self._tr.on_error(error)
        self._tr = self._owner.engine.create_transaction()
        return self._tr.get_read_version()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)


class CountingSnapshot:
    def __init__(self, owner: "FaultyEngine", snapshot: Any) -> None:
        self._owner = owner
        self._snapshot = snapshot

    def get_range(self, *args: Any, **kwargs: Any) -> "CountingRange":
        return CountingRange(self._owner, self._snapshot.get_range(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._snapshot, name)


class CountingRange:
    def __init__(self, owner: "FaultyEngine", found: Any) -> None:
        self._owner = owner
        self._found = found

    def __iter__(self) -> Iterator[Any]:
        for row in self._found:
            self._owner.read += 1
            yield row

    def to_list(self) -> list[Any]:
        return list(self)


class FatedCommit:
    """A commit that may fail before, or after, it has taken place."""

    def __init__(self, owner: "FaultyEngine", tr: Any) -> None:
        self._owner = owner
        self._tr = tr

    def wait(self) -> None:
        owner = self._owner
        owner.read_most, owner.read = max(owner.read_most, owner.read), 0
        owner.written_most, owner.written = max(owner.written_most, owner.written), 0
        owner.commits += 1
        code, after = owner.fate(owner.commits)
        if code and not after:
            raise owner.error(code)
        self._tr.commit().wait()
        if code:
            raise owner.error(code)


class FaultyEngine:
    """An engine's database that decides the fate of each commit: (error code or 0, whether it committed)."""

    def __init__(self, engine: Any, error: type[Exception]) -> None:
        self.engine = engine
        self.error = error
        self.fate: Fate = lambda _: (0, True)
        self.commits = self.read = self.written = self.read_most = self.written_most = 0

    def create_transaction(self) -> CountingTransaction:
        return CountingTransaction(self)


class Quiet(RealRuntime):
    """Starts no keeper, because its commits would be counted."""

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        return IdleThread() if name == "fdbqueue-keeper" else super().spawn(target, name)


def faulty(
    db: Database, error: type[Exception], runtime: Runtime | None = None
) -> tuple[Database, FaultyEngine]:
    """Another Database on the same engine, and the handle on its commits."""
    engine = FaultyEngine(db.engine, error)
    return Database(engine, runtime or Quiet()), engine  # type: ignore[arg-type]  # options are never asked for


def most(engine: FaultyEngine, call: Callable[[], Any]) -> tuple[int, int]:
    """The most keys that one transaction of `call` has read in ranges, and written."""
    engine.read_most = engine.written_most = engine.read = engine.written = 0
    call()
    return engine.read_most, engine.written_most


def in_threads(count: int, body: Callable[[int], object]) -> None:
    """Run `body(number)` in `count` threads at once, and wait for them."""
    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(7 * PATIENCE_S)  # the long versions take minutes
        assert not thread.is_alive()
