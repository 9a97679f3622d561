"""What processes of a simulation share: the mapped part of a file, and a disk that loses power.

The disk holds each write that a flush has covered. Of later writes it holds any 512-byte sectors, and of
later changes of names any names. LMDB flushes the base by itself: it is as its last commit has left it. All
other files are of no use after a power cut, so they are lost.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from fdbqueue.embedded import durability, journal


class Pages:
    """The mapped part of a file, as bytes."""

    def __init__(self, point: Callable[[], None], memory: bytearray) -> None:
        self._point = point
        self._memory = memory

    def view(self, begin: int, end: int, kind: str) -> Any:
        return memoryview(self._memory)[begin:end].cast(kind)  # type: ignore[call-overload]  # for literal kinds only

    def __getitem__(self, at: slice) -> bytes:
        self._point()
        return bytes(self._memory[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        self._point()
        self._memory[at] = value

    def close(self) -> None:
        """The memory stays: other processes map it."""


class Cells:
    """The mapped part of a file, as numbers. Most slots are never used, and reading a zero is no point."""

    def __init__(self, point: Callable[[], None], view: Any) -> None:
        self._point = point
        self._view = view

    def __getitem__(self, at: Any) -> Any:
        if self._view[at]:
            self._point()
        return self._view[at]

    def __setitem__(self, at: int, value: int) -> None:
        self._point()
        self._view[at] = value


_SECTOR_BYTES = 512
_BASES = frozenset({durability.FILE, durability.NEW_FILE})
_KEPT = _BASES | frozenset(journal.FILES)


class Disk:
    """The files at `path` that count after a power cut. A file is named by its inode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._durable: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._later: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._names: dict[str, int] = {}
        self._untold: set[tuple[int, int]] = set()
        """Descriptors, and their files: a flush has failed, and they do not know."""
        self._failed: set[int] = set()
        self.deceives = False
        """True once a descriptor that was opened after a failed flush has flushed that file. Linux tells it
        nothing, so a commit may count as durable that is not (docs/protocols.md: a failed flush).
        """

    def write(self, fd: int, data: bytes, at: int) -> None:
        """Note a write, which no flush covers yet."""
        self._later[os.fstat(fd).st_ino].append((at, data))

    def flush(self, fd: int) -> None:
        """Note that all writes of a file are durable."""
        file = os.fstat(fd).st_ino
        self.deceives = self.deceives or (file in self._failed and not _is_marked(fd))
        for at, data in self._later.pop(file, ()):
            _put(self._durable[file], at, data)

    def fail(self, fd: int, random: Random) -> None:
        """Note a flush that has failed: the kernel drops some sectors, and no later flush writes them."""
        file = os.fstat(fd).st_ino
        self._durable[file] = _some(self._durable[file], self._later.pop(file, []), random)
        self._failed.add(file)
        others = set(_open_descriptors(file)) - {fd}
        self._untold |= {(other, file) for other in others}
        for known in (fd, *others):
            _mark(known)

    def tells(self, fd: int) -> bool:
        """True once for each descriptor that was open as another flush of its file failed, as in Linux."""
        untold = (fd, os.fstat(fd).st_ino)
        is_untold = untold in self._untold
        self._untold.discard(untold)
        return is_untold

    def note(self, name: str) -> None:
        with open(os.path.join(self._path, name), "rb") as file:
            self._durable[os.fstat(file.fileno()).st_ino] = bytearray(file.read())

    def sync_entries(self) -> None:
        """Note that all names are durable."""
        self._names = self._found()

    def cut(self, random: Random) -> dict[str, bytes]:
        """Return files that may be there after a power cut."""
        found, names = self._found(), {}
        for name in sorted({*found, *self._names}):
            file = random.choice([found, self._names]).get(name)
            if file is not None:
                names[name] = bytes(_some(self._durable[file], self._later.get(file, []), random))
        return names

    def _found(self) -> dict[str, int]:
        with os.scandir(self._path) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.name in _KEPT}


def _mark(fd: int) -> None:
    """Mark an open file: numbers of descriptors are used again. No read or write of ours uses its offset."""
    os.lseek(fd, 1, os.SEEK_SET)


def _is_marked(fd: int) -> bool:
    return os.lseek(fd, 0, os.SEEK_CUR) == 1


def _open_descriptors(file: int) -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own descriptor
            if os.fstat(int(name)).st_ino == file:
                yield int(name)


def _put(content: bytearray, at: int, data: bytes) -> None:
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(data)] = data


def _some(durable: bytearray, later: list[tuple[int, bytes]], random: Random) -> bytearray:
    """Return a content with any of the sectors of later writes."""
    share, content = random.choice((0.0, 0.5, 1.0)), bytearray(durable)
    for at, data in later:
        end = at + len(data)
        while at < end:
            until = min(end, (at // _SECTOR_BYTES + 1) * _SECTOR_BYTES)
            if random.random() < share:
                _put(content, at, data[: until - at])
            data, at = data[until - at :], until
    return content


def place(files: Mapping[str, bytes], path: str) -> None:
    """Write files into a directory."""
    for name, content in files.items():
        with open(os.path.join(path, name), "wb") as file:
            file.write(content)


class BaseEnvironment:
    """The base, as one process has opened it: each commit is a point."""

    def __init__(self, real: Any, point: Callable[[], None], durable: Callable[[], None]) -> None:
        self._real, self._point, self._durable = real, point, durable
        self._writing: BaseTransaction | None = None
        self.info, self.stat, self.set_mapsize = real.info, real.stat, real.set_mapsize

    def begin(self, write: bool = False) -> Any:
        self._point()
        if not write:
            return self._real.begin()
        self._writing = BaseTransaction(self._real.begin(write=True), self._point, self._durable)
        return self._writing

    def close(self) -> None:
        """End, also in the middle of a transaction; a second call has no effect."""
        if self._writing is not None:
            self._writing.abort()
        self._real.close()


class BaseTransaction:
    """A transaction that writes the base."""

    def __init__(self, real: Any, point: Callable[[], None], durable: Callable[[], None]) -> None:
        self._real, self._point, self._durable = real, point, durable
        self.id, self.get, self.put, self.delete = real.id, real.get, real.put, real.delete
        self.cursor, self.abort = real.cursor, real.abort

    def __enter__(self) -> "BaseTransaction":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._point()
            self._real.commit()
            self._durable()
            self._point()
        self._real.abort()
