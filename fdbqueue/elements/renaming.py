"""A rename that replaces nothing, in one step: Linux has it, Python's os has not.

A link and an unlink would be two steps, with a kill in between: the file has both names, and when the new one
is gone nobody can tell whether it has never been there, or a consumer has taken it since.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

# Of <linux/fs.h> and <fcntl.h>, the same on every architecture.
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
# The C library, the kernel, or the file system (NFS) has no such rename.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

_renameat2: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def rename_new(source: Path, target: Path) -> None:
    """Raises FileExistsError if there is a `target`, and other OSErrors.

    Where there is no such rename: looks first. A file that somebody makes in the very moment between is
    replaced then.
    """
    number = _rename(source, target)
    if number in _UNSUPPORTED:
        number = _look_and_rename(source, target)
    if number:
        raise OSError(number, os.strerror(number), str(source), None, str(target))


def _rename(source: Path, target: Path) -> int:
    """The errno."""
    if _renameat2 is None:
        return errno.ENOSYS
    names = os.fsencode(source), os.fsencode(target)
    failed = _renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _look_and_rename(source: Path, target: Path) -> int:
    if os.path.lexists(target):
        return errno.EEXIST
    try:
        os.rename(source, target)
    except OSError as error:
        # A directory with something in it has come between.
        return errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno or errno.EIO
    return 0
