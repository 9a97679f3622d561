"""The mark: a text that names one file, in one boot of the machine, in one mount of its file system.

A snapshot that is put in the place of its original has the same inode, and mostly the same device. If another
disk is mounted at the same place, the number of the mount is mostly the same, too, since the kernel uses
these numbers again. So the mark has the *unique* number of the mount, which Linux knows since 6.8. It also
has the id of the file system, which tells the subvolumes of btrfs apart.
"""

import ctypes
import os
import sys
from collections.abc import Callable

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of <linux/stat.h> and <linux/fcntl.h>, the same on every architecture.
_AT_EMPTY_PATH, _MOUNT_UNIQUE = 0x1000, 0x4000
_STATX_BYTES, _MASK_BYTES, _MOUNT = 256, 4, slice(0x90, 0x98)

# Some C libraries have none.
_statx: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None)


def mark_of(fd: int) -> bytes | None:
    """Return the mark of this boot for an open file; None if the system does not tell it."""
    try:
        with open(_BOOT_ID) as file:
            boot = file.read().strip()
        mount = _unique_mount(fd) or _mount(fd)
    except (OSError, StopIteration):
        return None
    status, system = os.fstat(fd), os.fstatvfs(fd).f_fsid
    return f"{boot} {mount} {system} {status.st_dev} {status.st_ino}".encode()


def _unique_mount(fd: int) -> int | None:
    """Return the number that no other mount has in this boot; None if the kernel knows none."""
    made = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _MOUNT_UNIQUE, made):
        return None
    told = int.from_bytes(made.raw[:_MASK_BYTES], sys.byteorder)
    return int.from_bytes(made.raw[_MOUNT], sys.byteorder) if told & _MOUNT_UNIQUE else None


def _mount(fd: int) -> int:
    """Return the number of the mount, which a later one may have, too.

    Raises: OSError, StopIteration.
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
