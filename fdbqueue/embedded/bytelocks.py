"""Locks on single bytes of an open file, which the kernel ends with their holder, however that dies.

Open file description locks: unlike those of fcntl(2)'s older kind, they do not end because somebody in the
same process (a backup, say) opens and closes the file. A forked child shares them until it closes its
descriptor.
"""

import errno
import fcntl
import struct

_FLOCK = struct.Struct("@hhqqi")  # type, whence, start, length, 0


def check(fd: int) -> None:
    """Raises OSError where this system, or the file's, has no such locks."""
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
