"""One LMDB environment: an open directory, which all databases of a process share.

A read version is LMDB's own transaction id. So a snapshot at a version is an LMDB read transaction, and no
commit writes a version counter. LMDB must not be used in a forked child, which therefore opens the directory
again.
"""

import ctypes
import errno
import os
import resource
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Any, NoReturn, cast

import lmdb

from fdbqueue.embedded import base as bases
from fdbqueue.embedded import commitlog, layout, users
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.directory import FULL, Directory, by_descriptor, refusal
from fdbqueue.embedded.durability import Durable, NotDurable
from fdbqueue.embedded.environment import with_largest_map
from fdbqueue.embedded.in_place import InPlace
from fdbqueue.embedded.journal import Journal, Place
from fdbqueue.embedded.recovery import DATA_FILE, LOCK_FILE, prepare, require_format, settle
from fdbqueue.embedded.reserve import Reserve
from fdbqueue.embedded.snapshot import Snapshot
from fdbqueue.embedded.system import SYSTEM, System
from fdbqueue.embedded.users import Users
from fdbqueue.embedded.versions import HandedOutVersions
from fdbqueue.embedded.watches import Watches
from fdbqueue.errors import DatabaseClosed, StorageFull, StorageInUse
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.runtime import Runtime

_IN_PLACE = (DATA_FILE, LOCK_FILE, users.FILE)
_META_PAGES = 2
_READERS_MAX = 4096
_READER_BYTES, _LOCKS_BYTES = 64, 128  # of LMDB's lock file
TEMPORARY_PREFIX = "fdbqueue-"
PRIVATE = "memory:"
_BEGINS_TRIED = 10  # another process may grow the map again between two tries
_ROOM_BYTES_LEAST = 64 * 1024


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


