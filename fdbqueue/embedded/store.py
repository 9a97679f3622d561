"""The store of a directory: its open LMDB environment, its commits and its watches.

All databases of a process share the one store of a directory, since LMDB must not be opened twice in a
process. Nor may it be used in a forked child, which therefore opens the directory again.

A recovery makes a directory ready for its first user: new, of an earlier release, or after a power cut. The
caller is the only user of the directory then. Each step can be repeated: a process that is killed here leaves
a directory that is not believed yet, and the next process begins again.
"""

import ctypes
import errno
import importlib
import os
import shutil
import struct
import tempfile
from contextlib import ExitStack, closing, suppress
from typing import Any, NoReturn, cast

import lmdb

from fdbqueue.core.errors import StorageFormat, StorageInUse
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.embedded import durability, layout, processes
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.directory import (
    DATA_FILE,
    FULL,
    LOCK_FILE,
    SYSTEM,
    Directory,
    InPlace,
    LockFile,
    System,
    by_descriptor,
    refusal,
)
from fdbqueue.embedded.durability import Base, BrokenChain, Durable, Held, NotDurable
from fdbqueue.embedded.environment import Environment, HandedOutVersions, Reserve
from fdbqueue.embedded.journal import FILES, Journal, Place
from fdbqueue.embedded.processes import Users
from fdbqueue.embedded.watches import Watches

_NEW_FILE = "data.new"
# A process of an earlier boot may have handed out versions of commits that are lost: these are passed over.
_VERSIONS_PASSED = 1 << 32
_COPIED_BYTES = 1 << 20
# The kernel ends the locks of a killed process one after the other.
_LOOKS, _PAUSE_S = 50, 0.01

# LMDB's file has two meta pages. The larger transaction id counts, and id N is in page N modulo 2.
_META = struct.Struct("<16xII")  # behind the header of the page: magic, version
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_BYTES_AT, _TRANSACTION_AT = 40, 144


def is_database(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in (DATA_FILE, durability.FILE))


def prepare(directory: Directory, users: Users, journal: Journal, runtime: Runtime, system: System) -> bool:
    """Make `data.mdb` ready for the only user; True if `settle` has to follow."""
    names = set(os.listdir(directory.fd))
    if DATA_FILE in names and _is_believed(directory, users):
        return not names >= {durability.FILE, *FILES}
    if LOCK_FILE in names:
        _require_no_other_user(directory, runtime)
    users.doubt()
    for name in names & {_NEW_FILE, durability.NEW_FILE}:
        directory.unlink(name)  # of a process that was killed
    if durability.FILE in names:
        recover(directory, journal, system)
    elif journal.generations():
        raise StorageInUse(
            path=directory.path, reason=f"its file {durability.FILE} is missing: restore all files"
        )
    elif DATA_FILE in names and directory.size_bytes(DATA_FILE):
        # It is durable: LMDB has flushed it, and does so here. From the first step on, an earlier release
        # refuses the directory: its later commits would be lost.
        with durability.opened(directory, system, DATA_FILE) as data:
            require_format(data.env, directory.path)
            with data.env.begin(write=True) as txn:
                layout.clear(txn)  # a copy may have records of later versions than its own
                txn.put(layout.FORMAT_KEY, layout.FORMAT)
            durability.make(directory, system, Held(data.env.info()["last_txnid"], 1), data.env)
    else:
        durability.make(directory, system, Held(0, 1))
        directory.sync_entries()  # a power cut must not leave `data.mdb` alone, as that of an earlier release
    return True


def settle(directory: Directory, env: Any, journal: Journal, system: System, now_us: int) -> None:
    """Make the open LMDB environment the one to which the journal belongs. Raises: OSError, lmdb.Error."""
    if _lacks_commits(directory, system):  # a file was removed, and `data.mdb` is believed
        generation = max([0, *journal.generations()]) + 1
        durability.make(directory, system, Held(env.info()["last_txnid"], generation), env)
    with durability.opened(directory, system) as base:
        version, generation = base.held()
        durability.allocate(directory, base, journal.generation_bytes)
        journal.allocate()
        directory.sync_entries()  # before the first commit, which only a durable name makes durable
        base.rely_on_files()
    with env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, layout.FORMAT)
        layout.note_place(txn, Place(generation, 0, version), now_us)


