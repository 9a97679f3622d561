"""One open LMDB environment: its snapshots, its room, and errors of LMDB as errors of the user.

A read version is LMDB's own transaction id. So a snapshot at a version is an LMDB read transaction, and no
commit writes a version counter.

On a cluster every version of the last five seconds can be read. LMDB keeps an old version only while a read
transaction is open at it, so this process keeps one open at each version that `get_read_version` or
`get_committed_version` has returned. The costs are bounded:

- Reader slots: one for each of the newest `_VERSIONS_MAX` versions. If the slots of the directory run out,
  the process gives the older half of these back.
- File growth: LMDB cannot reuse the pages that are freed after the oldest version that is kept. All versions
  end after five seconds. In a process that does nothing more, a thread ends them.

The reserve is room on the disk for transactions that make room, so that a full disk can be emptied. LMDB
overwrites nothing: a transaction that only deletes needs new pages too, and would fail on a full disk. So
some room is kept, in two places:

    the file `reserve`   takes up room on the disk. It is given up for one commit that makes room and finds
                         none. After the commit it is made again from the room that is left.
    free pages           LMDB's file never shrinks: deleted records become free pages of it. While the file
                         `reserve` is not whole, free pages of the missing size are kept.

On a disk with room the reserve is whole, and a commit costs one look at a mark in memory more.
"""

import errno
import os
import resource
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import lmdb

from fdbqueue.core.errors import DatabaseClosed, StorageFull
from fdbqueue.core.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.directory import (
    DATA_FILE,
    FULL,
    LOCK_FILE,
    Directory,
    InPlace,
    System,
    by_descriptor,
    code_of,
    failed,
    lacks_room,
    no_room,
    refusal,
    with_largest_map,
)
from fdbqueue.embedded.journal import Journal, Place
from fdbqueue.embedded.view import Snapshot
from fdbqueue.embedded.writes import CommitRequest, Pending, WriteBuffer

_FILE = "reserve"
# Enough for the tree paths of some dozens of keys, or for LMDB's list of the pages that clearing 1 GB frees.
BYTES_MAX = 4 << 20
_DISK_SHARE = 8  # the reserve is at most 1/8 of the disk
_PAGE_BYTES = 4096
_NEED_BYTES = 64 * 1024  # any batch needs it, beside twice its size
# The size of a receipt, which a transaction that removes something may leave.
_RECEIPT_BYTES = 128
# The size of a lease and its deadline, for each task that a transaction moves to another state.
_MOVE_BYTES = 512


class Reserve:
    """The reserve of one directory. Opening makes it; only a leader may call the other methods."""

    def __init__(self, directory: Directory) -> None:
        self._fd = directory.open_file(_FILE)
        try:
            disk = os.fstatvfs(self._fd)
            share = disk.f_blocks * disk.f_frsize // _DISK_SHARE
            self._bytes_wanted = min(BYTES_MAX, share) // _PAGE_BYTES * _PAGE_BYTES
            self.make()
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def is_whole(self) -> bool:
        return self.size_bytes >= self._bytes_wanted

    @property
    def is_half_on_disk(self) -> bool:
        return 2 * self.size_bytes >= self._bytes_wanted

    def make(self) -> bool:
        """Fill the reserve with the free room of the disk; True if it is whole then."""
        size_bytes = self.size_bytes
        if size_bytes >= self._bytes_wanted:
            return True
        disk = os.fstatvfs(self._fd)
        found = disk.f_bavail * disk.f_frsize // _PAGE_BYTES * _PAGE_BYTES
        grown = min(self._bytes_wanted, size_bytes + found)
        try:
            if grown > size_bytes:
                os.posix_fallocate(self._fd, size_bytes, grown - size_bytes)
        except OSError as error:
            if error.errno not in FULL or error.errno == errno.EFBIG:
                raise
        return self.is_whole

    def give_up(self) -> None:
        os.ftruncate(self._fd, 0)

    def has_room(self, free_bytes: int, need_bytes: int) -> bool:
        """True if the reserve, in both places together, is still whole after `need_bytes` are used."""
        return self.size_bytes + free_bytes >= self._bytes_wanted + need_bytes

    def is_half_there(self, free_bytes: int) -> bool:
        """True if at least half is there: then a move may use it. The other half is for removals."""
        return 2 * (self.size_bytes + free_bytes) >= self._bytes_wanted

    def close(self) -> None:
        os.close(self._fd)


