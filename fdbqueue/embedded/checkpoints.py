"""Checkpoints: the full generation of the journal goes into the base, and its file is free again.

The process that has filled a generation makes the checkpoint, once the callers of its last commit have
their answers: other threads and processes go on in the next generation. If the process dies, the next one
that needs a free file makes it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import lmdb

from fdbqueue.embedded import base as bases
from fdbqueue.embedded.base import BrokenChain
from fdbqueue.embedded.journal import Entry, Journal
from fdbqueue.embedded.users import Users
from fdbqueue.errors import DatabaseClosed
from fdbqueue.fdberror import FDBError

if TYPE_CHECKING:
    from fdbqueue.embedded.store import Store

_TRIES = 4  # within the size of a generation


class Checkpoints:
    """The checkpoints that one process makes. Any thread may call it."""

    def __init__(self, store: "Store", users: Users, generation_bytes: int) -> None:
        self._store = store
        self._users = users
        self._lock = store.system.lock()  # beside the byte lock, which does not tell threads apart
        self._is_due = self._is_closed = False
        self._generation_bytes = self._due_bytes = generation_bytes
        self.has_failed = False
        """True if the last one found no room, or a broken disk."""
        self.chain_is_broken = False
        """True if a record is missing that commits rely on: the base has to be copied anew."""

    def note(self, entry: Entry) -> None:
        """Look at a record that was written; for the leader."""
        if entry.start == 0:
            self._due_bytes = self._generation_bytes
        self._is_due = self._is_due or entry.start == 0 or entry.end.end >= self._due_bytes
        if entry.end.end >= self._due_bytes:
            self._due_bytes = entry.end.end + self._generation_bytes // _TRIES

    def make_due(self) -> None:
        """Make a checkpoint if one is due, and no other thread or process makes it."""
        if self._is_due and self._lock.acquire(blocking=False):
            try:
                self._make_alone()
            finally:
                self._lock.release()

    def make_room(self) -> None:
        """Make a checkpoint now; this waits for one that another thread makes."""
        with self._lock:
            self._make_alone()

    def close(self) -> None:
        """Begin no other checkpoint; this waits for the end of one, which uses the directory."""
        with self._lock:
            self._is_closed = True

    @contextmanager
    def kept_out(self) -> Iterator[None]:
        """Let no thread or process make a checkpoint meanwhile; this waits for the end of one."""
        with self._lock:
            self._users.begin_checkpoint()
            try:
                yield
            finally:
                self._users.end_checkpoint()

    def _make_alone(self) -> None:
        if self._is_closed or not self._users.try_checkpoint():
            return
        try:
            self._is_due = False
            with suppress(DatabaseClosed, FDBError):  # no snapshot can be taken now; the commit has happened
                self._make(self._store.newest_place().generation)
                self.has_failed = False
        except (OSError, lmdb.Error):
            # Without room, or on a broken disk, the journal grows, and the next try is at a larger size.
            self.has_failed = True
        finally:
            self._users.end_checkpoint()

    def _make(self, current: int) -> None:
        with closing(self._store.new_journal()) as journal:
            for generation in journal.generations():
                if generation < current:
                    self._add(journal, generation)

    def _add(self, journal: Journal, generation: int) -> None:
        directory = self._store.directory
        with bases.opened(directory, self._store.system) as base:
            try:
                base.add(journal, generation)
            except BrokenChain:
                self.chain_is_broken = True
                return
            bases.allocate(directory, base, journal.generation_bytes)
        journal.free(generation)
