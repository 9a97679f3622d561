"""The calls by which the processes of a directory meet: byte locks, shared memory, LMDB, sockets.

The commit path and the watches make these calls through the `System` of their store. The simulation gives
each simulated process a System of its own: each call may stop or end the process (tests/system/processes/).
In production each field is the function itself, so the seam costs nothing.

The byte locks are open file description locks; the kernel ends them when their holder dies. The older kind of
fcntl(2) ends as soon as another part of the process (a backup, say) opens and closes the file. These locks
end when the last descriptor of the file description closes. Two calls duplicate a descriptor silently: a
fork, and `mmap`, which keeps its duplicate for the life of the map. A child with such a duplicate would keep
the locks of a killed parent, and all processes of the directory would wait until the child ends. A `LockFile`
prevents both duplicates.

The holder of a lock may be stopped while others wait. The kernel lists the locks of each open file in /proc,
beside the process that has it open. A user may read that of own processes, and root that of all.
"""

import errno
import fcntl
import mmap
import os
import re
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import lmdb

from fdbqueue.core.runtime import Event, Lock, RealRuntime
from fdbqueue.embedded.directory import Directory, by_descriptor

_FLOCK = struct.Struct("@hhqqi")  # type, whence, start, length, 0


class LockFile:
    """An open file with locks on its bytes; a forked child closes it before any other code runs there."""

    def __init__(self, directory: Directory, name: str) -> None:
        """Open the file, or make it. Raises: UnsafePath, OSError (also of a system without such locks)."""
        self.fd = -1
        _open_files.add(self)
        self.fd = directory.open_file(name)
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError(errno.ENOLCK, "no open file description locks")
        self.is_locked(0)  # raises where the file system has no such locks

    def map(self, size_bytes: int) -> mmap.mmap:
        """Map `size_bytes` with room on the disk: writing a page without room kills. No locks are mapped."""
        if os.fstat(self.fd).st_size < size_bytes:
            os.posix_fallocate(self.fd, 0, size_bytes)
        unlocked_fd = os.open(by_descriptor(self.fd), os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(unlocked_fd, size_bytes)
        finally:
            os.close(unlocked_fd)

    def try_lock(self, at: int) -> bool:
        """Lock the byte at `at`; False if another holder has it."""
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def wait_until_free(self, at: int) -> None:
        """Return once the holder of the byte at `at` has unlocked it or died. Several processes may wait."""
        self.share(at)
        self.unlock(at)

    def share(self, at: int) -> None:
        """Lock the byte at `at` together with others that share it; this waits for one that has it alone."""
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, at, 1, 0))

    def lock(self, at: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))

    def unlock(self, at: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, at, 1, 0))

    def is_locked(self, at: int, count: int = 1) -> bool:
        """True if another holder has one of the `count` bytes from `at` on."""
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, at, count, 0))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """End all locks of this file; a second call has no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


_open_files: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # These include files of a store that is being opened or closed, which no registry of stores knows.
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


_LOCK = re.compile(r"^lock:\s+\d+: OFDLCK +ADVISORY +WRITE \S+ \S+:(\d+) (\d+) (\d+|EOF)$", re.MULTILINE)
_STOPPED = ("T", "t")  # by a signal, by a debugger
_COMMAND_LENGTH_MAX = 60


@dataclass(frozen=True)
class LockHolder:
    """A process that holds a lock for which others wait."""

    process_id: int
    command: str
    is_stopped: bool

    def __str__(self) -> str:
        if self is UNKNOWN:
            return "a process that this user may not see"
        return f"process {self.process_id} ({self.command}){', which is stopped' if self.is_stopped else ''}"

    @property
    def cure(self) -> str:
        """The next step. A process that is killed in its commit takes nothing with it."""
        if self is UNKNOWN:
            return "root sees it, by `fdbqueue doctor`"
        first = f"`kill -CONT {self.process_id}`" if self.is_stopped else "look at its disk"
        return f"{first}, or `kill -KILL {self.process_id}`: nothing acknowledged is lost"


UNKNOWN = LockHolder(0, "", is_stopped=False)


def holder_of(fd: int, at: int) -> LockHolder:
    """Return the process that has the byte at `at` of the open file `fd` alone; UNKNOWN if it is not told."""
    file = os.fstat(fd)
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError, ValueError):  # it has ended, or belongs to another user
            if any(_holds(process, opened, file, at) for opened in os.listdir(f"/proc/{process}/fdinfo")):
                return _see(process)
    return UNKNOWN


def _holds(process: str, opened: str, file: os.stat_result, at: int) -> bool:
    with open(f"/proc/{process}/fdinfo/{opened}", encoding="ascii") as info:
        found = any(begin <= at <= end for begin, end in _locked(info.read(), file.st_ino))
    return found and os.path.samestat(os.stat(f"/proc/{process}/fd/{opened}"), file)


def _locked(info: str, inode: int) -> Iterator[tuple[int, float]]:
    """Yield the ranges of a file that the fdinfo of a descriptor tells, both ends included."""
    for number, begin, end in _LOCK.findall(info):
        if int(number) == inode:
            yield int(begin), float("inf") if end == "EOF" else int(end)


def _see(process: str) -> LockHolder:
    with open(f"/proc/{process}/cmdline", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        state = file.read().rpartition(")")[2].split()[0]
    return LockHolder(int(process), " ".join(words).strip()[:_COMMAND_LENGTH_MAX], state in _STOPPED)


DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"  # LMDB's names for them
# Address space, not disk: the file grows with its contents. The size is a quarter if the system grants less,
# so that at least as much is left for the rest of the process. It is doubled when the contents reach it.
MAP_BYTES_FIRST = 1 << 40
_MAP_BYTES_LEAST = 1 << 24


def with_largest_map(opening: Callable[..., Any], path: str, **options: Any) -> Any:
    """Open an environment. Raises: lmdb.Error, MemoryError."""
    map_bytes = MAP_BYTES_FIRST
    while True:
        try:
            return opening(path, map_size=map_bytes, meminit=False, **options)
        except (lmdb.MemoryError, MemoryError):
            if map_bytes <= _MAP_BYTES_LEAST:
                raise
            map_bytes //= 4


def open_base(path: str, mode: int) -> Any:
    """Open an environment in one file, which only one process uses at a time."""
    return with_largest_map(lmdb.open, path, mode=mode, subdir=False, lock=False)


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _numbers(mapped: mmap.mmap, begin: int, end: int, kind: str) -> Any:
    return memoryview(mapped)[begin:end].cast(kind)  # type: ignore[call-overload]  # typed for literal kinds only


@dataclass(frozen=True)
class System:
    """The calls of one process; by default those of this one. `lock` and `event` are for the threads of one
    process, all others for the processes of a directory. `numbers` shows a part of a map as numbers: `Q` of 8
    bytes, `i` of 4 bytes with a sign.
    """

    lock: Callable[[], Lock] = RealRuntime.lock
    event: Callable[[], Event] = RealRuntime.event
    open_environment: Callable[..., Any] = lmdb.open
    open_base: Callable[[str, int], Any] = open_base
    lock_file: Callable[[Directory, str], LockFile] = LockFile
    holder_of: Callable[[int, int], LockHolder] = holder_of
    numbers: Callable[[mmap.mmap, int, int, str], "memoryview[int]"] = _numbers
    pread: Callable[[int, int, int], bytes] = os.pread
    pwrite: Callable[[int, bytes, int], int] = os.pwrite
    flush: Callable[[int], None] = os.fdatasync
    stat: Callable[[str], os.stat_result] = os.stat
    open_socket: Callable[[], socket.socket] = _datagram_socket
    poll: Callable[[], select.poll] = select.poll


SYSTEM = System()