def need_bytes(requests: Sequence[CommitRequest]) -> int:
    return _NEED_BYTES + 2 * sum(request.size_bytes for request in requests)


def makes_room(txn: Any, request: CommitRequest, *, or_moves: bool) -> bool:
    """True if the request leaves fewer bytes stored than it finds, counters and a receipt aside. With
    `or_moves`, a request that moves a record and adds little (a take) is allowed too, and so is one with the
    option `bypass_storage_quota` (opening a session, a request in the line).
    """
    if or_moves and request.is_bookkeeping:
        return True
    added, removed, count = _change(txn, request.buffer)
    if count and added - removed <= _RECEIPT_BYTES:
        return True
    return or_moves and added - removed <= count * _MOVE_BYTES


def _change(txn: Any, buffer: WriteBuffer) -> tuple[int, int, int]:
    """Return bytes added and removed, and keys removed; counting stops once more is removed than added."""
    added = sum(len(body) + len(value) for body, _, value in buffer.stamped_keys)
    removed = count = 0
    for key, entry in buffer.entries.items():
        if isinstance(entry, Pending) and not entry.stamped:
            continue  # a counter
        new = len(key) + _length(entry)
        old = layout.get(txn, key)
        if old is not None and key not in buffer.cleared:
            removed += len(key) + len(old)
            count += entry is None
        added += new if entry is not None else 0
    for begin, end in buffer.cleared:
        for key, value in layout.scan(txn, begin, end):
            removed, count = removed + len(key) + len(value), count + 1
            if removed > added:
                break
    return added, removed, count


def _length(entry: Any) -> int:
    if isinstance(entry, Pending):
        return sum(len(operand) for _, operand in entry.steps)
    return 0 if entry is None else len(entry)


_VERSIONS_MAX = 64
_RELEASE_EVERY_S = 1.0