def is_database(path: str) -> bool:
    """True if the directory at `path` holds an LMDB database, of any program."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (DATA_FILE, bases.FILE))


class Store:
    """An open environment. If `private`, its files have no names and no fsync, and end with the process."""

    def __init__(
        self, directory: Directory, runtime: Runtime, private: bool, system: System = SYSTEM
    ) -> None:
        """Open the files in `directory`; if that fails, close it.

        Raises: UnsafePath, StorageInUse, StorageFull, StorageFormat.
        """
        self.directory = directory
        self.path = PRIVATE if private else directory.path
        self.runtime = runtime
        self.private = private
        self.system = system
        self.users = 0
        self._closed = False
        self._opening = system.lock()
        self._live: dict[int, weakref.ref[Snapshot]] = {}
        self._serials = count()  # two threads never get one number
        self.in_place = InPlace(directory, (), runtime, system)
        self.reserve: Reserve | None = None
        self._files: list[int] = []  # the data file; of a private store also the lock file
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
        """Become a user of the directory; True for the first one."""
        self._shared = Users(self.directory, self.system)
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
                self.in_place = InPlace(self.directory, _IN_PLACE, self.runtime, self.system)
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
            self._settle_alone()
            self._shared.believe(self._files[0])
        self._shared.join()

    def _settle_alone(self) -> None:
        try:
            with closing(self.new_journal()) as journal:
                settle(self.directory, self.env, journal, self.system, self.runtime.now_us())
        except lmdb.Error as error:
            raise self.storage_error(error) from None

    def new_journal(self) -> Journal:
        """Return the journal of this directory, with files of its own."""
        return Journal(self.directory, self.runtime, self.system)

    def _open_reserve(self) -> Reserve | None:
        try:
            return Reserve(self.directory)
        except OSError:  # the file system or a limit does not allow it: then a full disk cannot be emptied
            return None

    def new_durability(self) -> NotDurable:
        return Durable(self, self._shared) if self._shared is not None else NotDurable()

    def _begin_services(self) -> None:
        self.handed_out = HandedOutVersions(self)
        self.committer = Committer(self)
        self.watches = Watches(self)

    # -- opening and closing --------------------------------------------------------------------------

    def _prepare_files(self) -> None:
        """Make both files before LMDB does: they get the right owner, and the lock file gets its room.

        LMDB maps the lock file without reserving room for it, and an access without room kills the process.
        The descriptor is closed before LMDB opens the file, since a later close would end LMDB's locks.
        """
        self._files.append(self.directory.open_file(DATA_FILE))
        lock_fd = self.directory.open_file(LOCK_FILE)
        try:
            os.posix_fallocate(lock_fd, 0, _READERS_MAX * _READER_BYTES + _LOCKS_BYTES)
        except OSError as error:
            if error.errno in FULL:
                raise
        finally:
            os.close(lock_fd)

    def _open(self, path: str) -> Any:
        try:
            return with_largest_map(
                self.system.open_environment,
                path,
                mode=self.directory.file_mode,
                sync=False,  # the journal makes a commit durable
                metasync=False,
                max_readers=_READERS_MAX,
            )
        except (lmdb.MemoryError, MemoryError) as error:
            raise StorageInUse(path=self.path, reason=str(error)) from None
        except lmdb.Error as error:
            raise self._opening_error(error) from None

    def _opening_error(self, error: lmdb.Error) -> Exception:
        if getattr(error, "code", None) in FULL or self._is_full():
            return StorageFull(path=self.path)
        return StorageInUse(path=self.path, reason=str(error).rpartition(": ")[2])

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
        """Open a new handle in a forked child, and leave the parent's handle and reader slots alone.

        If that fails, each later use of this store raises the error. An error here would reach no caller, and
        would leave the other stores of the child with their parent's handles.
        """
        self._let_go_of_the_parents()
        try:
            if self._shared is not None:
                self.require_in_place()
                self._shared = Users(self.directory, self.system)
                self._shared.enter()
                self._shared.join()
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

    # -- snapshots --------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the newest version; it contains each commit that has returned, in any process."""
        self.end_expired(now_s)
        return Snapshot(self.begin(), now_s + TRANSACTION_AGE_MAX_S, self._live, next(self._serials))

    def snapshot_at(self, version: int, now_s: float) -> Snapshot:
        """Return the snapshot of `version`: the newest version, or one in use or handed out in this process.

        LMDB keeps an old version only while a read transaction is open at it.

        Raises: FDBError 1009 for a future version, 1007 for any other one.
        """
        newest = self.snapshot(now_s)
        if newest.version == version:
            return newest
        for snapshot in self._live_snapshots():
            if snapshot.version == version and snapshot.expires_s > now_s:
                return snapshot
        raise FDBError(1007 if version < newest.version else 1009)

    def hand_out(self, version: int, now_s: float) -> None:
        """Keep `version`, which a caller gets, readable for five seconds, if LMDB still has it."""
        with suppress(FDBError, DatabaseClosed):  # the caller gets the version in any case
            self.handed_out.keep(self.snapshot_at(version, now_s))

    def oldest_live_version(self) -> int | None:
        for reference in list(self._live.values()):  # oldest first
            snapshot = reference()
            if snapshot is not None:
                return snapshot.version
        return None

    def _live_snapshots(self) -> Iterator[Snapshot]:
        for reference in list(self._live.values()):
            snapshot = reference()
            if snapshot is not None:
                yield snapshot

    def end_expired(self, now_s: float) -> None:
        try:
            serial, reference = next(iter(self._live.items()))  # the oldest: a copy would not be O(1)
        except (RuntimeError, StopIteration):
            return  # empty, or changed by a thread or the garbage collector: the next begin looks again
        snapshot = reference()
        is_over = snapshot is None or snapshot.expires_s <= now_s
        if is_over and self._live.pop(serial, None) is not None and snapshot is not None:
            snapshot.end()  # only the thread that removed it from the table ends it

    def begin(self, write: bool = False) -> Any:
        """Begin an LMDB transaction at the newest version.

        Raises DatabaseClosed, FDBError 1037 (too many are open), FDBError 1510.
        """
        try:
            for _ in range(_BEGINS_TRIED):
                try:
                    return self.env.begin(write=write)
                except lmdb.PanicError:
                    self._open_again()
                except lmdb.MapResizedError:
                    self.env.set_mapsize(0)  # another process grew it; open snapshots end (1007)
                except lmdb.ReadersFullError:
                    self.env.reader_check()
                    self.handed_out.release_older_half()
            return self.env.begin(write=write)
        except lmdb.ReadersFullError:
            raise FDBError(1037) from None  # too many transactions are open: a retry may succeed
        except lmdb.Error:
            if self._closed:
                raise DatabaseClosed from None
            raise FDBError(1510) from None

    def _open_again(self) -> None:
        """Open the environment anew: after a failed write of its last page, LMDB refuses all work with it."""
        with self._opening:
            with suppress(lmdb.PanicError):
                self.env.begin().abort()
                return  # another thread was first
            self.end_snapshots()
            self.env.close()
            self.env = self._open(by_descriptor(self.directory.fd))

    def newest_place(self) -> Place:
        """Return the place of the newest commit in the journal; behind it, a dead leader may have begun."""
        with self.begin() as txn:
            return commitlog.last_place(txn)

    # -- writing ----------------------------------------------------------------------------------------

    def require_in_place(self) -> None:
        """Check that the data and lock files of the directory are still the open ones.

        Otherwise a commit would go into a file without a name, or two processes that lock different files
        would write at once.

        Raises: StorageReplaced.
        """
        self.in_place.require()

    def end_snapshots(self) -> None:
        """End all snapshots of this process, so that LMDB may reuse their pages; their readers get 1007."""
        self.handed_out.release_all()
        for serial, reference in self._live.copy().items():  # list() may start the garbage collector
            snapshot = reference()
            if snapshot is not None and self._live.pop(serial, None) is not None:
                snapshot.expires_s = float("-inf")
                snapshot.end()

    def forget_dead_readers(self) -> None:
        """Free the reader slots of killed processes, and the pages that their snapshots kept."""
        with suppress(lmdb.Error):
            self.env.reader_check()

    def grow(self) -> None:
        """Double the map. The snapshots of this process end; their readers get 1007."""
        try:
            self.env.set_mapsize(2 * self.env.info()["map_size"])
        except lmdb.Error:
            raise StorageFull(path=self.path) from None

    def storage_error(self, error: Exception) -> Exception:
        """Return the user's error for a failed write: StorageFull, or FDBError 1510 (a broken disk)."""
        code = error.errno if isinstance(error, OSError) else getattr(error, "code", errno.EIO)
        full = code in FULL or (code == errno.EIO and self._is_full())
        return StorageFull(path=self.path) if full else FDBError(1510)

    def is_full(self, error: Exception) -> bool:
        """True if `error`, which failed a commit, means a full disk."""
        if isinstance(error, lmdb.Error | OSError):
            error = self.storage_error(error)
        return isinstance(error, StorageFull)

    def free_bytes(self) -> int:
        """Return the bytes of free pages in the data file; old snapshots may still use some of them."""
        stat = self.env.stat()
        used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + _META_PAGES
        return int((self.env.info()["last_pgno"] + 1 - used) * stat["psize"])

    def oldest_reader(self, otherwise: int) -> int:
        """Return the oldest version at which any process reads; `otherwise` if there is none."""
        rows = [row.split()[-1] for row in self.env.readers().splitlines()[1:]]
        return min((int(version) for version in rows if version != "-"), default=otherwise)

    def _is_full(self) -> bool:
        # A disk that fills up cuts a write short, and LMDB reports that as an I/O error.
        disk = os.fstatvfs(self.directory.fd)
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        size_bytes = max((os.fstat(fd).st_size for fd in self._files), default=0)
        return disk.f_bavail * disk.f_frsize < _ROOM_BYTES_LEAST or 0 <= limit_bytes <= size_bytes


def _keep_for_ever(handle: Any) -> None:
    """Keep the destructor of a parent's handle from running in a child: it would free the parent's reader
    slots.

    A reference from a module is not enough: the interpreter drops these when it ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
