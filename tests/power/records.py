"""The record of a run: each change of its files, each sync, and the notes of the program itself.

recorder.c writes it; all numbers are in the machine's own byte order:

    size: 4 B, kind: 4 B, number: 8 B, file: 8 B, at: 8 B, length: 8 B, is_synced: 4 B, name_size: 4 B,
    name, data
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("=IIQQqQII")


class Kind(IntEnum):
    WRITE = 1
    END = 2
    """A sync has returned, or a write through a synced descriptor."""
    SYNC = 3
    TRUNCATE = 4
    ALLOCATE = 5
    CREATE = 6
    MAKE_DIRECTORY = 7
    UNLINK = 8
    RENAME = 9
    MAP = 10
    """The file was mapped for writing: the kernel may write its pages at any time."""
    NOTE = 11
    FAILED = 12
    """A sync that failed, or with a `length` a write.

    After a failed sync the kernel takes the pages for clean, so no later sync writes them.
    """


@dataclass(frozen=True)
class Record:
    """`number` is that of the change, in END that of the change that ended. `file` is an inode."""

    kind: Kind
    number: int
    file: int
    at: int
    length: int
    is_synced: bool
    name: str
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Its size in the file."""
        return _HEAD.size + len(self.name.encode()) + len(self.data)

    @property
    def note(self) -> Any:
        return json.loads(self.data)


def read(path: Path) -> Iterator[Record]:
    """Yield the records, in the order in which they were written."""
    stored, at = path.read_bytes(), 0
    while at < len(stored):
        size, kind, number, file, place, length, is_synced, name_size = _HEAD.unpack_from(stored, at)
        name_at = at + _HEAD.size
        data_at = name_at + name_size
        name = stored[name_at:data_at].decode()
        yield Record(
            Kind(kind), number, file, place, length, bool(is_synced), name, stored[data_at : at + size]
        )
        at += size


def teller(log: str) -> Callable[[str, str, str], None]:
    """Return a function that adds a note to the record of a run."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(state: str, verb: str, name: str) -> None:
        data = json.dumps((state, verb, name)).encode()
        os.write(fd, _HEAD.pack(_HEAD.size + len(data), Kind.NOTE, 0, 0, 0, 0, 0, 0) + data)

    return tell
