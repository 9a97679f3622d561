"""The processes that use a directory, and whether its file `data.mdb` may be believed.

LMDB writes `data.mdb` without a flush, so the file is right as long as the page cache lives: for one boot of
the machine. The file `in-use` has the *mark* of that boot, and a lock that all users share:

    mark    the text that names this boot, the mount of the file system, and the file `data.mdb`
    lock    a process shares it while it has the directory open; the first one has it alone until the mark is
            there
    entry   another lock, which one process at a time has while it opens the directory. So each process that
            shares the first lock found the directory ready, or has made it so: if the first one dies before
            that, the next one begins again
    namespace   a byte for each PID namespace, in which users share a lock: all users are of one
    names   a lock of each user on a byte of its own, at a random place. Its name tells the place, so every
            process learns from the kernel, at once, if the process of a name is gone

A directory that was copied, or restored from a snapshot of its file system, has another mark. A snapshot that
is put in the place of its original has the same inode, and mostly the same device. If another disk is mounted
at the same place, the number of the mount is mostly the same, too, since the kernel uses these numbers again.
So the mark has the *unique* number of the mount, which Linux knows since 6.8. It also has the id of the file
system, which tells the subvolumes of btrfs apart.

LMDB and the kernel tell processes and threads apart by their numbers, which repeat among PID namespaces. A
slot of a dead reader would look alive. And if a thread dies that waits for a lock of LMDB, the kernel takes
the lock away from its holder, a thread of the same number: then two processes write at once.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from hashlib import blake2b

from fdbqueue.core.errors import StorageInUse
from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.system import SYSTEM, System

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of <linux/stat.h> and <linux/fcntl.h>, the same on every architecture.
_AT_EMPTY_PATH, _MOUNT_UNIQUE = 0x1000, 0x4000
_STATX_BYTES, _MASK_BYTES, _MOUNT = 256, 4, slice(0x90, 0x98)

# Some C libraries have none.
_statx: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None)


def mark_of(fd: int) -> bytes | None:
    """Return the mark of this boot for an open file; None if the system does not tell it."""
    try:
        boot = boot_id()
        mount = _unique_mount(fd) or _mount(fd)
    except (OSError, StopIteration):
        return None
    status, system = os.fstat(fd), os.fstatvfs(fd).f_fsid
    return f"{boot} {mount} {system} {status.st_dev} {status.st_ino}".encode()


def boot_id() -> str:
    with open(_BOOT_ID) as file:
        return file.read().strip()


def _unique_mount(fd: int) -> int | None:
    """Return the number that no other mount has in this boot; None if the kernel knows none."""
    made = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _MOUNT_UNIQUE, made):
        return None
    told = int.from_bytes(made.raw[:_MASK_BYTES], sys.byteorder)
    return int.from_bytes(made.raw[_MOUNT], sys.byteorder) if told & _MOUNT_UNIQUE else None


def _mount(fd: int) -> int:
    """Return the number of the mount, which a later one may have, too. Raises: OSError, StopIteration."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


FILE = "in-use"
_LOCK = 1 << 40
_CHECKPOINT_LOCK = _LOCK + 1
_ENTRY_LOCK = _LOCK + 2
_MARK_BYTES = 512
_PAUSE_S = 0.01
_STOPPED_S = 5.0
NAMESPACES = 1 << 41
_NAMESPACE_BYTES = 5
_NAMESPACES = 1 << 8 * _NAMESPACE_BYTES
_NAMESPACE_FILE = "/proc/self/ns/pid"
OTHER_NAMESPACE = """processes of another PID namespace have it open (another container, the host, or \
another machine): give all processes of a directory one namespace, by docker run --pid=container:NAME or \
--pid=host, pid: in a compose file, or shareProcessNamespace in a pod"""
_NAME_LOCKS = 1 << 43
_NAME_START, _NAME_RANDOM_BYTES = b"fq\x00", 5
NAME_BYTES = len(_NAME_START) + _NAME_RANDOM_BYTES


