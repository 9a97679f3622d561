"""Makes the commits of a store durable: each is in the journal before LMDB has it, and others see it.

A leader calls these methods in this order, within one LMDB transaction:

    entry = record(...)        the record of the commit; its place in the journal is stored with the commit
    write(entry, flush)        the commit is durable, or will be
    committed(entry, flush)    LMDB has it; after a failure, `failed` takes the record back

If a flush fails, the kernel may have dropped changes, and a second flush succeeds all the same. So nothing in
that journal is believed any more: the next leader copies all data into a new base, and begins a new journal.

Commits may wait for their flush: a thread does it a moment after the first of them, and then ends. A process
that is killed in between leaves its commits to the system, or to the next flush of another process.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

import lmdb

from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded import base as bases
from fdbqueue.embedded import commitlog
from fdbqueue.embedded.base import Checkpoints, Held
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import NOWHERE, Entry, JournalLost, Place, Writes
from fdbqueue.embedded.request import FLUSH_SOON_S, Flush
from fdbqueue.embedded.users import Users


class Flusher:
    """The flushes that the commits of one process wait for. Any thread may call it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = environment.system.lock()
        self._closed = environment.system.event()
        self._is_due = False
        self._is_running = False
        self._flushing = environment.system.lock()
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
            self._environment.runtime.spawn(self._run, "fdbqueue-flush")
        except RuntimeError:  # at the limit of threads, or while the interpreter ends
            self._is_running = False
            self._flush()

    def flushed(self) -> None:
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
        generation = self._environment.newest_place().generation
        try:
            with closing(self._environment.new_journal()) as journal:
                journal.flush(generation)
        except (JournalLost, FileNotFoundError):  # the second one if the directory was removed
            self.has_failed = True
            self._tell_others(generation)

    def _tell_others(self, generation: int) -> None:
        """Note the loss of the journal, unless the disk is broken or full, or a leader has begun another."""
        with suppress(lmdb.Error, FDBError, DatabaseClosed), self._environment.begin(write=True) as txn:
            if commitlog.last_place(txn).generation == generation:
                commitlog.note_place(txn, NOWHERE, self._environment.runtime.now_us())

    def close(self) -> None:
        """Flush what is due, and end the thread; this waits for a flush, which uses the directory."""
        self._closed.set()
        if self._is_due:
            self._flush()
        with self._flushing:
            pass


_UNKNOWN = 1021


class NotDurable:
    """Of a private store, which has no journal."""

    def record(self, _txn: Any, _version: int, _writes: Sequence[Writes]) -> Entry:
        return Entry(0, b"", NOWHERE)

    def write(self, _entry: Entry, _flush: Flush) -> None:
        """There is nothing to write."""

    def committed(self, _entry: Entry, _flush: Flush) -> None:
        """There is nothing to note."""

    def failed(self, _entry: Entry, _flush: Flush) -> None:
        """There is nothing to take back."""

    def renew(self) -> None:
        """There is no journal."""

    def tidy(self) -> None:
        """There are no checkpoints."""

    @property
    def failure(self) -> int:
        """There are no checkpoints that could fail."""
        return 0

    def make_room(self) -> None:
        """There is no other file that takes up room."""

    def let_go(self) -> None:
        """There are no files of the parent."""

    def close(self) -> None:
        """There are no files."""


