"""Versions that callers were given: each stays readable for the five seconds of a transaction.

On a cluster every version of the last five seconds can be read. LMDB keeps an old version only while a read
transaction is open at it, so this process keeps one open at each version that `get_read_version` or
`get_committed_version` has returned. The costs are bounded:

- Reader slots: one for each of the newest `_VERSIONS_MAX` versions. If the slots of the directory run out,
  the process gives the older half of these back.
- File growth: LMDB cannot reuse the pages that are freed after the oldest version that is kept. All versions
  end after five seconds. In a process that does nothing more, a thread ends them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdbqueue.embedded.snapshot import Snapshot
    from fdbqueue.embedded.store import Store

_VERSIONS_MAX = 64
_RELEASE_EVERY_S = 1.0


class HandedOutVersions:
    """The snapshots of versions that this process has handed out, oldest first."""

    def __init__(self, store: "Store") -> None:
        self._runtime = store.runtime
        # Only other processes can write while this one is idle, and a private store has no other process.
        self._needs_thread = not store.private
        self._lock = store.system.lock()
        self._kept: dict[int, Snapshot] = {}
        self._releasing = False
        self._closed = store.system.event()

    def keep(self, snapshot: "Snapshot") -> None:
        """Keep the version of `snapshot` readable until it expires or newer ones displace it."""
        with self._lock:
            if self._closed.is_set():
                return
            known = self._kept.pop(snapshot.version, snapshot)
            self._kept[snapshot.version] = max(known, snapshot, key=lambda one: one.expires_s)
            # The name keeps its last reference until the lock is released: dropping it ends an LMDB
            # transaction.
            displaced = self._kept.pop(next(iter(self._kept))) if len(self._kept) > _VERSIONS_MAX else None
            must_start, self._releasing = self._needs_thread and not self._releasing, True
        del known, displaced
        if must_start:
            self._start_releasing()

    def _start_releasing(self) -> None:
        try:
            self._runtime.spawn(self._release_until_empty, "fdbqueue-versions")
        except RuntimeError:  # at the limit of threads, or while the interpreter ends
            self._release(_VERSIONS_MAX)
            self._releasing = False

    def release_expired(self, now_s: float) -> None:
        """Release the versions that were handed out five seconds ago or earlier."""
        with self._lock:
            expired = [version for version, kept in self._kept.items() if kept.expires_s <= now_s]
            released = [self._kept.pop(version) for version in expired]
        del released

    def release_older_half(self) -> None:
        """Give reader slots back: the older half of the versions cannot be read any more."""
        self._release((1 + len(self._kept)) // 2)

    def release_all(self) -> None:
        """Release all versions, so that LMDB may reuse their pages."""
        self._release(_VERSIONS_MAX)

    def _release(self, count: int) -> None:
        with self._lock:
            released = [self._kept.pop(version) for version in list(self._kept)[:count]]
        del released

    def _release_until_empty(self) -> None:
        try:
            while not self._closed.wait(_RELEASE_EVERY_S):
                self.release_expired(self._runtime.monotonic())
                with self._lock:
                    if not self._kept:
                        self._releasing = False
                        return
        except BaseException:
            self._releasing = False  # so that the next version handed out starts another thread
            raise

    def close(self) -> None:
        """End all versions, and the thread."""
        self._closed.set()
        self._release(_VERSIONS_MAX)
