"""The parts that the faces for frameworks share: databases, the program's transaction, queues by name, stored
results.

The database of a broker or a backend is opened at its first use in a process, and open until its end. A
program declares its tasks as it is imported, and may fork after that; an import should not wait for a
cluster. The embedded engine goes on in a forked child. The client library of a cluster does not: its calls
would wait for ever.

`Within` is the transaction of the program, in which a block of code puts its messages.

`QueueMap` has the task queues of an adapter, by the names that its framework knows, and the options of their
tasks.

Stored results are values by name, each with an end. A wait for them is a watch, and polls nothing. Each store
removes some results that have ended, so no process has to clean up. This is the only file that builds or
parses their keys (root_keys.py knows their shapes), which are below R["results"]. A `space` tells the results
of one framework from those of another. The comment of a column has its parts and its value, bytes, and behind
the semicolon its readers.

`ends_us` is 0 for a result without an end. A value above limits.PAYLOAD_PIECE_BYTES_MAX lies in n pieces;
otherwise n is 0.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload
from fdbqueue.core.codec import pieces_of
from fdbqueue.core.columns import Table
from fdbqueue.core.database import Database, as_database, run
from fdbqueue.core.errors import QueueNotFound, heals
from fdbqueue.core.once import run_once
from fdbqueue.core.open import open as open_database
from fdbqueue.core.open import url_from_environment
from fdbqueue.core.root_keys import DEFAULT_ROOT, RESULTS, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase, Future, ReadTransaction, Transaction
from fdbqueue.tasks.queue import TaskQueue

Place = str | AnyDatabase | None
"""A URL for `fdbqueue.open`, an open database, or None for the database of the environment."""


class Opening:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = RealRuntime.lock()
        self._opened: Database | None = None
        self._is_cluster = False
        _all.add(self)

    def database(self) -> Database:
        """Raises: ClusterForked in a child of a process that had opened a cluster; as fdbqueue.open."""
        if self._place is not None and not isinstance(self._place, str):
            return as_database(self._place)
        with self._lock:
            if self._opened is None:
                url = url_from_environment() if self._place is None else self._place
                self._opened, self._is_cluster = open_database(url), url.startswith("fdb:")
            return self._opened

    def close(self) -> None:
        """Close the database that was opened here. The next use opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def after_fork(self) -> None:
        """A thread of the parent may hold the lock for ever. To open a cluster again is refused."""
        self._lock = RealRuntime.lock()
        if self._is_cluster:
            self._opened = None


_all: "WeakSet[Opening]" = WeakSet()


def _after_fork_in_child() -> None:
    for opening in list(_all):
        opening.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def passing_what_does_not_heal() -> Iterator[None]:
    """Around the end of a connection or a session, which such an error has ended already."""
    try:
        yield
    except Exception as error:
        if heals(error):
            raise


class Within:
    """The blocks of one broker, in each thread and each task of asyncio."""

    def __init__(self) -> None:
        self._current: ContextVar[Any] = ContextVar("fdbqueue_transaction", default=None)

    @contextmanager
    def block(self, tr: Any) -> Iterator[None]:
        """Put the messages that this block sends within `tr`: they are there if and only if `tr` commits.
        `tr` is a transaction of the database of the broker. The block may run again, with the whole body of
        `tr`: then the messages of the earlier run are gone, and the new ones have new ids.
        """
        token = self._current.set(tr)
        try:
            yield
        finally:
            self._current.reset(token)

    def current(self) -> Any:
        """The transaction of the block around the caller; None outside."""
        return self._current.get()


T = TypeVar("T")

KIND = "fifottl"
"""The kind of a new queue: with priorities and delays."""

PRIORITY_MAX = 255
"""The highest priority of a message, as in AMQP; a queue has the lowest number first."""


