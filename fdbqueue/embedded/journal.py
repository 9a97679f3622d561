"""The journal: each commit is one record at its end, and one flush makes it durable.

LMDB receives the commit after that, without a flush: its file `data.mdb` is right for one boot of the machine
only. After a power cut, the base (durability.py) and the records after it are all that counts (store.py).

    journal.0, journal.1    the generations of the journal, in turn: generation N is in the file N modulo 2
    <header> <record> ...

    header   64 B    magic, generation, salt of the generation
    record   48 B    size of the body, version, version of the record before, seal; then the body
    body             for each transaction of the commit: its cleared ranges, then its values (None: cleared)

A *seal* is a keyed checksum of all the rest; its key is the salt. So bytes of an earlier generation, or bytes
that a caller chose, are never taken for a record.

The file of an earlier generation is written over, since a flush is faster where a file does not grow. Both
files have their room on the disk from the beginning, so that a full disk can be emptied.
"""

import errno
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded.directory import FULL, SYSTEM, Directory, System
from fdbqueue.embedded.writes import KeyRange

FILES = ("journal.0", "journal.1")
HEADER_BYTES = 64
_GENERATION_BYTES_LEAST = 64 << 10
_DISK_SHARE = 64  # a generation has at most 1/64 of the disk
_GROWN = 4  # a file of four times that size gives its room back, once it is free
_ZEROS_BYTES = 256 * 1024
_MAGIC = b"fdbqjrnl"
_HEADER = struct.Struct("<8sQ16s16s")  # magic, generation, salt, seal
_RECORD = struct.Struct("<QQQ16s8x")  # body bytes, version, version before, seal
_SALT_BYTES = _SEAL_BYTES = 16


class Writes(msgspec.Struct, array_like=True):
    """The writes of one transaction: the ranges are cleared first."""

    cleared: list[KeyRange]
    values: dict[bytes, bytes | None]


class Place(NamedTuple):
    """A place in the journal: the end of the record of `version`, in a generation. In generation 0 there is
    no journal: all that LMDB holds has to be copied before the next commit.
    """

    generation: int
    end: int
    version: int


class JournalLost(Exception):
    """Nothing in the journal is believed: `renew` has to come before the next commit."""


NOWHERE = Place(0, 0, 0)


class Record(NamedTuple):
    """The writes of one commit, in the order of its transactions; `end` is the place behind it."""

    version: int
    previous: int
    writes: Sequence[Writes]
    end: int


class Entry(NamedTuple):
    """A record that is not written yet, and the place behind it."""

    start: int
    data: bytes
    end: Place


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Writes]).decode