class Durable(NotDurable):
    def __init__(self, environment: Environment, users: Users) -> None:
        self._environment = environment
        self._journal = environment.new_journal()
        self._flusher = Flusher(environment)
        self._checkpoints = Checkpoints(environment, users, self._journal.generation_bytes)
        self._place = NOWHERE
        self._version = -1  # the commit that has the place
        self._written: Entry | None = None  # a record of a commit that LMDB does not have yet
        self._is_lost = False
        self._looks = 0

    def record(self, txn: Any, version: int, writes: Sequence[Writes]) -> Entry:
        """Return the record of the commit of `txn`, with its place. Raises: JournalLost, OSError."""
        place = self._place if self._version == version - 1 else commitlog.last_place(txn)
        self._is_lost = self._is_lost or self._flusher.has_failed
        if self._is_lost or not place.generation or self._checkpoints.chain_is_broken:
            raise JournalLost
        if self._looks != (looks := self._environment.in_place.looks):  # the directory may have changed
            self._journal.forget_renewed()
            self._looks = looks
        try:
            return self._journal.entry(place, version, writes)
        except JournalLost:
            self._is_lost = True
            raise

    def write(self, entry: Entry, flush: Flush) -> None:
        """Write a record, with `Flush.NOW` durably. Raises: OSError; FDBError 1021 if it is not flushed."""
        self._written = entry
        self._journal.write(entry)
        if flush is not Flush.NOW:
            return
        try:
            self._journal.flush(entry.end.generation)
        except JournalLost:
            self._is_lost = True
            raise FDBError(_UNKNOWN) from None
        self._flusher.flushed()

    def committed(self, entry: Entry, flush: Flush) -> None:
        self._written = None
        if flush is Flush.SOON:
            self._flusher.flush_soon()
        self._place, self._version = entry.end, entry.end.version
        self._checkpoints.note(entry)

    def failed(self, entry: Entry, flush: Flush) -> None:
        """Take the record back: after a power cut, the commit would be there. Raises: lmdb.Error."""
        if self._written is None:
            return
        self._written = None
        txn = self._environment.begin(write=True)
        try:
            is_committed = commitlog.last_place(txn) == entry.end  # an interrupt came after the commit
            if not is_committed:
                self._take_back(txn, entry)
        except (lmdb.Error, FDBError):
            self._is_lost = True
            raise
        finally:
            txn.abort()
        if is_committed:
            self.committed(entry, flush)

    def _take_back(self, txn: Any, entry: Entry) -> None:
        # Without a pool, another process may have gone on since.
        if not self._is_lost and txn.id() == entry.end.version:
            try:
                self._journal.cut(entry)
            except (OSError, JournalLost):
                self._is_lost = True
        if self._is_lost:
            self._note_place(txn, NOWHERE)  # so that the other processes know
            txn.commit()

    def renew(self) -> None:
        """Copy all data into a new base, and begin a new journal. Raises: OSError, lmdb.Error."""
        with self._checkpoints.kept_out():
            with self._environment.begin(write=True) as txn:
                # If this process dies below, no other one may go on in a journal that the base does not have.
                self._note_place(txn, NOWHERE)
            with self._environment.begin(write=True) as txn:
                self._begin_anew(txn)
        self._is_lost = self._checkpoints.chain_is_broken = self._flusher.has_failed = False

    def _begin_anew(self, txn: Any) -> None:
        held = Held(txn.id() - 1, self._new_generation())
        bases.make(self._environment.directory, self._environment.system, held, self._environment.env)
        self._environment.directory.sync_entries()  # before the files of the old journal go
        self._journal.renew()
        with bases.opened(self._environment.directory, self._environment.system) as base:
            base.rely_on_files()
        self._note_place(txn, Place(held.generation, 0, held.version))

    def _new_generation(self) -> int:
        with bases.opened(self._environment.directory, self._environment.system) as base:
            return max([base.held().generation, *self._journal.generations()]) + 1

    def _note_place(self, txn: Any, place: Place) -> None:
        commitlog.note_place(txn, place, self._environment.runtime.now_us())

    def tidy(self) -> None:
        """Make a checkpoint if one is due. Any thread may call it."""
        self._checkpoints.make_due()

    @property
    def failure(self) -> int:
        """The errno for which the base does not take the records of the journal; 0 if it does."""
        return self._checkpoints.failure

    def make_room(self) -> None:
        """Free a file of the journal, if one can be freed."""
        self._checkpoints.make_room()

    def let_go(self) -> None:
        self._journal.close()

    def close(self) -> None:
        with ExitStack() as closings:  # each of them is called, whatever another one raises
            closings.callback(self._journal.close)
            closings.callback(self._flusher.close)
            closings.callback(self._checkpoints.close)
