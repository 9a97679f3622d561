"""The directory of a database: its files, the calls by which its processes meet, and errors of the system.

Errors of the system are told with their cause and their cure: no room, no memory, no rights, a broken disk.

An attacker may have planted a link, a pipe or a device under one of our names, or a whole directory. So a
path is walked one part at a time. A link above the directory is followed if root or the caller made it. Below
the directory no link is followed, and only regular files are opened. All names below the directory are looked
up in its descriptor, which cannot be exchanged. Files are asked if they are still in place.

Processes meet by byte locks, shared memory, LMDB and sockets. The commit path and the watches make these
calls through the `System` of their store. The simulation gives each simulated process a System of its own:
each call may stop or end the process (tests/system/processes/). In production each field is the function
itself, so the seam costs nothing.

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
import stat
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import lmdb

from fdbqueue.core.errors import (
    DescriptorsClosed,
    MemoryFull,
    StorageFull,
    StorageInUse,
    StorageReplaced,
    UnsafePath,
)
from fdbqueue.core.runtime import Event, Lock, RealRuntime, Runtime
from fdbqueue.core.seam import FDBError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""There is no room on the disk, or this process gets none."""
_IO_ERROR = 1510
_NO_ROOM = {
    errno.ENOSPC: ("No room on the disk of {path}", "free room on the disk"),
    errno.EDQUOT: ("No room in the disk quota of this user at {path}", "raise the quota"),
    errno.EFBIG: (
        "A file of {path} has the largest size that this process may write",
        "start it with a larger limit (ulimit -f, LimitFSIZE=)",
    ),
}
_LOOK = "run `fdbqueue doctor`"
_CURES = {
    errno.ENOMEM: "start the process with more address space (ulimit -v, LimitAS=) or memory (MemoryMax=)",
    errno.EIO: "the disk has failed: read the log of the kernel (dmesg), and replace the disk",
    errno.EROFS: "mount the file system for writing; the kernel may have made it read-only after an error",
    errno.EACCES: "run as its owner, or give this user the rights",
    errno.EPERM: "run as its owner, or give this user the rights",
    errno.EMFILE: "start the process with a larger limit of open files (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "raise the limit of open files of the system (sysctl fs.file-max)",
    errno.ENOLCK: "use a local file system with byte locks, not one of a network",
}


