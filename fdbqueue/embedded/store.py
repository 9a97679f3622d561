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
from contextlib import suppress
from typing import Any, NoReturn, cast

import lmdb

from fdbqueue.embedded import layout
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.directory import FULL, Directory, by_descriptor, refusal
from fdbqueue.embedded.reserve import Reserve
from fdbqueue.embedded.system import SYSTEM, System
from fdbqueue.embedded.versions import HandedOutVersions
from fdbqueue.embedded.watches import Watches
from fdbqueue.errors import DatabaseClosed, StorageFormat, StorageFull, StorageInUse, StorageReplaced
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.runtime import Runtime

# Address space, not disk: the file grows with its contents. The size is halved if the system grants less, and
# doubled when the contents reach it.
MAP_BYTES_FIRST = 1 << 40
_MAP_BYTES_LEAST = 1 << 24
_DATA_FILE, _LOCK_FILE = "data.mdb", "lock.mdb"  # LMDB's names for them
_META_PAGES = 2
_READERS_MAX = 4096
_READER_BYTES, _LOCKS_BYTES = 64, 128  # of LMDB's lock file
TEMPORARY_PREFIX = "fdbqueue-"
PRIVATE = "memory:"
_BEGINS_TRIED = 10  # another process may grow the map again between two tries
_ROOM_BYTES_LEAST = 64 * 1024
_NOWHERE = (0, 0)
_MTIME_STEP_NS = 1_000_000_000  # two changes of a directory that are closer may have one modification time


