"""Makes the commits of a store durable: in the journal before LMDB has them, and later in the base.

A leader calls these methods in this order, within one LMDB transaction:

    entry = record(...)        the record of the commit; its place in the journal is stored with the commit
    write(entry, flush)        the commit is durable, or will be; only then do others see it
    committed(entry, flush)    LMDB has it; after a failure, `failed` takes the record back

If a flush fails, the kernel may have dropped changes, and a second flush succeeds all the same. So nothing in
that journal is believed any more: the next leader copies all data into a new base, and begins a new journal.

Commits may wait for their flush: a thread does it a moment after the first of them, and then ends. A process
that is killed in between leaves its commits to the system, or to the next flush of another process.

The base is a second LMDB file. LMDB flushes each of its commits, so it is right after any power cut. It holds
the data up to one version; the journal has the commits after that. Whenever a generation of the journal is
full, a *checkpoint* adds its records to the base in a few LMDB transactions, beside the commits that go on.
Then the file of the generation is free again. Nothing reads the base but a recovery.

    00 "format"     as in `data.mdb` (layout.py)
    00 "journal"    <version: 8 B> <generation: 8 B>: the last commit that it holds, and the first generation
                    of the journal that may hold later ones
    00 "files"      there if the files of the journal may hold later commits: then both of them are durable
    02 ...          the data, as in `data.mdb`

The process that has filled a generation makes the checkpoint, once the callers of its last commit have
their answers: other threads and processes go on in the next generation. If the process dies, the next one
that needs a free file makes it.
"""

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, NamedTuple

import lmdb

from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.directory import FULL, Directory, System, by_descriptor, code_of
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import NOWHERE, Entry, Journal, JournalLost, Place, Record, Writes
from fdbqueue.embedded.processes import Users
from fdbqueue.embedded.writes import FLUSH_SOON_S, Flush

FILE, NEW_FILE = "base.mdb", "base.new"
_STATE_KEY = b"\x00journal"
_FILES_KEY = b"\x00files"
_STATE = struct.Struct(">QQ")
_COMMITS = 8  # of each generation, since only the next but one commit may use the pages that a commit frees
_ROOM = 4  # times the size of a generation


class Held(NamedTuple):
    """The last version that a base holds, and the first generation that may hold later ones."""

    version: int
    generation: int


class BrokenChain(Exception):
    """The record before this one is missing."""


