"""A disk that loses power: the files that it may hold at any moment of a recorded run.

The disk holds all that a sync has covered. Of later changes it holds any subset: each sector of 512 bytes
has one of the contents that it had since the last sync, each unsynced entry of a directory is there or not, a
file has one of its sizes. A page of a mapped file has any content that it ever had, zeros, or nonsense.

recorder.c writes the record; all numbers are in the byte order of the machine:

    size: 4 B, kind: 4 B, number: 8 B, file: 8 B, at: 8 B, length: 8 B, is_synced: 4 B, name_size: 4 B,
    name, data
"""

import json
import os
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

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


T = TypeVar("T")

SECTOR = 512
PAGE = 4096
_ZEROS = bytes(SECTOR)


@dataclass
class File:
    """One inode. Its `durable` content and size, and all that came after: by sector, oldest first.

    A sector that a failed sync should have written has several durable contents: one of them is there.
    """

    durable: dict[int, list[bytes]] = field(default_factory=dict)
    durable_bytes: int = 0
    later: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    is_mapped: bool = False

    @property
    def size_bytes(self) -> int:
        """The size that the running program sees."""
        return self.sizes[-1][1] if self.sizes else self.durable_bytes

    def sector(self, place: int) -> bytes:
        """The sector that the running program sees."""
        later = self.later.get(place)
        return later[-1][1] if later else self.durable.get(place, [_ZEROS])[-1]

    def write(self, number: int, at: int, data: bytes) -> None:
        for place in sectors(at, len(data)):
            begin = place * SECTOR
            old = self.sector(place)
            low, high = max(at, begin), min(at + len(data), begin + SECTOR)
            new = old[: low - begin] + data[low - at : high - at] + old[high - begin :]
            self.later.setdefault(place, []).append((number, new))
        self.resize(number, max(self.size_bytes, at + len(data)))

    def truncate(self, number: int, size_bytes: int) -> None:
        for place in {*self.durable, *self.later}:
            kept = max(0, min(SECTOR, size_bytes - place * SECTOR))
            if kept < SECTOR:
                content = self.sector(place)[:kept].ljust(SECTOR, b"\0")
                self.later.setdefault(place, []).append((number, content))
        self.resize(number, size_bytes)

    def resize(self, number: int, size_bytes: int) -> None:
        if size_bytes != self.size_bytes:
            self.sizes.append((number, size_bytes))

    def sync(self, until: int, places: "range | None" = None) -> None:
        """Make changes up to the number `until` durable: all, or those of the sectors `places`."""
        for place in list(self.later) if places is None else places:
            later = self.later.get(place, [])
            covered = [content for number, content in later if number <= until]
            if covered:
                self.durable[place] = [covered[-1]]
                self.later[place] = later[len(covered) :]
            if not self.later.get(place):
                self.later.pop(place, None)
        sizes = [size for number, size in self.sizes if number <= until]
        if sizes:
            self.durable_bytes = sizes[-1]
            self.sizes = self.sizes[len(sizes) :]

    def fail(self) -> None:
        """A sync failed: each sector that it should have written stays as it is on the disk."""
        for place, later in self.later.items():
            self.durable[place] = [*self.durable.get(place, [_ZEROS]), *(content for _, content in later)]
        self.later = {}

    def content(self, choose: "Choose") -> bytes:
        """One of the contents that the disk may hold."""
        made = bytearray(choose([self.durable_bytes, *(size for _, size in self.sizes)]))
        for place in {*self.durable, *self.later}:
            later = [content for _, content in self.later.get(place, ())]
            content = choose([*self.durable.get(place, [_ZEROS]), *later])
            room = len(made[place * SECTOR : place * SECTOR + SECTOR])
            made[place * SECTOR : place * SECTOR + room] = content[:room]
        return bytes(made)


