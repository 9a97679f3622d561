"""Files below the descriptor of an open directory: no name can lead through a link to another place."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Of <linux/fs.h>, the same on every architecture.
_RENAME_NOREPLACE = 1
# The C library, the kernel, or the file system (NFS) has no such rename.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

# Python's os has no rename that fails if the target exists. A link and an unlink instead are two steps:
# after a kill in between the file has both names. If the new one is gone later, either the link was never
# made, or a consumer has taken the file.
_renameat2: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def directory(name: str, at: int) -> Iterator[int]:
    """A descriptor of the directory `name`. Raises NotADirectoryError for anything else, also for a link."""
    with closing(os.open(name, DIRECTORY_FLAGS, dir_fd=at)) as fd:
        yield fd


def listed(name: str, at: int) -> list[str]:
    """Names in the directory `name`; none if there is no such directory."""
    try:
        with directory(name, at) as fd:
            return os.listdir(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_new(name: str, at: int, data: bytes, owner: tuple[int, int] | None) -> None:
    with open(os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=at), "wb") as file:
        file.write(data)
        file.flush()
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fsync(file.fileno())


def sync(*directories: int) -> None:
    for each in directories:
        os.fsync(each)


def rename_new(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
    """Rename between two open directories, in one step, unless there is a `target`.

    A system without such a rename gets a look and a rename. A file made in between is then replaced.
    """
    number = _rename(source, target, source_fd, target_fd)
    if number in _UNSUPPORTED:
        number = _look_and_rename(source, target, source_fd, target_fd)
    if number:
        raise OSError(number, os.strerror(number), source, None, target)


def _rename(source: str, target: str, source_fd: int, target_fd: int) -> int:
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
        # A directory that is not empty was made in between.
        return errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno or errno.EIO
    return 0


def exists(name: str, at: int) -> bool:
    """True if the open directory `at` has an entry `name`; a broken link counts."""
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