def _lacks_commits(directory: Directory, system: System) -> bool:
    """True if base and journal do not hold all commits of `data.mdb`, as one of their files is gone."""
    names = set(os.listdir(directory.fd))
    if durability.FILE not in names:
        return True
    if names >= {*FILES}:
        return False
    with durability.opened(directory, system) as base:
        return base.relies_on_files


def require_format(env: Any, path: str) -> None:
    with env.begin() as txn:
        found = txn.get(layout.FORMAT_KEY)
    if found is None and env.stat()["entries"]:  # every database of this engine has its format stored
        raise StorageInUse(path=path, reason="it is the LMDB database of another program")
    if found is not None and not layout.knows(found):
        raise StorageFormat(path=path, found=found.decode(), known=layout.FORMAT_MAJOR)


def _is_believed(directory: Directory, users: Users) -> bool:
    fd = directory.open_file(DATA_FILE)
    try:
        return users.believes(fd)
    finally:
        os.close(fd)


def _require_no_other_user(directory: Directory, runtime: Runtime) -> None:
    """Look for a process that uses LMDB, but does not share the lock of all users."""
    with closing(LockFile(directory, LOCK_FILE)) as locks:
        for _ in range(_LOOKS):
            if not locks.is_locked(0):
                return
            runtime.sleep(_PAUSE_S)
    reason = "a process of an earlier release has it open: stop it, and open the directory again"
    raise StorageInUse(path=directory.path, reason=reason)


def recover(directory: Directory, journal: Journal, system: System) -> None:
    """Add the journal's rest to the base; copy it to `data.mdb`. Raises: StorageInUse for missing commits."""
    with durability.opened(directory, system) as base:
        require_format(base.env, directory.path)
        if base.relies_on_files:
            for name in sorted({*FILES} - {*os.listdir(directory.fd)}):
                raise _missing(directory, f"its file {name} is")
        try:
            _add_all(base, journal)
        except BrokenChain:
            raise _missing(directory, "commits between base.mdb and the journal are") from None
        held = base.held()
        size_bytes = base.size_bytes
    try:
        _make_data(directory, held, size_bytes)
    except OSError as error:
        if error.errno not in FULL:
            raise
        with suppress(FileNotFoundError):
            directory.unlink(DATA_FILE)  # it is not right, and takes up the room
        _make_data(directory, held, size_bytes)
    with suppress(FileNotFoundError):
        directory.unlink(LOCK_FILE)  # a process that still has it open must not meet the new users
    directory.rename(_NEW_FILE, DATA_FILE)


def _make_data(directory: Directory, held: Held, size_bytes: int) -> None:
    fd = directory.open_file(_NEW_FILE)
    try:
        _copy(directory, fd, size_bytes)
        _raise_version(fd, held.version + _VERSIONS_PASSED)
    except BaseException:
        directory.unlink(_NEW_FILE)  # it may be all that fills the disk
        raise
    finally:
        os.close(fd)


def _missing(directory: Directory, what: str) -> StorageInUse:
    cure = f"or go on without the last commits, with empty files {' and '.join(FILES)}"
    return StorageInUse(
        path=directory.path, reason=f"{what} missing: restore all files of one moment, {cure}"
    )


def _add_all(base: Base, journal: Journal) -> None:
    held = base.held()
    generations = [number for number in journal.generations() if number >= held.generation]
    for generation in generations:
        base.add(journal, generation)
    base.begin_with(Held(base.held().version, max([held.generation, *generations]) + 1))
    for generation in journal.generations():
        journal.free(generation)


def _copy(directory: Directory, to_fd: int, size_bytes: int) -> None:
    from_fd = directory.open_file(durability.FILE)
    try:
        # LMDB writes no page that is free again at the end of the commit that took it, not even the last one.
        at, end = 0, min(size_bytes, os.fstat(from_fd).st_size)
        while at < end:
            at += _copy_some(from_fd, to_fd, at, min(end - at, _COPIED_BYTES))
        os.ftruncate(to_fd, size_bytes)
    finally:
        os.close(from_fd)


def _copy_some(from_fd: int, to_fd: int, at: int, size_bytes: int) -> int:
    copied = os.pwrite(to_fd, os.pread(from_fd, size_bytes, at), at)
    if not copied:
        raise OSError(errno.EIO, "the base has become shorter")
    return copied


