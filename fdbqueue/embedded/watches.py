"""Watches: the watched keys of one process, and the futures that wait for a change of them.

A watch fires when the value of its key differs from the value that its transaction saw. A commit of this
process looks at the watched keys that it wrote. A commit of another process sends a ring (doorbell.py). After
a ring, a process with few watches looks at all their keys; with many, it reads in the commit log which of
them were written. A watch is armed first and its key is looked at second, so no change falls between the two.
"""

import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from fdbqueue import limits
from fdbqueue.embedded import commitlog, layout
from fdbqueue.embedded.commitlog import Written
from fdbqueue.embedded.doorbell import Doorbell
from fdbqueue.embedded.futures import PendingFuture
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.store import Store


_KEYS_KEPT = 64  # empty entries before they are dropped; a doubling bound keeps the cost per watch constant


class Watches:
    """The watches of one process on one store."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._lock = store.system.lock()
        self._by_key: dict[bytes, dict[int, tuple[weakref.ref[PendingFuture], bytes | None]]] = {}
        self._keys_max = _KEYS_KEPT
        self._seen_version = 0
        self.doorbell = (
            None if store.private else Doorbell(store.directory, store.runtime, self._rung, store.system)
        )

    def arm(self, key: bytes, expected: bytes | None, future: PendingFuture) -> None:
        """Complete `future` once the value of `key` is no longer `expected`."""
        with self._lock:
            if self.doorbell is not None and not self._by_key:
                # Before any key is in the table, so a change that its first look misses has a later version.
                self._seen_version = max(self._seen_version, self._newest_version())
            self._drop_empty()
            if key not in self._by_key:
                self._by_key[key] = {}
                if self.doorbell is not None:
                    self.doorbell.watch(key)
            self._by_key[key][id(future)] = (weakref.ref(future), expected)
        if self.doorbell is not None:
            self.doorbell.listen()
        self._look([key])

    def disarm(self, key: bytes, future_id: int) -> None:
        # A destructor calls it, at any allocation: so one dict operation, and no lock.
        waiting = self._by_key.get(key)
        if waiting is not None:
            waiting.pop(future_id, None)

    def _drop_empty(self) -> None:
        if len(self._by_key) < self._keys_max:
            return
        for key in [key for key, waiting in self._by_key.items() if not waiting]:
            self._drop(key)
        self._keys_max = 2 * len(self._by_key) + _KEYS_KEPT

    def _drop(self, key: bytes) -> None:
        if self._by_key.pop(key, None) is not None and self.doorbell is not None:
            self.doorbell.unwatch(key)

    def notify(self, written: Written) -> None:
        """After a commit, look at the watched keys that it wrote, and ring the other processes."""
        if self._by_key:
            self._look(self._watched(written))
        if self.doorbell is not None:
            self.doorbell.ring(written.keys)

    def _watched(self, written: Written) -> list[bytes]:
        return [key for key in list(self._by_key) if key in written.conflicts or key in written.silent]

    def _look(self, keys: Collection[bytes]) -> None:
        if not keys:
            return
        try:
            with self._store.begin() as txn:
                values = {key: layout.get(txn, key) for key in keys}
        except FDBError as error:  # for example no reader slot; the commit itself has happened
            for key in keys:
                for future in self._take_out(key, lambda _: True):
                    future.complete(error=FDBError(error.code))
        else:
            self._complete(values)

    def _complete(self, values: dict[bytes, bytes | None]) -> None:
        for key, value in values.items():
            for future in self._take_out(key, lambda expected, value=value: expected != value):  # type: ignore[misc]
                future.complete()

    def _take_out(self, key: bytes, which: Callable[[bytes | None], bool]) -> list[PendingFuture]:
        """Remove the watches of `key` from the table if `which(expected value)` is true; return them."""
        with self._lock:
            waiting = self._by_key.get(key, {})
            changed = [i for i, (_, expected) in list(waiting.items()) if which(expected)]
            found = [waiting.pop(i, None) for i in changed]  # None: disarmed since, without the lock
            if not waiting:
                self._drop(key)
        futures = [entry[0]() for entry in found if entry is not None]
        return [future for future in futures if future is not None]

    def _rung(self) -> None:
        """Look at the watched keys, since another process may have written one."""
        if not self._by_key:
            return
        with self._store.begin() as txn:
            values = {key: layout.get(txn, key) for key in self._worth_a_look(txn)}
            self._seen_version = txn.id()
        self._complete(values)

    def _worth_a_look(self, txn: layout.Txn) -> Collection[bytes]:
        keys = list(self._by_key)
        if len(keys) <= limits.WATCHED_KEYS_LOOKED_AT_MAX:
            return keys
        oldest = commitlog.oldest_version(txn)
        if oldest is None or oldest > self._seen_version + 1:
            return keys  # the log no longer reaches back
        written = commitlog.read_since(txn, self._seen_version)
        return {key for commit in written for key in self._watched(commit)}

    def _newest_version(self) -> int:
        with self._store.begin() as txn:
            version: int = txn.id()
            return version

    def close(self) -> None:
        """Cancel all watches: no commit is seen any more."""
        waiting = [entry[0]() for watches in list(self._by_key.values()) for entry in list(watches.values())]
        for future in waiting:
            if future is not None:
                future.cancel()
        if self.doorbell is not None:
            self.doorbell.close()

    def let_go(self) -> None:
        """Close this process's copies in a forked child, and leave the parent's watches alone."""
        if self.doorbell is not None:
            self.doorbell.let_go()