class File:
    """An open file of the journal. It is closed with its last user: if a thread closes the journal while
    another one writes, no other file may get the descriptor that the other thread still uses.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.written_end = 0
        """Before it, no block of the file is new."""

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class Journal:
    """The files of one directory, as one process sees them. Only a leader may call it."""

    def __init__(self, directory: Directory, runtime: Runtime, system: System = SYSTEM) -> None:
        self._directory = directory
        self._runtime = runtime
        self._system = system
        self._files: dict[int, File] = {}
        self._salts: dict[int, bytes] = {}
        self._closed = False
        disk = os.fstatvfs(directory.fd)
        share = disk.f_blocks * disk.f_frsize // _DISK_SHARE
        self.generation_bytes = min(limits.GENERATION_BYTES_MAX, max(_GENERATION_BYTES_LEAST, share))
        """A generation of this size is followed by the next one, as soon as the other file is free."""

    def allocate(self) -> None:
        """Give both files their room, where the file system can. Raises: OSError if there is none."""
        for number in range(len(FILES)):
            file = self._file(number)
            try:
                os.posix_fallocate(file.fd, 0, self.generation_bytes)
            except OSError as error:
                if error.errno in FULL - {errno.EFBIG}:
                    raise

    def entry(self, at: Place, version: int, writes: Sequence[Writes]) -> Entry:
        """Return the record of a commit behind `at`; a full generation is followed by the next one."""
        body = _encode(writes)
        if at.end >= self.generation_bytes and self.is_free(at.generation + 1):
            # A leader that died may have left a record there, which would come before those that follow.
            self._write(self._file(at.generation), bytes(_RECORD.size), at.end)
            self.flush(at.generation)
            at = Place(at.generation + 1, 0, at.version)
        if at.end:
            head, salt, start = b"", self._salt(at.generation), at.end
        else:
            # It is not remembered: if this commit fails, another process may begin the generation again.
            salt = self._runtime.random_bytes(_SALT_BYTES)
            head, start = _header(at.generation, salt), 0
        numbers = (len(body), version, at.version)
        record = _RECORD.pack(*numbers, _seal(salt, *numbers, body)) + body
        data = head + record
        return Entry(start, data, Place(at.generation, start + len(data), version))

    def write(self, entry: Entry) -> None:
        """Add a record at the end. Raises: OSError."""
        file = self._file(entry.end.generation)
        if entry.start == 0:
            file.written_end = 0  # `free` may have given its room back
        if file.written_end < entry.end.end:
            self._write_ahead(file, entry)
        self._write(file, entry.data, entry.start)

    def flush(self, generation: int) -> None:
        """Make a generation durable. Raises: JournalLost: a second try succeeds, though changes are lost."""
        file = self._file(generation)
        try:
            self._system.flush(file.fd)
        except OSError:
            raise JournalLost from None

    def cut(self, entry: Entry) -> None:
        """Make a record, and all behind it, as if it had never been written. Raises: JournalLost, OSError."""
        file = self._file(entry.end.generation)
        there = min(_RECORD.size, os.fstat(file.fd).st_size - entry.start)  # a part may be all that had room
        if there > 0:
            self._write(file, bytes(there), entry.start)
            self.flush(entry.end.generation)

    def is_free(self, generation: int) -> bool:
        """True if the file of a generation that is to begin holds no records that are still needed. A leader
        that died may have begun the generation; its commit is not there.
        """
        header = self._header(generation)
        return header is None or header[0] == generation

    def free(self, generation: int) -> None:
        """Let the next but one generation have the file of `generation`: the base has all of its records."""
        file = self._file(generation)
        self._write(file, bytes(HEADER_BYTES), 0)
        if os.fstat(file.fd).st_size > _GROWN * self.generation_bytes:
            os.ftruncate(file.fd, self.generation_bytes)

    def renew(self) -> None:
        """Begin with new files: the old ones are not believed any more."""
        for name in FILES:
            with suppress(FileNotFoundError):
                self._directory.unlink(name)
        self._forget()
        self.allocate()
        self._directory.sync_entries()

    def forget_renewed(self) -> None:
        if any(os.fstat(file.fd).st_nlink == 0 for file in self._files.values()):
            self._forget()

    def generations(self) -> list[int]:
        """The older one first."""
        found = [header[0] for number in (0, 1) if (header := self._header(number)) is not None]
        return sorted(found)

    def goes_on_behind(self, place: Place) -> bool:
        """True if there are more records behind `place` than a leader leaves that dies."""
        behind: list[Record] = []
        for generation in self.generations():
            if generation >= place.generation > 0:
                begin = place.end if generation == place.generation else 0
                behind += islice(self.records(generation, begin), 2)
        return len(behind) > 1 or any(record.previous != place.version for record in behind)

    def records(self, generation: int, begin: int = 0) -> Iterator[Record]:
        """Yield the records of a generation from a place on, up to the first one that is not whole."""
        header = self._header(generation)
        if header is None or header[0] != generation:
            return
        salt, file, at = header[1], self._file(generation), max(begin, HEADER_BYTES)
        while len(head := self._system.pread(file.fd, _RECORD.size, at)) == _RECORD.size:
            length, version, previous, seal = _RECORD.unpack(head)
            at += _RECORD.size + length
            if not version or at > os.fstat(file.fd).st_size:
                return
            body = self._system.pread(file.fd, length, at - length)
            if _seal(salt, length, version, previous, body) != seal:
                return
            yield Record(version, previous, _decode(body), at)

    def close(self) -> None:
        self._closed = True
        self._forget()

    def _forget(self) -> None:
        self._files, self._salts = {}, {}

    def _file(self, generation: int) -> File:
        if self._closed:
            raise DatabaseClosed
        number = generation % 2
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = File(self._directory.open_file(FILES[number]))
        return file

    def _salt(self, generation: int) -> bytes:
        salt = self._salts.get(generation)
        if salt is None:
            header = self._header(generation)
            if header is None or header[0] != generation:
                raise JournalLost  # the files were removed, or a process died as it began a new journal
            salt = header[1]
            self._salts = {generation: salt}
        return salt

    def _header(self, generation: int) -> tuple[int, bytes] | None:
        """Return generation and salt of the file that a generation has; None if the file is free."""
        file = self._file(generation)
        found = self._system.pread(file.fd, HEADER_BYTES, 0)
        if len(found) < HEADER_BYTES:
            return None
        magic, number, salt, seal = _HEADER.unpack(found[: _HEADER.size])
        return (number, salt) if magic == _MAGIC and seal == _seal(salt, number, 0, 0, b"") else None

    def _write_ahead(self, file: File, entry: Entry) -> None:
        """Write zeros behind a record, so that most flushes find no new blocks in the file."""
        try:
            hole = os.lseek(file.fd, entry.start, os.SEEK_HOLE)
        except OSError:  # it is behind the end of the file
            hole = entry.start
        end = max(hole, entry.end.end + _ZEROS_BYTES)
        with suppress(OSError):  # the record itself may still have room
            self._write(file, bytes(end - hole), hole)
        file.written_end = end

    def _write(self, file: File, data: bytes, at: int) -> None:
        while data:
            written = self._system.pwrite(file.fd, data, at)
            data, at = data[written:], at + written


def _header(generation: int, salt: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, generation, salt, _seal(salt, generation, 0, 0, b"")).ljust(
        HEADER_BYTES, b"\0"
    )


def _seal(salt: bytes, first: int, second: int, third: int, body: bytes) -> bytes:
    made = hashlib.blake2b(struct.pack("<QQQ", first, second, third), key=salt, digest_size=_SEAL_BYTES)
    made.update(body)
    return made.digest()