class Base:
    """An open base. One process at a time."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def held(self) -> Held:
        with self.env.begin() as txn:
            return _held(txn)

    def begin_with(self, held: Held) -> None:
        """Note the state of a new base, in which nothing but the data counts; it is durable then."""
        with self.env.begin(write=True) as txn:
            layout.clear(txn)
            txn.put(layout.FORMAT_KEY, layout.FORMAT)
            txn.put(_STATE_KEY, _STATE.pack(*held))
            txn.delete(_FILES_KEY)

    @property
    def relies_on_files(self) -> bool:
        """True if the files of the journal may hold later commits."""
        with self.env.begin() as txn:
            return txn.get(_FILES_KEY) is not None

    def rely_on_files(self) -> None:
        """Note that both files of the journal are durable, before the first commit in them."""
        with self.env.begin(write=True) as txn:
            txn.put(_FILES_KEY, b"")

    @property
    def size_bytes(self) -> int:
        return int((self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"])

    @property
    def free_bytes(self) -> int:
        stat = self.env.stat()
        used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return self.size_bytes - int(used * stat["psize"])

    def add(self, journal: Journal, generation: int) -> None:
        """Add the records that it does not hold yet, in order. Raises: BrokenChain, if one is missing."""
        while True:
            try:
                records = journal.records(generation)
                while self._add_some(records, generation, journal.generation_bytes // _COMMITS):
                    pass
                return
            except lmdb.MapFullError:
                self.env.set_mapsize(2 * self.env.info()["map_size"])

    def _add_some(self, records: Iterator[Record], generation: int, size_bytes: int) -> bool:
        """Add records of about `size_bytes` in one transaction; False at the end."""
        begin = None
        with self.env.begin(write=True) as txn:
            held = _held(txn)
            version = held.version
            for record in records:
                if record.version > version:
                    if record.previous != version:
                        raise BrokenChain
                    apply(txn, record.writes)
                    version = record.version
                begin = record.end if begin is None else begin
                if record.end - begin > size_bytes:
                    break
            else:
                begin = None
            txn.put(_STATE_KEY, _STATE.pack(version, max(held.generation, generation)))
        return begin is not None


def allocate(directory: Directory, base: Base, generation_bytes: int) -> None:
    """Keep room for the next generations: they leave the journal also if the disk is full."""
    fd = directory.open_file(FILE)
    try:
        room = base.free_bytes + max(0, os.fstat(fd).st_size - base.size_bytes)
        try:
            os.posix_fallocate(fd, 0, base.size_bytes + max(0, _ROOM * generation_bytes - base.free_bytes))
        except OSError as error:
            if error.errno in FULL - {errno.EFBIG} and room < _ROOM * generation_bytes // 2:
                raise
    finally:
        os.close(fd)


def apply(txn: Any, writes: Iterable[Writes]) -> None:
    for one in writes:
        for begin, end in one.cleared:
            for _ in layout.delete_range(txn, begin, end):
                pass
        layout.write(txn, one.values)


@contextmanager
def opened(directory: Directory, system: System, name: str = FILE) -> Iterator[Base]:
    """Open the base, or make an empty one. Raises: UnsafePath, OSError, lmdb.Error."""
    os.close(directory.open_file(name))  # no link is followed, and the file gets the right owner
    env = system.open_base(f"{by_descriptor(directory.fd)}/{name}", directory.file_mode)
    try:
        yield Base(env)
    finally:
        env.close()


def make(directory: Directory, system: System, held: Held, source: Any = None) -> None:
    """Make the base anew: empty, or as a copy of the LMDB environment `source`, which holds `held`. It has
    its name once it is durable; the name becomes so with the directory. Raises: UnsafePath, OSError,
    lmdb.Error.
    """
    with suppress(FileNotFoundError):
        directory.unlink(NEW_FILE)
    try:
        _fill(directory, system, held, source)
    except BaseException:
        directory.unlink(NEW_FILE)  # it may be all that fills the disk
        raise
    directory.rename(NEW_FILE, FILE)


def _fill(directory: Directory, system: System, held: Held, source: Any) -> None:
    fd = directory.open_file(NEW_FILE)
    try:
        if source is not None:
            source.copyfd(fd, compact=True)
    finally:
        os.close(fd)
    with opened(directory, system, NEW_FILE) as base:
        base.begin_with(held)


def _held(txn: Any) -> Held:
    found = txn.get(_STATE_KEY)
    if found is None:
        raise lmdb.InvalidError(f"{FILE} has no state, so it is damaged")
    return Held(*_STATE.unpack(found))


_TRIES = 4  # within the size of a generation


class Checkpoints:
    """The checkpoints that one process makes. Any thread may call it."""

    def __init__(self, environment: Environment, users: Users, generation_bytes: int) -> None:
        self._environment = environment
        self._users = users
        self._lock = environment.system.lock()  # beside the byte lock, which does not tell threads apart
        self._is_due = self._is_closed = False
        self._generation_bytes = self._due_bytes = generation_bytes
        self.failure = 0
        """The errno of the last one, if it found no room, no memory or a broken disk; else 0."""
        self.chain_is_broken = False
        """True if a record is missing that commits rely on: the base has to be copied anew."""

    def note(self, entry: Entry) -> None:
        """For the leader."""
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
                self._make(self._environment.newest_place().generation)
                self.failure = 0
        except (OSError, lmdb.Error, MemoryError) as error:
            # Without room, or on a broken disk, the journal grows, and the next try is at a larger size.
            self.failure = code_of(error)
        finally:
            self._users.end_checkpoint()

    def _make(self, current: int) -> None:
        with closing(self._environment.new_journal()) as journal:
            for generation in journal.generations():
                if generation < current:
                    self._add(journal, generation)

    def _add(self, journal: Journal, generation: int) -> None:
        directory = self._environment.directory
        with opened(directory, self._environment.system) as base:
            try:
                base.add(journal, generation)
            except BrokenChain:
                self.chain_is_broken = True
                return
            allocate(directory, base, journal.generation_bytes)
        journal.free(generation)


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
            if layout.last_place(txn).generation == generation:
                layout.note_place(txn, NOWHERE, self._environment.runtime.now_us())

    def close(self) -> None:
        """Flush what is due, and end the thread; this waits for a flush, which uses the directory."""
        self._closed.set()
        if self._is_due:
            self._flush()
        with self._flushing:
            pass


_UNKNOWN = 1021


_UNWRITTEN = Entry(0, b"", NOWHERE)


class NotDurable:
    """Of a private store, which has no journal."""

    def record(self, _txn: Any, _version: int, _writes: Sequence[Writes]) -> Entry:
        return _UNWRITTEN

    def write(self, _entry: Entry, _flush: Flush) -> None:
        """There is nothing to write."""

    committed = failed = write

    def tidy(self) -> None:
        """There are no files."""

    renew = make_room = let_go = close = tidy

    @property
    def failure(self) -> int:
        """There are no checkpoints that could fail."""
        return 0


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
        place = self._place if self._version == version - 1 else layout.last_place(txn)
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
            is_committed = layout.last_place(txn) == entry.end  # an interrupt came after the commit
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
        with opened(self._environment.directory, self._environment.system) as base:
            newest = max([base.held().generation, *self._journal.generations()])
        held = Held(txn.id() - 1, newest + 1)
        make(self._environment.directory, self._environment.system, held, self._environment.env)
        self._environment.directory.sync_entries()  # before the files of the old journal go
        self._journal.renew()
        with opened(self._environment.directory, self._environment.system) as base:
            base.rely_on_files()
        self._note_place(txn, Place(held.generation, 0, held.version))

    def _note_place(self, txn: Any, place: Place) -> None:
        layout.note_place(txn, place, self._environment.runtime.now_us())

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