class HandedOutVersions:
    """The snapshots of versions that this process has handed out, oldest first."""

    def __init__(self, runtime: Runtime, system: System, needs_thread: bool) -> None:
        self._runtime = runtime
        self._needs_thread = needs_thread
        self._lock = system.lock()
        self._kept: dict[int, Snapshot] = {}
        self._releasing = False
        self._closed = system.event()

    def keep(self, snapshot: Snapshot) -> None:
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
            try:
                self._runtime.spawn(self._release_until_empty, "fdbqueue-versions")
            except RuntimeError:  # at the limit of threads, or while the interpreter ends
                self.release()
                self._releasing = False

    def release_expired(self, now_s: float) -> None:
        """Release the versions that were handed out five seconds ago or earlier."""
        with self._lock:
            expired = [version for version, kept in self._kept.items() if kept.expires_s <= now_s]
            released = [self._kept.pop(version) for version in expired]
        del released

    def release(self, share: int = 1) -> None:
        """Give reader slots back: the oldest 1/`share` of the versions cannot be read any more."""
        with self._lock:
            count = -(-len(self._kept) // share)
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
        self._closed.set()
        self.release()


PRIVATE = "memory:"
_READERS_MAX = 4096
_READER_BYTES, _LOCKS_BYTES = 64, 128  # of LMDB's lock file
_META_PAGES = 2
_BEGINS_TRIED = 10  # another process may grow the map again between two tries
_ROOM_BYTES_LEAST = 64 * 1024


class Environment:
    """What a store and its services use of LMDB. The store opens it, and `handed_out` with it."""

    env: Any
    handed_out: HandedOutVersions

    def __init__(self, directory: Directory, runtime: Runtime, private: bool, system: System) -> None:
        self.directory = directory
        self.path = PRIVATE if private else directory.path
        self.runtime = runtime
        self.private = private
        self.system = system
        self.in_place = InPlace(directory, (), runtime, system.stat)
        self.reserve: Reserve | None = None
        self._closed = False
        self._opening = system.lock()
        self._live: dict[int, weakref.ref[Snapshot]] = {}
        self._serials = count()  # two threads never get one number
        self._files: list[int] = []  # the data file; of a private store also the lock file

    def new_journal(self) -> Journal:
        """Return the journal of this directory, with files of its own."""
        return Journal(self.directory, self.runtime, self.system)

    def _prepare_files(self) -> None:
        """Make both files before LMDB does: they get the right owner, and the lock file gets its room. LMDB
        maps the lock file without reserving room for it, and an access without room kills the process. The
        descriptor is closed before LMDB opens the file, since a later close would end LMDB's locks.
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
        except (lmdb.Error, MemoryError) as error:
            raise self._opening_error(error) from None

    def _opening_error(self, error: Exception) -> Exception:
        lack = self._lack()
        return refusal(self.path, error) if lack is None else no_room(self.path, lack)

    # -- snapshots --------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the newest version; it contains each commit that has returned, in any process."""
        self.end_expired(now_s)
        return Snapshot(self.begin(), now_s + TRANSACTION_AGE_MAX_S, self._live, next(self._serials))

    def snapshot_at(self, version: int, now_s: float) -> Snapshot:
        """Return the snapshot of `version`: the newest version, or one in use or handed out in this process.
        LMDB keeps an old version only while a read transaction is open at it. Raises: FDBError 1009 for a
        future version, 1007 for any other one.
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
        """Begin an LMDB transaction at the newest version. Raises: FDBError 1037 if too many are open."""
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
                    self.handed_out.release(share=2)
            return self.env.begin(write=write)
        except lmdb.ReadersFullError:
            raise FDBError(1037) from None  # too many transactions are open: a retry may succeed
        except lmdb.Error as error:
            if self._closed:
                raise DatabaseClosed from None
            raise failed(error) from None

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
            return layout.last_place(txn)

    # -- writing ----------------------------------------------------------------------------------------

    def require_in_place(self) -> None:
        """Check that the data and lock files of the directory are still the open ones. Otherwise a commit
        would go into a file without a name, or two processes that lock different files would write at once.
        Raises: StorageReplaced.
        """
        self.in_place.require()

    def end_snapshots(self) -> None:
        """End all snapshots of this process, so that LMDB may reuse their pages; their readers get 1007."""
        self.handed_out.release()
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
        except lmdb.Error as error:
            raise self.storage_error(error) from None

    def storage_error(self, error: Exception) -> Exception:
        """Return the user's error for a failed write: StorageFull, or FDBError 1510 (a broken disk)."""
        code = code_of(error)
        if code == errno.EIO:
            code = self._lack() or code
        return no_room(self.path, code) if lacks_room(code) else failed(error)

    def lack_in(self, error: Exception) -> int | None:
        """Return the errno of the lack of room or memory that `error` means, which failed a commit."""
        if isinstance(error, lmdb.Error | OSError):
            error = self.storage_error(error)
        return error.code if isinstance(error, StorageFull) else None

    def free_bytes(self) -> int:
        """Return the bytes of free pages in the data file; old snapshots may still use some of them."""
        stat = self.env.stat()
        used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + _META_PAGES
        return int((self.env.info()["last_pgno"] + 1 - used) * stat["psize"])

    def oldest_reader(self, otherwise: int) -> int:
        """Return the oldest version at which any process reads; `otherwise` if there is none."""
        rows = [row.split()[-1] for row in self.env.readers().splitlines()[1:]]
        return min((int(version) for version in rows if version != "-"), default=otherwise)

    def _lack(self) -> int | None:
        """Return the errno of a write for which there is no room now; None if there is room."""
        # A disk that fills up cuts a write short, and LMDB reports that as an I/O error.
        disk = os.fstatvfs(self.directory.fd)
        if disk.f_bavail * disk.f_frsize < _ROOM_BYTES_LEAST:
            return errno.ENOSPC
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        size_bytes = max((os.fstat(fd).st_size for fd in self._files), default=0)
        return errno.EFBIG if 0 <= limit_bytes <= size_bytes else None