def _raise_version(fd: int, version: int) -> None:
    """Give the newest state in an LMDB file a transaction id of at least `version`."""
    page_bytes = int.from_bytes(os.pread(fd, 4, _PAGE_BYTES_AT), "little")
    ids = [_transaction_id(fd, page * page_bytes) for page in (0, 1)]
    newest = ids.index(max(ids))
    raised = version + (version + newest) % 2
    os.pwrite(fd, raised.to_bytes(8, "little"), newest * page_bytes + _TRANSACTION_AT)


def _transaction_id(fd: int, at: int) -> int:
    magic, version = _META.unpack(os.pread(fd, _META.size, at))
    if (magic, version & 0xFFFF) != (_MAGIC, _DATA_VERSION):
        raise OSError(errno.EIO, "the base is no LMDB file of a known version")
    return int.from_bytes(os.pread(fd, 8, at + _TRANSACTION_AT), "little")


_IN_PLACE = (DATA_FILE, LOCK_FILE, processes.IN_USE_FILE)
TEMPORARY_PREFIX = "fdbqueue-"


class Unopened:
    """Stands for the parts of a store that a forked child could not open: each use raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error.with_traceback(None)

    def let_go(self) -> None:
        """There is nothing of the parent."""

    def close(self) -> None:
        """There is nothing to close."""


class Store(Environment):
    """An open environment. If `private`, its files have no names and no fsync, and end with the process."""

    def __init__(
        self, directory: Directory, runtime: Runtime, private: bool, system: System = SYSTEM
    ) -> None:
        """Open the files in `directory`; if that fails, close it."""
        super().__init__(directory, runtime, private, system)
        self.users = 0
        self._shared: Users | None = None  # None of a private store
        try:
            is_first = not private and self._enter()
            must_settle = is_first and self._prepared()
            self._open_data()
            if is_first and not must_settle and self._is_behind():
                must_settle = self._recovered()
            self._begin_use(must_settle)
        except OSError as error:
            self._close_files()
            raise refusal(self.path, error) from None
        except BaseException:
            self._close_files()
            raise

    def _enter(self) -> bool:
        self._shared = Users(self.directory, self.runtime, self.system)
        return self._shared.enter()

    def _prepared(self) -> bool:
        """Make the files ready; True if this user has to settle them."""
        assert self._shared is not None
        try:
            with closing(self.new_journal()) as journal:
                return prepare(self.directory, self._shared, journal, self.runtime, self.system)
        except lmdb.Error as error:
            raise self._opening_error(error) from None

    def _open_data(self) -> None:
        self._prepare_files()
        self.env = self._open(by_descriptor(self.directory.fd))

    def _is_behind(self) -> bool:
        """True if an old copy was written over `data.mdb`, which is believed."""
        try:
            with closing(self.new_journal()) as journal, self.env.begin() as txn:
                return journal.goes_on_behind(layout.last_place(txn))
        except BaseException:
            self.env.close()
            raise

    def _recovered(self) -> bool:
        """Doubt the data, recover them, and open them again."""
        assert self._shared is not None
        self.env.close()
        os.close(self._files.pop())
        self._shared.doubt()
        must_settle = self._prepared()
        self._open_data()
        return must_settle

    def _begin_use(self, must_settle: bool) -> None:
        try:
            if self.private:
                self._files.append(self.directory.open_file(LOCK_FILE))
            else:
                self.in_place = InPlace(self.directory, _IN_PLACE, self.runtime, self.system.stat)
                self.reserve = self._open_reserve()
            self.env.reader_check()  # a killed process may have left its reader slots taken
            require_format(self.env, self.path)
            self._settle(must_settle)
            self._begin_services()
        except BaseException:
            self.env.close()
            raise

    def _settle(self, must_settle: bool) -> None:
        if self._shared is None:
            with self.env.begin(write=True) as txn:
                txn.put(layout.FORMAT_KEY, layout.FORMAT)
            return
        if must_settle:
            try:
                with closing(self.new_journal()) as journal:
                    settle(self.directory, self.env, journal, self.system, self.runtime.now_us())
            except lmdb.Error as error:
                raise self._opening_error(error) from None
            self._shared.believe(self._files[0])
        self._shared.join(self.runtime.random_bytes)

    def _open_reserve(self) -> Reserve | None:
        try:
            return Reserve(self.directory)
        except OSError:  # the file system or a limit does not allow it: then a full disk cannot be emptied
            return None

    def new_durability(self) -> NotDurable:
        return Durable(self, self._shared) if self._shared is not None else NotDurable()

    def _begin_services(self) -> None:
        # Only other processes can write while this one is idle, and a private store has no other process.
        self.handed_out = HandedOutVersions(self.runtime, self.system, needs_thread=not self.private)
        self.committer = Committer(self, self.new_durability(), lambda written: self.watches.notify(written))
        self.watches = Watches(self)

    # -- opening and closing --------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        with ExitStack() as closings:  # each of them is called, whatever another one raises
            closings.callback(self._close_files)
            closings.callback(self.env.close)
            closings.callback(self.committer.close)
            closings.callback(self.watches.close)
            closings.callback(self.handed_out.close)

    def _close_files(self) -> None:
        for fd in self._files:
            os.close(fd)
        if self.reserve is not None:
            self.reserve.close()
        if self._shared is not None:
            self._shared.close()
        self.directory.close()

    def reopen_after_fork(self) -> None:
        """Open a new handle in a forked child, and leave the parent's handle and reader slots alone. If that
        fails, each later use of this store raises the error. An error here would reach no caller, and would
        leave the other stores of the child with their parent's handles.
        """
        self._let_go_of_the_parents()
        try:
            if self._shared is not None:
                self.require_in_place()
                self._shared = Users(self.directory, self.runtime, self.system)
                self._shared.enter()
                self._shared.join(self.runtime.random_bytes)
                self.require_in_place()  # from now on, no other process can replace the files
            self.env = self._open_nameless() if self.private else self._open(by_descriptor(self.directory.fd))
            self._begin_services()
        except Exception as error:
            if self._shared is not None:
                self._shared.close()  # it may hold the lock that each process needs to open the directory
            self.env = self.handed_out = self.committer = self.watches = cast("Any", Unopened(error))

    def _let_go_of_the_parents(self) -> None:
        _keep_for_ever(self.env)
        self._opening = self.system.lock()
        self.watches.let_go()
        self.committer.let_go()
        for snapshot in self._live_snapshots():
            _keep_for_ever(snapshot.txn)
        for snapshot in self._live_snapshots():
            snapshot.expires_s = float("-inf")
        self._live = {}

    def _open_nameless(self) -> Any:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as path:
            for name, fd in zip((DATA_FILE, LOCK_FILE), self._files, strict=True):
                os.symlink(by_descriptor(fd), os.path.join(path, name))
            return self._open(path)


def _keep_for_ever(handle: Any) -> None:
    """Keep the destructor of a parent's handle from running in a child: it would free the parent's reader
    slots. A reference from a module is not enough: the interpreter drops these when it ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