class Choose:
    """Chooses among states: the first one is durable, and the last one is the newest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._share = rng.choice((0.0, 0.02, 0.5, 0.98, 1.0))

    def __call__(self, states: Sequence[T]) -> T:
        if self.rng.random() < self._share:
            return states[-1]
        return self.rng.choice(states) if self._share else states[0]


def sectors(at: int, size_bytes: int) -> range:
    return range(at // SECTOR, -(-(at + size_bytes) // SECTOR))


@dataclass(frozen=True)
class Entry:
    """A change of a directory: `new` gets the file of `old`, or a file of its own; `old` goes."""

    number: int
    old: str | None
    new: str | None
    file: File | None


class Disk:
    """Plays records. `cut` writes one of the states that a power cut at this moment may leave."""

    def __init__(self, root: Path) -> None:
        """`root`: the directory that is about to be recorded. All that it holds by now is durable."""
        self._root = str(root)
        self._number = 0
        self._files: dict[int, File] = {}
        self._folders: dict[int, str] = {root.stat().st_ino: self._root}
        self._durable: dict[str, File | None] = {}
        self._later: list[Entry] = []
        self._under_way: dict[int, tuple[Record, int]] = {}
        for path in sorted(root.rglob("*")):
            self._find(path)

    def _find(self, path: Path) -> None:
        if path.is_dir():
            self._folders[path.stat().st_ino] = str(path)
            self._durable[str(path)] = None
        elif path.is_file():
            self._durable[str(path)] = self._files[path.stat().st_ino] = durable(path.read_bytes())

    def play(self, record: Record) -> None:
        self._number += 1
        match record.kind:
            case Kind.WRITE:
                self._file(record).write(self._number, record.at, record.data)
            case Kind.TRUNCATE:
                self._file(record).truncate(self._number, record.at)
            case Kind.ALLOCATE:
                file = self._file(record)
                file.resize(self._number, max(file.size_bytes, record.at + record.length))
            case Kind.MAP:
                self._file(record).is_mapped = True
            case Kind.CREATE:
                made = self._files[record.file] = File()  # an inode may be used again
                self._later.append(Entry(self._number, None, record.name, made))
            case Kind.MAKE_DIRECTORY:
                self._folders[record.file] = record.name
                self._later.append(Entry(self._number, None, record.name, None))
            case Kind.UNLINK:
                self._later.append(Entry(self._number, record.name, None, None))
            case Kind.RENAME:
                self._later.append(Entry(self._number, record.name, record.data.decode(), None))
            case Kind.FAILED if not record.length:
                self._file(record).fail()
            case Kind.END:
                self._end(*self._under_way.pop(record.number))
        if record.kind is Kind.SYNC or (record.kind is Kind.WRITE and record.is_synced):
            self._under_way[record.number] = record, self._number

    def _file(self, record: Record) -> File:
        return self._files.setdefault(record.file, File())

    def _end(self, record: Record, number: int) -> None:
        folder = self._folders.get(record.file)
        if folder is not None:
            self._sync_entries(folder, number)
        elif record.kind is Kind.WRITE:
            self._file(record).sync(number, sectors(record.at, record.length))
        else:
            self._file(record).sync(number)

    def _sync_entries(self, folder: str, until: int) -> None:
        kept = []
        for entry in self._later:
            at = entry.new or entry.old or ""
            if entry.number <= until and os.path.dirname(at) == folder:
                apply(entry, self._durable)
            else:
                kept.append(entry)
        self._later = kept

    def cut(self, rng: random.Random, target: Path, pages: Callable[[str], bytes]) -> None:
        """Write one state into the empty directory `target`. `pages`: the mapped content of a path."""
        choose = Choose(rng)
        entries = dict(self._durable)
        for entry in self._later:
            if choose((False, True)):
                apply(entry, entries)
        for path, file in sorted(entries.items()):
            place = target / os.path.relpath(path, self._root)
            if not place.parent.is_dir():
                continue  # the entry of its directory is lost
            if file is None:
                place.mkdir(mode=0o700)
                continue
            content = file.content(choose)
            place.write_bytes(mixed(rng, content, pages(path)) if file.is_mapped else content)
            place.chmod(0o600)


def durable(content: bytes) -> File:
    each = ((at // SECTOR, content[at : at + SECTOR]) for at in range(0, len(content), SECTOR))
    stored = {place: [sector.ljust(SECTOR, b"\0")] for place, sector in each if sector.strip(b"\0")}
    return File(stored, len(content))


def apply(entry: Entry, entries: dict[str, File | None]) -> None:
    """Apply a change of a directory to `entries`."""
    if entry.old is None:
        assert entry.new is not None
        entries[entry.new] = entry.file
    elif entry.old in entries:
        file = entries.pop(entry.old)
        if entry.new is not None:
            entries[entry.new] = file


def mixed(rng: random.Random, content: bytes, pages: bytes) -> bytes:
    """Pages of a mapped file: of the disk, of a later moment, zeros, or nonsense."""
    made = bytearray(content)
    for at in range(0, len(made), PAGE):
        size = min(PAGE, len(made) - at)
        kind = rng.randrange(4)
        if kind == 1:
            made[at : at + size] = pages[at : at + size].ljust(size, b"\0")
        elif kind == 2:
            made[at : at + size] = bytes(size)
        elif kind == 3:
            made[at : at + size] = rng.randbytes(size)
    return bytes(made)


Plant = Callable[[Sequence[Record]], Iterable[Record]]


def no_data_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of files never happen; writes through synced descriptors do."""
    dropped = {one.number for one in records if one.kind is Kind.SYNC} - _of_folders(records)
    return (one for one in records if one.number not in dropped)


