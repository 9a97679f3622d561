"""Errors of the system, each with its cause and its cure: no room, no memory, no rights, a broken disk."""

import errno
import os

from fdbqueue.core.errors import MemoryFull, StorageFull, StorageInUse
from fdbqueue.core.fdberror import FDBError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""There is no room on the disk, or this process gets none."""
_IO_ERROR = 1510
_NO_ROOM = {
    errno.ENOSPC: ("No room on the disk of {path}", "free room on the disk"),
    errno.EDQUOT: ("No room in the disk quota of this user at {path}", "raise the quota"),
    errno.EFBIG: (
        "A file of {path} has the largest size that this process may write",
        "start it with a larger limit (ulimit -f, LimitFSIZE=)",
    ),
}
_LOOK = "run `fdbqueue doctor`"
_CURES = {
    errno.ENOMEM: "start the process with more address space (ulimit -v, LimitAS=) or memory (MemoryMax=)",
    errno.EIO: "the disk has failed: read the log of the kernel (dmesg), and replace the disk",
    errno.EROFS: "mount the file system for writing; the kernel may have made it read-only after an error",
    errno.EACCES: "run as its owner, or give this user the rights",
    errno.EPERM: "run as its owner, or give this user the rights",
    errno.EMFILE: "start the process with a larger limit of open files (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "raise the limit of open files of the system (sysctl fs.file-max)",
    errno.ENOLCK: "use a local file system with byte locks, not one of a network",
}


def code_of(error: Exception) -> int:
    """Return the errno of an OSError or an lmdb.Error; those of LMDB itself are below zero, or EIO."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    return code or errno.EIO  # the default: a write that was cut short


def no_room(path: str, code: int = errno.ENOSPC) -> StorageFull:
    """Return the user's error for a commit that found no room, or no memory, by the errno of the lack. With
    another errno, the base of the directory cannot be written, so that the journal has no room.
    """
    if code == errno.ENOMEM:
        return MemoryFull(path=path, code=code, cure=_CURES[code])
    said = os.strerror(code) if code > 0 else "it is damaged"
    broken = f"The base of {{path}} cannot be written ({said})"
    cause, cure = _NO_ROOM.get(code, (broken, _CURES.get(code, _LOOK)))
    return StorageFull(path=path, code=code, cause=cause.format(path=path), cure=cure)


def lacks_room(code: int) -> bool:
    return code in FULL or code == errno.ENOMEM


def failed(error: Exception) -> FDBError:
    return FDBError(_IO_ERROR, _reason(error))


def refusal(path: str, error: Exception) -> Exception:
    code = code_of(error)
    return no_room(path, code) if code in FULL else StorageInUse(path=path, reason=_reason(error))


def _reason(error: Exception) -> str:
    code = code_of(error)
    told = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    said, cure = told or os.strerror(code), _CURES.get(code)
    return said if cure is None else f"{said}: {cure}"