def code_of(error: Exception) -> int:
    """Return the errno of an OSError or an lmdb.Error; those of LMDB itself are below zero, or EIO."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    return code or errno.EIO  # the default: a write that was cut short


def no_room(path: str, code: int = errno.ENOSPC) -> StorageFull:
    """Return the user's error for a commit that found no room, or no memory, by the errno of the lack. With
    another errno, the base of the directory cannot be written, so that the journal has no room.
    """
    if code == errno.ENOMEM:
        return MemoryFull(path=path, code=code, cure=_CURES[code])
    said = os.strerror(code) if code > 0 else "it is damaged"
    broken = f"The base of {{path}} cannot be written ({said})"
    cause, cure = _NO_ROOM.get(code, (broken, _CURES.get(code, _LOOK)))
    return StorageFull(path=path, code=code, cause=cause.format(path=path), cure=cure)


def lacks_room(code: int) -> bool:
    return code in FULL or code == errno.ENOMEM


def failed(error: Exception) -> FDBError:
    return FDBError(_IO_ERROR, _reason(error))


def refusal(path: str, error: Exception) -> Exception:
    code = code_of(error)
    return no_room(path, code) if code in FULL else StorageInUse(path=path, reason=_reason(error))


def _reason(error: Exception) -> str:
    code = code_of(error)
    told = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    said, cure = told or os.strerror(code), _CURES.get(code)
    return said if cure is None else f"{said}: {cure}"


PRIVATE_MODE = 0o700
_LINKS_MAX = 40  # as the kernel's own walk
_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # a link is opened, not followed
_NO_SYNC = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})  # of a file system without directory syncs
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SHARED_FILE, _SHARED_DIRECTORY = 0o066, stat.S_ISGID | 0o077
_CURE = "give --shared-directory, or shared_directory=True, if all users that may write there are trusted"


class Directory:
    """An open directory, in which files are opened by name. A file that root makes in another user's
    directory gets that user as its owner; otherwise the user could not open it. In a `shared` directory,
    files have the directory's permissions for group and others.
    """

    def __init__(self, fd: int, path: str, shared: bool = False) -> None:
        self.fd = fd
        self.path = path
        self._shared = shared
        status = os.fstat(fd)
        self._owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None
        mode = stat.S_IMODE(status.st_mode) if shared else 0
        self.file_mode = 0o600 | (mode & _SHARED_FILE)
        self._directory_mode = PRIVATE_MODE | (mode & _SHARED_DIRECTORY)

    @classmethod
    def open(cls, path: str, *, shared: bool = False) -> "Directory":
        """Open the directory at `path`, and make missing levels, readable by their owner only."""
        try:
            fd = walked(path)
        except NotADirectoryError:
            raise StorageInUse(path=path, reason="it is a file, and no directory") from None
        except OSError as error:
            raise refusal(path, error) from None
        try:
            _require_trusted(fd, path, shared)
            return cls(fd, os.readlink(by_descriptor(fd)), shared)
        except BaseException:
            os.close(fd)
            raise

    def subdirectory(self, name: str) -> "Directory":
        """Open the directory `name` in this one, or make it. Raises: UnsafePath, OSError."""
        try:
            os.mkdir(name, PRIVATE_MODE, dir_fd=self.fd)
            is_new = True
        except FileExistsError:
            is_new = False
        try:
            fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=self.fd)
        except OSError as error:
            raise self._unsafe(name, "directory", error) from None
        if is_new:
            self._hand_over(fd, self._directory_mode)
        return Directory(fd, os.path.join(self.path, name), self._shared)

    def open_file(self, name: str) -> int:
        """Open the regular file `name`, or make it; return its descriptor. Raises: UnsafePath, OSError."""
        while True:
            try:
                fd, is_new = os.open(name, _FILE_FLAGS, dir_fd=self.fd), False
            except FileNotFoundError:
                try:
                    made = _FILE_FLAGS | os.O_CREAT | os.O_EXCL
                    fd, is_new = os.open(name, made, self.file_mode, dir_fd=self.fd), True
                except FileExistsError:
                    continue  # another process was first
            except OSError as error:
                raise self._unsafe(name, "regular file", error) from None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise UnsafePath(path=self.path, reason=f"{name} is no regular file")
            if is_new:
                self._hand_over(fd, self.file_mode)
            return fd

    def hand_over(self, name: str) -> None:
        """Give the new socket `name` the owner and the permissions of the directory's files."""
        if self._shared:
            os.chmod(name, self.file_mode, dir_fd=self.fd)
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.fd)

    def size_bytes(self, name: str) -> int:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def sync_entries(self) -> None:
        """Make the names in this directory durable, its own, and those of new directories above it."""
        _sync(self.fd)
        path = os.path.dirname(self.path)
        # A level with another entry is no new one. A process that was killed may have made the levels.
        while _sync_level(path) == 1 and path != "/":
            path = os.path.dirname(path)

    def close(self) -> None:
        os.close(self.fd)

    def _hand_over(self, fd: int, mode: int) -> None:
        if self._shared:
            os.fchmod(fd, mode)
        if self._owner is not None:
            os.fchown(fd, *self._owner)

    def _unsafe(self, name: str, wanted: str, error: OSError) -> Exception:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            return UnsafePath(path=self.path, reason=f"{name} is no {wanted}")
        return error


def walked(path: str) -> int:
    """Open the directory at `path`, and make missing levels. Raises: UnsafePath, OSError."""
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts, links = _parts(path), 0
    try:
        while parts:
            below = _open_part(parts.pop(), at)
            target = _target(below, path)
            if target is None:
                os.close(at)
                at = below
                continue
            os.close(below)
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            parts += _parts(target)
            if target.startswith("/"):
                os.close(at)
                at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return os.open(".", _DIRECTORY_FLAGS, dir_fd=at)
    finally:
        os.close(at)


