"""The processes that use a directory, and whether its file `data.mdb` may be believed.

LMDB writes `data.mdb` without a flush, so the file is right as long as the page cache lives: for one boot of
the machine. The file `in-use` has the *mark* of that boot, and a lock that all users share:

    mark    the text that names this boot and the file `data.mdb` (mark.py)
    lock    a process shares it while it has the directory open; the first one has it alone until the mark is
            there
    entry   another lock, which one process at a time has while it opens the directory. So each process that
            shares the first lock found the directory ready, or has made it so: if the first one dies before
            that, the next one begins again

A directory that was copied, or restored from a snapshot of its file system, has another mark.
"""

from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.mark import mark_of
from fdbqueue.embedded.system import SYSTEM, System

FILE = "in-use"
_LOCK = 1 << 40
_CHECKPOINT_LOCK = _LOCK + 1
_ENTRY_LOCK = _LOCK + 2
_MARK_BYTES = 512


class Users:
    """The file `in-use`, as one process sees it."""

    def __init__(self, directory: Directory, system: System = SYSTEM) -> None:
        """Raises: UnsafePath, OSError (also where the file system has no byte locks)."""
        self._system = system
        self._file = system.lock_file(directory, FILE)

    def enter(self) -> bool:
        """Begin to open the directory, alone; True for the only user, False if there are others.

        This waits for another process that opens it.
        """
        self._file.lock(_ENTRY_LOCK)
        return self._file.try_lock(_LOCK)

    def join(self) -> None:
        """Be one of the users, after `enter`: the directory is ready."""
        self._file.share(_LOCK)
        self._file.unlock(_ENTRY_LOCK)

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
