"""The reserve: room on the disk for transactions that make room, so that a full disk can be emptied.

LMDB overwrites nothing: a transaction that only deletes needs new pages too, and would fail on a full disk.
So some room is kept, in two places:

    the file `reserve`   takes up room on the disk. It is given up for one commit that makes room and finds
                         none. After the commit it is made again from the room that is left.
    free pages           LMDB's file never shrinks: deleted records become free pages of it. While the file
                         `reserve` is not whole, free pages of the missing size are kept.

On a disk with room the reserve is whole, and a commit costs one look at a mark in memory more.
"""

import errno
import os
from collections.abc import Sequence
from typing import Any

from fdbqueue.embedded import layout
from fdbqueue.embedded.causes import FULL
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.writes import Pending, WriteBuffer

_FILE = "reserve"
# Enough for the tree paths of some dozens of keys, or for LMDB's list of the pages that clearing 1 GB frees.
BYTES_MAX = 4 << 20
_DISK_SHARE = 8  # the reserve is at most 1/8 of the disk
_PAGE_BYTES = 4096
_NEED_BYTES = 64 * 1024  # any batch needs it, beside twice its size
# The size of a receipt, which a transaction that removes something may leave.
_RECEIPT_BYTES = 128
# The size of a lease and its deadline, for each task that a transaction moves to another state.
_MOVE_BYTES = 512


class Reserve:
    """The reserve of one directory. Opening makes it; only a leader may call the other methods."""

    def __init__(self, directory: Directory) -> None:
        self._fd = directory.open_file(_FILE)
        try:
            disk = os.fstatvfs(self._fd)
            share = disk.f_blocks * disk.f_frsize // _DISK_SHARE
            self._bytes_wanted = min(BYTES_MAX, share) // _PAGE_BYTES * _PAGE_BYTES
            self.make()
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def is_whole(self) -> bool:
        return self.size_bytes >= self._bytes_wanted

    @property
    def is_half_on_disk(self) -> bool:
        return 2 * self.size_bytes >= self._bytes_wanted

    def make(self) -> bool:
        """Fill the reserve with the free room of the disk; True if it is whole then."""
        size_bytes = self.size_bytes
        if size_bytes >= self._bytes_wanted:
            return True
        disk = os.fstatvfs(self._fd)
        found = disk.f_bavail * disk.f_frsize // _PAGE_BYTES * _PAGE_BYTES
        grown = min(self._bytes_wanted, size_bytes + found)
        try:
            if grown > size_bytes:
                os.posix_fallocate(self._fd, size_bytes, grown - size_bytes)
        except OSError as error:
            if error.errno not in FULL or error.errno == errno.EFBIG:
                raise
        return self.is_whole

    def give_up(self) -> None:
        os.ftruncate(self._fd, 0)

    def has_room(self, free_bytes: int, need_bytes: int) -> bool:
        """True if the reserve, in both places together, is still whole after `need_bytes` are used."""
        return self.size_bytes + free_bytes >= self._bytes_wanted + need_bytes

    def is_half_there(self, free_bytes: int) -> bool:
        """True if at least half is there: then a move may use it. The other half is for removals."""
        return 2 * (self.size_bytes + free_bytes) >= self._bytes_wanted

    def close(self) -> None:
        os.close(self._fd)


def need_bytes(requests: Sequence[CommitRequest]) -> int:
    return _NEED_BYTES + 2 * sum(request.size_bytes for request in requests)


def makes_room(txn: Any, request: CommitRequest, *, or_moves: bool) -> bool:
    """True if the request leaves fewer bytes stored than it finds, counters and a receipt aside. With
    `or_moves`, a request that moves a record and adds little (a take) is allowed too, and so is one with the
    option `bypass_storage_quota` (opening a session, a request in the line).
    """
    if or_moves and request.is_bookkeeping:
        return True
    added, removed, count = _change(txn, request.buffer)
    if count and added - removed <= _RECEIPT_BYTES:
        return True
    return or_moves and added - removed <= count * _MOVE_BYTES


def _change(txn: Any, buffer: WriteBuffer) -> tuple[int, int, int]:
    """Return bytes added and removed, and keys removed; counting stops once more is removed than added."""
    added = sum(len(body) + len(value) for body, _, value in buffer.stamped_keys)
    removed = count = 0
    for key, entry in buffer.entries.items():
        if isinstance(entry, Pending) and not entry.stamped:
            continue  # a counter
        new = len(key) + _length(entry)
        old = layout.get(txn, key)
        if old is not None and key not in buffer.cleared:
            removed += len(key) + len(old)
            count += entry is None
        added += new if entry is not None else 0
    for begin, end in buffer.cleared:
        for key, value in layout.scan(txn, begin, end):
            removed, count = removed + len(key) + len(value), count + 1
            if removed > added:
                break
    return added, removed, count


def _length(entry: Any) -> int:
    if isinstance(entry, Pending):
        return sum(len(operand) for _, operand in entry.steps)
    return 0 if entry is None else len(entry)