def _sync_level(path: str) -> int:
    """Make the names in a directory durable; return their number (0 if it is unreadable: we made none)."""
    try:
        fd = os.open(path, _DIRECTORY_FLAGS)
    except (PermissionError, FileNotFoundError):
        return 0
    try:
        _sync(fd)
        with os.scandir(fd) as entries:
            return len(list(islice(entries, 2)))
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _parts(path: str) -> list[str]:
    """Return the parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open_part(name: str, at: int) -> int:
    try:
        return os.open(name, _PART_FLAGS, dir_fd=at)
    except FileNotFoundError:
        try:
            os.mkdir(name, PRIVATE_MODE, dir_fd=at)
        except FileExistsError:
            return os.open(name, _PART_FLAGS, dir_fd=at)  # another process was first
        fd = os.open(name, _PART_FLAGS, dir_fd=at)
        if stat.S_IMODE(os.fstat(fd).st_mode) & PRIVATE_MODE != PRIVATE_MODE:
            os.chmod(by_descriptor(fd), PRIVATE_MODE)  # the umask may remove bits of the owner too
        return fd


def _target(fd: int, path: str) -> str | None:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISLNK(status.st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if status.st_uid not in (0, os.geteuid()):
        os.close(fd)
        raise UnsafePath(path=path, reason=f"a link on the way was made by user {status.st_uid}")
    return os.readlink("", dir_fd=fd)


def _require_trusted(fd: int, path: str, shared: bool) -> None:
    if shared:
        return
    status, user = os.fstat(fd), os.geteuid()
    if status.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        reason = f"group or others may write to it (mode {mode}): run chmod go-w on it, or {_CURE}"
        raise UnsafePath(path=path, reason=reason)
    if user and status.st_uid not in (0, user):
        raise UnsafePath(path=path, reason=f"it belongs to user {status.st_uid}: {_CURE}")


def by_descriptor(fd: int) -> str:
    """Return a path of the open file `fd` that does not depend on its name."""
    return f"/proc/self/fd/{fd}"


_NOWHERE = (0, 0)
_MTIME_STEP_NS = 1_000_000_000  # two changes of a directory that are closer may have one modification time


class InPlace:
    """The names of open files in a directory, which must stay where they are. As long as the directory has
    not changed, one system call is enough. No written file may be asked for its state at each commit: Linux
    6.13 then gives the next write a time of its own, and the flush gets slower.
    """

    def __init__(
        self,
        directory: Directory,
        names: Sequence[str],
        runtime: Runtime,
        stat: Callable[[str], os.stat_result],
    ) -> None:
        opened = by_descriptor(directory.fd)
        self._directory = directory
        self._itself = _of(os.fstat(directory.fd))
        self._path = directory.path
        self._runtime = runtime
        self._stat = stat
        self._known = [(name, _identity(opened, name)) for name in names]
        self._looked_at = _NOWHERE
        self.looks = 0
        """Counts the times that the directory may have changed since the call of `require` before."""

    def require(self) -> None:
        """Check that each name still leads to the open file. Raises: StorageReplaced, DescriptorsClosed."""
        self._require_open()
        try:
            status = self._stat(self._path)
            looked_at = (status.st_ino, status.st_mtime_ns)
            if looked_at != self._looked_at:
                self._look(status.st_mtime_ns, looked_at)
        except (FileNotFoundError, NotADirectoryError):
            raise StorageReplaced(path=self._path, file=self._known[0][0]) from None
        except PermissionError:
            # The user may not search a parent directory, or the process has dropped its rights.
            self.looks += 1

    def _require_open(self) -> None:
        """Raises: DescriptorsClosed. The start of a daemon closes all descriptors. Their numbers go to other
        files then, and a commit would write into these.
        """
        fd = self._directory.fd
        try:
            is_open = fd < 0 or _of(os.fstat(fd)) == self._itself  # below 0: closed by us
        except OSError:
            is_open = False
        if not is_open:
            raise DescriptorsClosed(path=self._path, file=".")

    def _look(self, changed_ns: int, looked_at: tuple[int, int]) -> None:
        self.looks += 1
        for name, known in self._known:
            if _identity(self._path, name) != known:
                raise StorageReplaced(path=self._path, file=name)
        if self._runtime.now() * 1e9 - changed_ns > _MTIME_STEP_NS:
            self._looked_at = looked_at


def _identity(path: str, name: str) -> tuple[int, int]:
    try:
        return _of(os.stat(f"{path}/{name}"))
    except FileNotFoundError:
        return _NOWHERE


def _of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


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
