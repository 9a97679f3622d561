"""The base: a second LMDB file. LMDB flushes each of its commits, so it is right after any power cut.

It holds the data up to one version; the journal has the commits after that. Whenever a generation of the
journal is full, a *checkpoint* adds its records to the base in a few LMDB transactions, beside the commits
that go on. Then the file of the generation is free again. Nothing reads the base but a recovery.

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
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import lmdb

from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded import commitlog, layout
from fdbqueue.embedded.causes import FULL, code_of
from fdbqueue.embedded.directory import Directory, by_descriptor
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import Entry, Journal, Record, Writes
from fdbqueue.embedded.system import System
from fdbqueue.embedded.users import Users

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
            commitlog.clear(txn)
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
        for key, value in one.values.items():
            if value is None:
                layout.delete(txn, key)
            else:
                layout.put(txn, key, value)


def exists(directory: Directory) -> bool:
    return FILE in os.listdir(directory.fd)


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