def no_directory_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of directories never happen."""
    dropped = _of_folders(records)
    return (one for one in records if one.number not in dropped)


def swapped(records: Sequence[Record]) -> list[Record]:
    """Each process syncs its pages only after the synced write that makes them valid."""
    synced = {one.number for one in records if one.is_synced}
    syncs = {one.number for one in records if one.kind is Kind.SYNC}
    made: list[Record] = []
    held: defaultdict[int, list[Record]] = defaultdict(list)
    for one in records:
        if one.number in syncs:
            held[_process(one)].append(one)
            continue
        made.append(one)
        if one.kind is Kind.END and one.number in synced:
            made += held.pop(_process(one), [])
    return made


def no_record_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of the journal never happen."""
    dropped = _syncs_of("journal.", records)
    return (one for one in records if one.number not in dropped)


def late_record_sync(records: Sequence[Record]) -> Iterator[Record]:
    """Each sync of the journal comes before the next record of its process: after the answers to callers."""
    journals, late = _files("journal.", records), _syncs_of("journal.", records)
    held: defaultdict[int, list[Record]] = defaultdict(list)
    for one in records:
        if one.number in late:
            held[_process(one)].append(one)
            continue
        if one.kind is Kind.WRITE and one.file in journals:
            yield from held.pop(_process(one), [])
        yield one


def early_rename(records: Sequence[Record]) -> Iterator[Record]:
    """A new base has its name before it has its content."""
    renames = iter([one for one in records if one.kind is Kind.RENAME and one.name.endswith("/base.new")])
    for one in records:
        if one.kind is not Kind.RENAME or not one.name.endswith("/base.new"):
            yield one
        if one.kind is Kind.CREATE and one.name.endswith("/base.new"):
            yield next(renames)


def early_free(records: Sequence[Record]) -> list[Record]:
    """A file of the journal is free before the base has its records."""
    journals, bases = _files("journal.", records), _files("base.", records)
    made: list[Record] = []
    begun: dict[int, int] = {}
    for one in records:
        process = _process(one)
        if one.kind is Kind.WRITE and one.file in bases:
            begun.setdefault(process, len(made))
        if one.kind is Kind.WRITE and one.file in journals and one.at == 0 and not any(one.data):
            made.insert(begun.get(process, len(made)), one)
            begun = {}
        else:
            made.append(one)
    return made


def _files(name: str, records: Sequence[Record]) -> set[int]:
    return {one.file for one in records if one.kind is Kind.CREATE and f"/{name}" in one.name}


def _syncs_of(name: str, records: Sequence[Record]) -> set[int]:
    files = _files(name, records)
    return {one.number for one in records if one.kind is Kind.SYNC and one.file in files}


def _process(record: Record) -> int:
    return record.number >> 32


def _of_folders(records: Sequence[Record]) -> set[int]:
    """The numbers of the syncs of directories: of files that no record writes."""
    written = {one.file for one in records if one.kind in (Kind.WRITE, Kind.ALLOCATE)}
    return {one.number for one in records if one.kind is Kind.SYNC and one.file not in written}