class Users:
    def __init__(self, directory: Directory, runtime: Runtime, system: System = SYSTEM) -> None:
        """Raises: UnsafePath, OSError (also where the file system has no byte locks)."""
        self._path = directory.path
        self._runtime = runtime
        self._system = system
        self._file = system.lock_file(directory, FILE)
        self.name = b""
        """The name of this process, NAME_BYTES long; empty before `join`."""

    def enter(self) -> bool:
        """Begin to open the directory, alone; True for the only user, False if there are others. This waits
        for another process that opens it. Raises: StorageInUse if that one is stopped, or if the others are
        of another PID namespace.
        """
        look_s = self._runtime.monotonic() + _STOPPED_S
        while not self._file.try_lock(_ENTRY_LOCK):  # a large directory recovers for minutes
            if self._runtime.monotonic() >= look_s:
                holder = self._system.holder_of(self._file.fd, _ENTRY_LOCK)
                if holder.is_stopped:
                    reason = f"it waits for {holder} while it opens the directory: {holder.cure}"
                    raise StorageInUse(path=self._path, reason=reason)
                look_s += _STOPPED_S
            self._runtime.sleep(_PAUSE_S)
        self._share_namespace()
        return self._file.try_lock(_LOCK)

    def _share_namespace(self) -> None:
        own = NAMESPACES + _namespace()
        if self._file.is_locked(NAMESPACES, own - NAMESPACES) or self._file.is_locked(own + 1, _NAMESPACES):
            raise StorageInUse(path=self._path, reason=OTHER_NAMESPACE)
        self._file.share(own)

    def join(self, random_bytes: Callable[[int], bytes]) -> None:
        """Be one of the users, after `enter`: the directory is ready. This process gets a name."""
        while not self.name:
            name = _NAME_START + random_bytes(_NAME_RANDOM_BYTES)
            if self._file.try_lock(_place_of(name)):  # else another process has the name
                self.name = name
        self._file.share(_LOCK)
        self._file.unlock(_ENTRY_LOCK)

    def is_gone(self, name: bytes) -> bool | None:
        """True if the process with this name, or with more bytes behind it, has ended; None for another name.
        False as long as a child has the open files of its dead parent.
        """
        name = name[:NAME_BYTES]
        if self._file.fd < 0 or len(name) < NAME_BYTES or not name.startswith(_NAME_START):
            return None
        return name != self.name and not self._file.is_locked(_place_of(name))

    def believes(self, data_fd: int) -> bool:
        """True if the open file `data.mdb` is right in this boot."""
        mark = mark_of(data_fd)
        found = self._system.pread(self._file.fd, _MARK_BYTES, 0)
        return mark is not None and mark.ljust(_MARK_BYTES, b"\0") == found

    def believe(self, data_fd: int) -> None:
        """Note that the open file `data.mdb` is right from now on; for the only user."""
        mark = mark_of(data_fd)
        if mark is not None:
            self._write(mark)

    def doubt(self) -> None:
        """Note that `data.mdb` is not right; for the only user."""
        self._write(b"")

    def _write(self, mark: bytes) -> None:
        # The file keeps its size, since a full disk has no room for a new one.
        self._system.pwrite(self._file.fd, mark.ljust(_MARK_BYTES, b"\0"), 0)

    def try_checkpoint(self) -> bool:
        """Be the process that writes the base; False if another process does."""
        return self._file.fd >= 0 and self._file.try_lock(_CHECKPOINT_LOCK)

    def begin_checkpoint(self) -> None:
        """Be the process that writes the base, once no other one does."""
        self._file.lock(_CHECKPOINT_LOCK)

    def end_checkpoint(self) -> None:
        if self._file.fd >= 0:  # another thread may have closed the store
            self._file.unlock(_CHECKPOINT_LOCK)

    def close(self) -> None:
        self._file.close()


def _namespace() -> int:
    """Return a number above 0 for the PID namespace of this process."""
    try:
        text = f"{boot_id()} {os.stat(_NAMESPACE_FILE).st_ino}"
    except OSError:  # a system without namespaces
        text = ""
    return 1 + int.from_bytes(blake2b(text.encode(), digest_size=_NAMESPACE_BYTES).digest())


def _place_of(name: bytes) -> int:
    """The byte that the process of this name has locked."""
    return _NAME_LOCKS + int.from_bytes(name[len(_NAME_START) :])