_stores: dict[str, Store] = {}
_privates: set[Store] = set()


def acquire(path: str, runtime: Runtime, shared: bool = False) -> Store:
    """Return the store of a directory: the open one of this process, or a new one."""
    directory = Directory.open(path, shared=shared)
    with _registry_lock:
        store = _stores.get(directory.path)
        if store is None:
            store = _stores[directory.path] = Store(directory, runtime, private=False)
        else:
            directory.close()
        store.users += 1
        return store


def acquire_private(runtime: Runtime) -> Store:
    """Return a new store in memory, which ends with its last database."""
    store = private_store(runtime)
    with _registry_lock:
        _privates.add(store)
        store.users = 1
        return store


def private_store(runtime: Runtime, parent: str | None = None) -> Store:
    """Return a store in a temporary directory that is removed at once: only its open files are left."""
    path = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent)
    try:
        return Store(Directory.open(path), runtime, private=True)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def release(store: Store) -> None:
    with _registry_lock:
        store.users -= 1
        if store.users == 0:
            _stores.pop(store.path, None)
            _privates.discard(store)
            store.close()


def _know_own_handles_from_inherited_ones() -> None:
    """Let py-lmdb open the parent's files again in this child. It refuses a file that it remembers as open,
    and a fork copies its memory. It has no call to forget a file, so this replaces a function of it. That is
    why the major version of py-lmdb is pinned.
    """
    envid: Any = importlib.import_module("lmdb._envid")
    of_file, process_id = envid.env_keys, os.getpid()
    envid.env_keys = lambda path, subdir: tuple((process_id, key) for key in of_file(path, subdir))


def _after_fork_in_child() -> None:
    global _registry_lock
    _registry_lock = RealRuntime.lock()
    _know_own_handles_from_inherited_ones()
    for store in (*_stores.values(), *_privates):
        store.reopen_after_fork()


_registry_lock = RealRuntime.lock()
os.register_at_fork(after_in_child=_after_fork_in_child)
