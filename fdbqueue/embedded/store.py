"""The store of a directory: its open LMDB environment, its commits and its watches.

All databases of a process share the one store of a directory, since LMDB must not be opened twice in a
process. Nor may it be used in a forked child, which therefore opens the directory again.
"""

import ctypes
import importlib
import os
import shutil
import tempfile
from contextlib import ExitStack, closing
from typing import Any, NoReturn, cast

import lmdb

from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.embedded import commitlog, layout, users
from fdbqueue.embedded.causes import refusal
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.directory import Directory, InPlace, by_descriptor
from fdbqueue.embedded.durability import Durable, NotDurable
from fdbqueue.embedded.environment import Environment, HandedOutVersions
from fdbqueue.embedded.recovery import prepare, require_format, settle
from fdbqueue.embedded.reserve import Reserve
from fdbqueue.embedded.system import DATA_FILE, LOCK_FILE, SYSTEM, System
from fdbqueue.embedded.users import Users
from fdbqueue.embedded.watches import Watches

_IN_PLACE = (DATA_FILE, LOCK_FILE, users.FILE)
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
                return journal.goes_on_behind(commitlog.last_place(txn))
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
