"""Errors of the system in words: the file, what is wrong with it, and the cure, without a number."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NO_DIRECTORY = "the working directory was removed: change to one that exists"
_WORDS: Mapping[int, str] = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of this path is a file, and no directory",
    errno.EISDIR: "it is a directory, and no file",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.ENAMETOOLONG: "this name is too long for its file system",
    errno.EACCES: "this user may not open or change it",
    errno.EPERM: "this user may not do that with it",
    errno.EROFS: "its file system can only be read",
    errno.ENOSPC: "there is no room left on its disk",
    errno.EDQUOT: "this user has no room left on its disk",
    errno.EFBIG: "it would become too large: `ulimit -f` or its file system bounds the size of a file",
    errno.EIO: "the disk has failed: the log of the system tells more",
    errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
    errno.ENFILE: "the system has too many open files",
    errno.ENOMEM: "the memory does not suffice",
}


def told(error: OSError) -> str:
    """The error without its number, and with its file, if it tells one."""
    path = error.filename
    if error.errno == errno.ENOENT and is_removed(path):
        return NO_DIRECTORY
    said = _WORDS.get(error.errno or 0) or error.strerror or str(error)
    return f"{os.fsdecode(path)}: {said}" if isinstance(path, str | bytes) else said


def is_removed(path: str | bytes | None) -> bool:
    """True if the working directory, from which the path leads, was removed."""
    if path is not None and os.path.isabs(path):
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Name the path in errors of the block that name no file, such as those of a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
