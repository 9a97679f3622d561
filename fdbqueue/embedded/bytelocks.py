"""Locks on single bytes of an open file, which the kernel ends with their holder, however that dies.

Open file description locks: unlike those of fcntl(2)'s older kind, they do not end when another part of the
process (a backup, say) opens and closes the file. They end when the last descriptor of the file description
is closed, and two things duplicate a descriptor without being asked: a fork, and `mmap`, which keeps its
duplicate as long as the map. A child with such a duplicate keeps the locks of a parent that was killed, and
all processes of the directory then wait until the child ends. A `LockFile` is proof against both.
"""

import errno
import fcntl
import mmap
import os
import struct
import weakref

from fdbqueue.embedded.directory import Directory, by_descriptor

_FLOCK = struct.Struct("@hhqqi")  # type, whence, start, length, 0


class LockFile:
    """An open file with locks on its bytes; a forked child closes it before any other code runs there."""

    def __init__(self, directory: Directory, name: str) -> None:
        """Open the file, or make it. Raises UnsafePath; OSError, also where there are no such locks."""
        self.fd = -1
        _open_files.add(self)
        self.fd = directory.open_file(name)
        check(self.fd)

    def map(self, size_bytes: int) -> mmap.mmap:
        """The first `size_bytes` in memory, with room on the disk: a page without room kills the process.

        The map has a file description of its own, on which nothing is locked.
        """
        if os.fstat(self.fd).st_size < size_bytes:
            os.posix_fallocate(self.fd, 0, size_bytes)
        unlocked_fd = os.open(by_descriptor(self.fd), os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(unlocked_fd, size_bytes)
        finally:
            os.close(unlocked_fd)

    def close(self) -> None:
        """End all locks of this file; a second call has no effect."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


_open_files: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Also the files of a store that is being opened or closed, which no registry of stores knows.
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


def check(fd: int) -> None:
    """Raises OSError where the system, or that of the file, has no such locks."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        raise OSError(errno.ENOLCK, "no open file description locks")
    is_locked(fd, 0)


def try_lock(fd: int, at: int) -> bool:
    """Lock the byte at `at`, if nobody else holds it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def wait_until_free(fd: int, at: int) -> None:
    """Return once its holder has let go of the byte at `at`, or is dead. Many can wait for one."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, at, 1, 0))
    unlock(fd, at)


def unlock(fd: int, at: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, at, 1, 0))


def is_locked(fd: int, at: int) -> bool:
    """Whether somebody else holds the byte at `at`."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
