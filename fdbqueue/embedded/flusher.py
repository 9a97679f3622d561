"""Flushes the commits that may wait: a thread does it a moment after the first of them, and then ends.

A process that is killed in between leaves its commits to the system, or to the next flush of another process.
"""

from contextlib import closing, suppress
from typing import TYPE_CHECKING

import lmdb

from fdbqueue.embedded import commitlog
from fdbqueue.embedded.flush import FLUSH_SOON_S
from fdbqueue.embedded.journal import NOWHERE, JournalLost
from fdbqueue.errors import DatabaseClosed
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.store import Store


class Flusher:
    """The flushes that the commits of one process wait for. Any thread may call it."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._lock = store.system.lock()
        self._closed = store.system.event()
        self._is_due = False
        self._is_running = False
        self._flushing = store.system.lock()
        self.has_failed = False
        """True if a flush has failed: the journal is not believed any more."""

    def flush_soon(self) -> None:
        """Flush within `FLUSH_SOON_S`, unless another flush comes first."""
        with self._lock:
            self._is_due = True
            must_start, self._is_running = not self._is_running, True
        if must_start:
            self._start()

    def _start(self) -> None:
        try:
            self._store.runtime.spawn(self._run, "fdbqueue-flush")
        except RuntimeError:  # at the limit of threads, or while the interpreter ends
            self._is_running = False
            self._flush()

    def flushed(self) -> None:
        """Note that another flush has come first."""
        self._is_due = False

    def _run(self) -> None:
        try:
            while not self._closed.wait(FLUSH_SOON_S):
                if self._is_due:
                    self._flush()
                with self._lock:
                    if not self._is_due:
                        self._is_running = False
                        return
        except BaseException:
            self._is_running = False  # so that the next commit starts another thread
            raise

    def _flush(self) -> None:
        with self._flushing:  # before it is not due any more, since `close` has to wait for this flush
            if not self._is_due:
                return
            self._is_due = False  # before the flush: a commit that comes meanwhile needs the next one
            try:
                self._flush_newest()
            except BaseException:
                self._is_due = True
                raise

    def _flush_newest(self) -> None:
        generation = self._store.newest_place().generation
        try:
            with closing(self._store.new_journal()) as journal:
                journal.flush(generation)
        except JournalLost:
            self.has_failed = True
            self._tell_others(generation)

    def _tell_others(self, generation: int) -> None:
        """Note in the commit log that the journal is lost, unless the disk is broken or full, or a leader has
        begun another journal meanwhile.
        """
        with suppress(lmdb.Error, FDBError, DatabaseClosed), self._store.begin(write=True) as txn:
            if commitlog.last_place(txn).generation == generation:
                commitlog.note_place(txn, NOWHERE, self._store.runtime.now_us())

    def close(self) -> None:
        """Flush what is due, and end the thread; this waits for a flush, which uses the directory."""
        self._closed.set()
        if self._is_due:
            self._flush()
        with self._flushing:
            pass