class QueueMap:
    """Handles of queues. A queue that is missing, or was dropped, is made at its next use."""

    def __init__(
        self,
        database: Callable[[], Database],
        namespace: str = "",
        codec: str = "json",
        *,
        require: Callable[[TaskQueue], object] | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """`namespace`: the queue `mails` is the task queue `NAMESPACE.mails`, or without one `mails`.
        `require` raises for a queue that cannot be used; None: only one with the options of a new queue can.
        """
        self.database = database
        self._prefix = f"{namespace}." if namespace else ""
        self._codec = codec
        self._require = require
        self._root = root
        self._known: dict[tuple[Database, str], TaskQueue] = {}

    def made(self, name: str, tr: Transaction | None = None) -> TaskQueue:
        """The queue of that name, created if there is none. In a transaction of the program, a new queue is
        part of it, and not remembered, as it may not commit. Raises: the errors of `require`.
        """
        known = self._known.get((self.database(), name))
        if known is not None:
            return known
        if_not_exists: Any = True if self._require is None else "any"
        queue = TaskQueue.create(
            tr or self.database(),
            self._prefix + name,
            KIND,
            codec=self._codec,
            if_not_exists=if_not_exists,
            root=self._root,
        )
        queue = queue._on(self.database())  # its threads are those of our database, and end with it
        return self._checked(queue) if tr is not None else self._remembered(name, queue)

    def there(self, name: str) -> TaskQueue:
        """Raises: QueueNotFound; the errors of `require`."""
        database = self.database()
        return self._known.get((database, name)) or self._remembered(
            name, TaskQueue.open(database, self._prefix + name, root=self._root)
        )

    def use(self, name: str, verb: Callable[[TaskQueue], T], tr: Transaction | None = None) -> T:
        """Call `verb` with the queue; again with a new one if it was dropped meanwhile."""
        try:
            return verb(self.made(name, tr))
        except QueueNotFound:
            self.forget(name)
            return verb(self.made(name, tr))

    def forget(self, *names: str) -> None:
        """Open the queues again at their next use."""
        for name in names:
            self._known.pop((self.database(), name), None)

    def _remembered(self, name: str, queue: TaskQueue) -> TaskQueue:
        self._known[self.database(), name] = self._checked(queue)
        return queue

    def _checked(self, queue: TaskQueue) -> TaskQueue:
        if self._require is not None:
            self._require(queue)
        return queue


S = Table()
RESULT = S.packed(0, str, bytes)  # space, name: ends_us, n, value; waits for the result
PIECE = S.packed(0, str, bytes, int)  # space, name, number: a piece; with the result
ENDS = S.packed(1, str)
END = S.packed(1, str, int, bytes)  # space, ends_us, name: empty; each store in the space
_HEAD = struct.Struct("<QI")  # the tuple layer would double each zero byte of a value


class ResultKeys:
    """The keys of one space under the subspace `root`."""

    def __init__(self, root: Any, space: str) -> None:
        prefix = root.pack((RESULTS,))
        self.result: Callable[[bytes], bytes] = partial(RESULT.key(prefix), space)
        self.pieces: Callable[[bytes], slice] = partial(RESULT.under(prefix), space)
        self.piece: Callable[[bytes, int], bytes] = partial(PIECE.key(prefix), space)
        self.end: Callable[[int, bytes], bytes] = partial(END.key(prefix), space)
        self.name_of = END.last(prefix)
        self._first_end = ENDS.under(prefix)(space).start

    def ends_until(self, time_us: int) -> slice:
        return slice(self._first_end, self.end(time_us + 1, b""))


def stored(ends_us: int, pieces: int, value: bytes) -> bytes:
    return _HEAD.pack(ends_us, pieces) + value


def stored_parts(value: bytes) -> tuple[int, int, bytes]:
    """The end of a result, its number of pieces, and its value if it has none."""
    return *_HEAD.unpack_from(value), bytes(value[_HEAD.size :])


SWEPT = 4
"""Ended values that one write removes: twice the number that a busy program adds."""


class Store:
    """The values of one space, in a transaction of the caller. One that has ended counts as missing."""

    def __init__(self, space: str, root: Any = DEFAULT_ROOT) -> None:
        self._keys = ResultKeys(root, space)

    def ask(self, tr: ReadTransaction, name: bytes, now_us: int) -> Callable[[], bytes | None]:
        """Ask for a value: the returned function waits for it. None: it is not there, or has ended."""
        asked = tr.get(self._keys.result(name))
        return lambda: self._value_in(tr, name, asked.value, now_us)

    def watch(self, tr: Transaction, name: bytes) -> Future:
        return tr.watch(self._keys.result(name))

    def write(self, tr: Transaction, name: bytes, value: bytes, ends_us: int) -> None:
        """Store a value until `ends_us`, 0 for ever. Conflicts: its change."""
        self.clear(tr, name)
        pieces = list(pieces_of(value)) if len(value) > limits.PAYLOAD_PIECE_BYTES_MAX else []
        tr.set(self._keys.result(name), stored(ends_us, len(pieces), b"" if pieces else value))
        for number, piece in enumerate(pieces):
            tr.set(self._keys.piece(name, number), piece)
        if ends_us:
            tr.set(self._keys.end(ends_us, name), b"")

    def clear(self, tr: Transaction, name: bytes) -> None:
        """Remove a value, with its end. Conflicts: its change."""
        found = tr.get(self._keys.result(name)).value
        if found is not None:
            self._clear(tr, name, found)

    def sweep(self, tr: Transaction, now_us: int) -> None:
        """Remove the first values that have ended. Conflicts: a change of one of them."""
        under = self._keys.ends_until(now_us)
        for row in tr.snapshot.get_range(under.start, under.stop, limit=SWEPT).to_list():
            name = self._keys.name_of(row.key)
            tr.clear(row.key)
            found = tr.get(self._keys.result(name)).value
            if found is not None and 0 < stored_parts(found)[0] <= now_us:
                self._clear(tr, name, found)

    def _clear(self, tr: Transaction, name: bytes, found: bytes) -> None:
        ends_us, pieces, _ = stored_parts(found)
        tr.clear(self._keys.result(name))
        if pieces:
            under = self._keys.pieces(name)
            tr.clear_range(under.start, under.stop)
        if ends_us:
            tr.clear(self._keys.end(ends_us, name))

    def _value_in(self, tr: ReadTransaction, name: bytes, found: bytes | None, now_us: int) -> bytes | None:
        if found is None:
            return None
        ends_us, pieces, value = stored_parts(found)
        if ends_us and ends_us <= now_us:
            return None
        if not pieces:
            return value
        under = self._keys.pieces(name)
        return b"".join(bytes(row.value) for row in tr.get_range(under.start, under.stop, limit=pieces))


Names = Sequence[bytes]

WATCHED = 100
"""Results that a wait looks at and watches at a time."""

LOOK_S = 10.0
"""The longest sleep of a wait, as a database may refuse further watches."""


class Results:
    def __init__(self, database: Database, space: str, root: Any = DEFAULT_ROOT) -> None:
        """`space`: tells the results of one framework from those of another."""
        self._database = database
        self._root = root
        self._store = Store(space, root)

    def store(
        self, name: bytes, value: bytes, ttl_s: float | None, keeps: Callable[[bytes], bool] | None = None
    ) -> None:
        """Store a value for `ttl_s`, None for ever. `keeps(value)`: true if the stored value stays."""
        checked_payload(value)

        def body(tr: Transaction) -> None:
            now_us = self._database.runtime.now_us()
            self._store.sweep(tr, now_us)
            if keeps is not None:
                found = self._store.ask(tr, name, now_us)()
                if found is not None and keeps(found):
                    return
            self._store.write(tr, name, value, _end_us(now_us, ttl_s))

        run(self._database, body)

    def get(self, names: Names) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(names), WATCHED):
            found += run(self._database, partial(self._values, names=names[start : start + WATCHED]))
        return found

    def expire(self, name: bytes, ttl_s: float | None) -> None:
        """Give a value another end. Reads: the value. Conflicts: its change."""

        def body(tr: Transaction) -> None:
            now_us = self._database.runtime.now_us()
            found = self._store.ask(tr, name, now_us)()
            if found is not None:
                self._store.write(tr, name, found, _end_us(now_us, ttl_s))

        run(self._database, body)

    def take(self, name: bytes) -> bytes | None:
        """The value, which is removed: one of the calls at the same moment gets it, and the others None."""

        def body(tr: Transaction) -> bytes | None:
            found = self._store.ask(tr, name, self._database.runtime.now_us())()
            self._store.clear(tr, name)
            return found

        return run_once(self._database, RootKeys(self._root), body)

    def delete(self, name: bytes) -> None:
        run(self._database, lambda tr: self._store.clear(tr, name))

    def wait(
        self,
        names: Names,
        is_ready: Callable[[bytes], bool],
        timeout_s: float | None,
        tick: Callable[[], object] | None = None,
        tick_s: float = LOOK_S,
    ) -> dict[bytes, bytes]:
        """The values that are ready, of the first WATCHED of `names`; waits up to `timeout_s` for the first.
        May return none before that time is over: then the caller looks again. Calls `tick` every `tick_s`.
        """
        few = list(names[:WATCHED])
        values, watches = run(self._database, lambda tr: self._look(tr, few, is_ready))
        try:
            if not values:
                self._sleep(watches, LOOK_S if timeout_s is None else min(LOOK_S, timeout_s), tick, tick_s)
        finally:  # a watch with a callback outlives its last reference
            for watch in watches:
                watch.cancel()
        return values

    def wait_for(self, name: bytes, timeout_s: float | None) -> bytes | None:
        """The value, as soon as there is one; None after `timeout_s`, which is None for ever."""
        clock = self._database.runtime.monotonic
        until = None if timeout_s is None else clock() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - clock())
            ready = self.wait([name], lambda _: True, left_s)
            if ready or left_s == 0:
                return ready.get(name)

    def _sleep(
        self, watches: Sequence[Future], patience_s: float, tick: Callable[[], object] | None, tick_s: float
    ) -> None:
        """Wait for one of the watches. Raises: DatabaseClosed; the errors of `tick`."""
        runtime = self._database.runtime
        until = runtime.monotonic() + patience_s
        with self._database.waiter() as waiter:
            while (left := until - runtime.monotonic()) > 0:
                woken = runtime.wait_any([*watches, waiter], left if tick is None else min(left, tick_s))
                waiter.check()
                if woken:
                    return
                if tick is not None:
                    tick()

    def _look(
        self, tr: Transaction, names: Names, is_ready: Callable[[bytes], bool]
    ) -> tuple[dict[bytes, bytes], list[Future]]:
        found = dict(zip(names, self._values(tr, names), strict=True))
        ready = {name: value for name, value in found.items() if value is not None and is_ready(value)}
        watches = [] if ready else [self._store.watch(tr, name) for name in names]
        return ready, watches

    def _values(self, tr: Transaction, names: Names) -> list[bytes | None]:
        now_us = self._database.runtime.now_us()
        asked = [self._store.ask(tr.snapshot, name, now_us) for name in names]
        return [value() for value in asked]


def _end_us(now_us: int, ttl_s: float | None) -> int:
    return 0 if ttl_s is None else now_us + round(ttl_s * 1_000_000)
