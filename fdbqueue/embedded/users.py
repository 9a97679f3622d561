"""The processes that use a directory, and whether its file `data.mdb` may be believed.

LMDB writes `data.mdb` without a flush, so the file is right as long as the page cache lives: for one boot of
the machine. The file `in-use` has the *mark* of that boot, and a lock that all users share:

    mark    boot id, mount, device and inode of `data.mdb`, as text
    lock    a process shares it while it has the directory open; the first one has it alone until the mark is
            there. If it dies before that, another one has to be the first

A directory that was copied, or restored from a snapshot of its file system, has another device or inode.
"""

import os

from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.system import SYSTEM, System

FILE = "in-use"
_LOCK = 1 << 40
_CHECKPOINT_LOCK = _LOCK + 1
_MARK_BYTES_MAX = 512
_UNKNOWN = b"unknown"  # the mark where the system tells none
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Users:
    """The file `in-use`, as one process sees it."""

    def __init__(self, directory: Directory, system: System = SYSTEM) -> None:
        """Raises: UnsafePath, OSError (also where the file system has no byte locks)."""
        self._system = system
        self._file = system.lock_file(directory, FILE)

    def try_alone(self) -> bool:
        """Be the only user; False if there are others."""
        return self._file.try_lock(_LOCK)

    def join(self) -> None:
        """Be one of the users, once no other one is alone."""
        self._file.share(_LOCK)

    def leave(self) -> None:
        self._file.unlock(_LOCK)

    def believes(self, data_fd: int) -> bool:
        """True if the open file `data.mdb` is right in this boot."""
        return _mark(data_fd) is not None and self.is_ready(data_fd)

    def is_ready(self, data_fd: int) -> bool:
        """True if the user that was alone has noted that the file is right: it may have died before that."""
        mark = _mark(data_fd) or _UNKNOWN
        return mark == self._system.pread(self._file.fd, _MARK_BYTES_MAX, 0)

    def believe(self, data_fd: int) -> None:
        """Note that the open file `data.mdb` is right from now on; for the only user."""
        mark = _mark(data_fd) or _UNKNOWN
        os.ftruncate(self._file.fd, len(mark))
        self._system.pwrite(self._file.fd, mark, 0)

    def doubt(self) -> None:
        """Note that `data.mdb` is not right; for the only user."""
        os.ftruncate(self._file.fd, 0)

    def try_checkpoint(self) -> bool:
        """Be the process that writes the base; False if another process does."""
        return self._file.try_lock(_CHECKPOINT_LOCK)

    def begin_checkpoint(self) -> None:
        """Be the process that writes the base, once no other process does."""
        while not self.try_checkpoint():
            self._file.wait_until_free(_CHECKPOINT_LOCK)

    def end_checkpoint(self) -> None:
        self._file.unlock(_CHECKPOINT_LOCK)

    def close(self) -> None:
        self._file.close()


def _mark(data_fd: int) -> bytes | None:
    """Return the mark of this boot for an open file; None if the system does not tell it."""
    try:
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
        with open(f"/proc/self/fdinfo/{data_fd}") as file:
            mount = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    except (OSError, StopIteration):
        return None
    status = os.fstat(data_fd)
    return f"{boot} {mount} {status.st_dev} {status.st_ino}".encode()
