"""Locks on single bytes of an open file; the kernel ends them when their holder dies.

They are open file description locks. The older kind of fcntl(2) ends as soon as another part of the process
(a backup, say) opens and closes the file. These locks end when the last descriptor of the file description
closes. Two calls duplicate a descriptor silently: a fork, and `mmap`, which keeps its duplicate for the life
of the map. A child with such a duplicate would keep the locks of a killed parent, and all processes of the
directory would wait until the child ends. A `LockFile` prevents both duplicates.
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
        """Open the file, or make it.

        Raises: UnsafePath, OSError (also where the system has no such locks).
        """
        self.fd = -1
        _open_files.add(self)
        self.fd = directory.open_file(name)
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError(errno.ENOLCK, "no open file description locks")
        self.is_locked(0)  # raises where the file system has no such locks

    def map(self, size_bytes: int) -> mmap.mmap:
        """Map the first `size_bytes`, with room on the disk: writing a page without room kills the process.

        The map has a file description of its own, without locks.
        """
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
        """Lock the byte at `at`; this waits for all other holders."""
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))

    def unlock(self, at: int) -> None:
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, at, 1, 0))

    def is_locked(self, at: int) -> bool:
        """True if another holder has the byte at `at`."""
        answer = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, at, 1, 0))
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
