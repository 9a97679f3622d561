"""A rename that replaces nothing, in one step: Linux has it, Python's os has not.

A link and an unlink would be two steps, with a kill in between: the file has both names, and when the new one
is gone nobody can tell whether it has never been there, or a consumer has taken it since.
"""

import ctypes
import errno
import os
from collections.abc import Callable

# Of <linux/fs.h> and <fcntl.h>, the same on every architecture.
_RENAME_NOREPLACE = 1
# The C library, the kernel, or the file system (NFS) has no such rename.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

_renameat2: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def rename_new(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
    """Rename within two open directories. Raises FileExistsError if there is a `target`, and other OSErrors.

    Where there is no such rename: looks first. A file that somebody makes in the very moment between is
    replaced then.
    """
    number = _rename(source, target, source_fd, target_fd)
    if number in _UNSUPPORTED:
        number = _look_and_rename(source, target, source_fd, target_fd)
    if number:
        raise OSError(number, os.strerror(number), source, None, target)


def _rename(source: str, target: str, source_fd: int, target_fd: int) -> int:
    """The errno."""
    if _renameat2 is None:
        return errno.ENOSYS
    names = os.fsencode(source), os.fsencode(target)
    failed = _renameat2(source_fd, names[0], target_fd, names[1], _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _look_and_rename(source: str, target: str, source_fd: int, target_fd: int) -> int:
    if exists(target, target_fd):
        return errno.EEXIST
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except OSError as error:
        # A directory with something in it has come between.
        return errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno or errno.EIO
    return 0


def exists(name: str, at: int) -> bool:
    """Whether the open directory `at` has such a name, be it of a broken link."""
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