class Snapshot:
    """The database at one version. It ends with its last reference.

    Past the age of a transaction it cannot be read, and the next begin or commit of this process ends it.
    """

    __slots__ = ("__weakref__", "_live", "_serial", "expires_s", "txn", "version")

    def __init__(self, txn: Any, expires_s: float, live: "dict[int, weakref.ref[Snapshot]]", serial: int):
        self.txn = txn
        self.version: int = txn.id()
        self.expires_s = expires_s
        self._live = live
        self._serial = serial
        live[serial] = weakref.ref(self)

    def __del__(self) -> None:
        self._live.pop(self._serial, None)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`.

        Raises: FDBError 1007 if the snapshot has ended.
        """
        try:
            return layout.get(self.txn, key)
        except lmdb.Error:
            raise FDBError(1007) from None

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[layout.KeyAndValue]:
        try:
            yield from layout.scan(self.txn, begin, end, reverse)
        except lmdb.Error:
            raise FDBError(1007) from None

    def end(self) -> None:
        """End the LMDB transaction, so that LMDB may reuse the pages of this version."""
        self.txn.abort()


class Unopened:
    """Stands for the parts of a store that a forked child could not open: each use raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error.with_traceback(None)

    def close(self) -> None:
        """There is nothing to close."""


def is_database(path: str) -> bool:
    """True if the directory at `path` holds an LMDB database, of any program."""
    return os.path.isfile(os.path.join(path, _DATA_FILE))


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
        self._live: dict[int, weakref.ref[Snapshot]] = {}
        self._serial = 0
        self._in_place: list[tuple[str, tuple[int, int]]] = []  # the files that must stay where they are
        self._looked_at = _NOWHERE
        self.reserve: Reserve | None = None
        self._files: list[int] = []  # the data file; of a private store also the lock file
        try:
            self._prepare_files()
            self.env = self._open(by_descriptor(directory.fd))
            self._begin_use()
        except OSError as error:
            self._close_files()
            raise refusal(self.path, error) from None
        except BaseException:
            self._close_files()
            raise

    def _begin_use(self) -> None:
        try:
            if self.private:
                self._files.append(self.directory.open_file(_LOCK_FILE))
            else:
                opened = by_descriptor(self.directory.fd)
                self._in_place = [(name, _identity(opened, name)) for name in (_DATA_FILE, _LOCK_FILE)]
                self.reserve = self._open_reserve()
            self._check_format()
            self._begin_services()
        except BaseException:
            self.env.close()
            raise

    def _open_reserve(self) -> Reserve | None:
        try:
            return Reserve(self.directory)
        except OSError:  # the file system or a limit does not allow it: then a full disk cannot be emptied
            return None

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
        self._files.append(self.directory.open_file(_DATA_FILE))
        lock_fd = self.directory.open_file(_LOCK_FILE)
        try:
            os.posix_fallocate(lock_fd, 0, _READERS_MAX * _READER_BYTES + _LOCKS_BYTES)
        except OSError as error:
            if error.errno in FULL:
                raise
        finally:
            os.close(lock_fd)

    def _open(self, path: str) -> Any:
        map_bytes = MAP_BYTES_FIRST
        while True:
            try:
                return self.system.open_environment(
                    path,
                    map_size=map_bytes,
                    mode=self.directory.file_mode,
                    sync=not self.private,
                    metasync=not self.private,
                    max_readers=_READERS_MAX,
                    meminit=False,
                )
            except (lmdb.MemoryError, MemoryError) as error:
                if map_bytes <= _MAP_BYTES_LEAST:
                    raise StorageInUse(path=self.path, reason=str(error)) from None
                map_bytes //= 2
            except lmdb.Error as error:
                if getattr(error, "code", None) in FULL or self._is_full():
                    raise StorageFull(path=self.path) from None
                raise StorageInUse(path=self.path, reason=str(error).removeprefix(f"{path}: ")) from None

    def _check_format(self) -> None:
        self.env.reader_check()  # a killed process may have left its reader slots taken
        with self.env.begin() as txn:
            found = txn.get(layout.FORMAT_KEY)
        if found is None:
            if self.env.stat()["entries"]:  # every database of this engine has its format stored
                raise StorageInUse(path=self.path, reason="it is the LMDB database of another program")
            if not self.private:
                self.directory.sync_entries()  # first: a process that finds a format syncs nothing
            known = f"{layout.FORMAT_MAJOR}.{layout.FORMAT_MINOR}"
            try:
                with self.env.begin(write=True) as txn:
                    txn.put(layout.FORMAT_KEY, known.encode(), overwrite=False)
            except lmdb.Error as error:
                raise self.storage_error(error) from None
        elif int(found.split(b".")[0]) > layout.FORMAT_MAJOR:
            raise StorageFormat(path=self.path, found=found.decode(), known=layout.FORMAT_MAJOR)

    def close(self) -> None:
        self._closed = True
        self.handed_out.close()
        self.watches.close()
        self.committer.close()
        self.env.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in self._files:
            os.close(fd)
        if self.reserve is not None:
            self.reserve.close()
        self.directory.close()

    def reopen_after_fork(self) -> None:
        """Open a new handle in a forked child, and leave the parent's handle and reader slots alone.

        If that fails, each later use of this store raises the error. An error here would reach no caller, and
        would leave the other stores of the child with their parent's handles.
        """
        self._let_go_of_the_parents()
        try:
            if not self.private:
                self.require_in_place()
            self.env = self._open_nameless() if self.private else self._open(by_descriptor(self.directory.fd))
            self._begin_services()
        except Exception as error:
            self.env = self.handed_out = self.committer = self.watches = cast("Any", Unopened(error))

    def _let_go_of_the_parents(self) -> None:
        _keep_for_ever(self.env)
        self.watches.let_go()
        for snapshot in self._live_snapshots():
            _keep_for_ever(snapshot.txn)
        for snapshot in self._live_snapshots():
            snapshot.expires_s = float("-inf")
        self._live = {}

    def _open_nameless(self) -> Any:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as path:
            for name, fd in zip((_DATA_FILE, _LOCK_FILE), self._files, strict=True):
                os.symlink(by_descriptor(fd), os.path.join(path, name))
            return self._open(path)

    # -- snapshots --------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the newest version; it contains each commit that has returned, in any process."""
        self.end_expired(now_s)
        self._serial += 1
        return Snapshot(self.begin(), now_s + TRANSACTION_AGE_MAX_S, self._live, self._serial)

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
        for serial, reference in self._live.items():  # oldest first
            snapshot = reference()
            if snapshot is not None and snapshot.expires_s > now_s:
                return
            if self._live.pop(serial, None) is not None and snapshot is not None:
                snapshot.end()  # only the thread that removed it from the table ends it
            return  # one per begin and commit is enough, and a begin stays O(1)

    def begin(self, write: bool = False) -> Any:
        """Begin an LMDB transaction at the newest version.

        Raises DatabaseClosed, FDBError 1037 (too many are open), FDBError 1510.
        """
        try:
            for _ in range(_BEGINS_TRIED):
                try:
                    return self.env.begin(write=write)
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

    # -- writing ----------------------------------------------------------------------------------------

    def require_in_place(self) -> None:
        """Check that the data and lock files of the directory are still the open ones.

        Otherwise a commit would go into a file without a name, or two processes that lock different files
        would write at once. If the directory has not changed, one system call is enough.

        Raises: StorageReplaced.
        """
        try:
            status = self.system.stat(self.path)
            looked_at = (status.st_ino, status.st_mtime_ns)
            if looked_at == self._looked_at:
                return
            for name, known in self._in_place:
                if _identity(self.path, name) != known:
                    raise StorageReplaced(path=self.path, file=name)
            if self.runtime.now() * 1e9 - status.st_mtime_ns > _MTIME_STEP_NS:
                self._looked_at = looked_at
        except (FileNotFoundError, NotADirectoryError):
            raise StorageReplaced(path=self.path, file=self._in_place[0][0]) from None
        except PermissionError:
            return  # the user may not search a parent directory, or the process has dropped its rights

    def end_snapshots(self) -> None:
        """End all snapshots of this process, so that LMDB may reuse their pages; their readers get 1007."""
        self.handed_out.release_all()
        for serial, reference in list(self._live.items()):
            snapshot = reference()
            if snapshot is not None and self._live.pop(serial, None) is not None:
                snapshot.expires_s = float("-inf")
                snapshot.end()

    def forget_dead_readers(self) -> None:
        """Free the reader slots of killed processes, and the pages that their snapshots kept."""
        with suppress(lmdb.Error):
            self.env.reader_check()

    def flush(self) -> None:
        """Return once all visible commits are durable."""
        self.env.sync(True)

    def grow(self) -> None:
        """Double the map. The snapshots of this process end; their readers get 1007."""
        try:
            self.env.set_mapsize(2 * self.env.info()["map_size"])
        except lmdb.Error:
            raise StorageFull(path=self.path) from None

    def storage_error(self, error: lmdb.Error) -> Exception:
        """Return the user's error for a failed write: StorageFull, or FDBError 1510 (a broken disk)."""
        code = getattr(error, "code", errno.EIO)
        full = code in FULL or (code == errno.EIO and self._is_full())
        return StorageFull(path=self.path) if full else FDBError(1510)

    def is_full(self, error: Exception) -> bool:
        """True if `error`, which failed a commit, means a full disk."""
        if isinstance(error, lmdb.Error):
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
        disk = os.fstatvfs(self._files[0])
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        size_bytes = os.fstat(self._files[0]).st_size
        return disk.f_bavail * disk.f_frsize < _ROOM_BYTES_LEAST or 0 <= limit_bytes <= size_bytes


def _identity(path: str, name: str) -> tuple[int, int]:
    try:
        status = os.stat(f"{path}/{name}")
    except FileNotFoundError:
        return _NOWHERE
    return status.st_dev, status.st_ino


def _keep_for_ever(handle: Any) -> None:
    """Keep the destructor of a parent's handle from running in a child: it would free the parent's reader
    slots.

    A reference from a module is not enough: the interpreter drops these when it ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
