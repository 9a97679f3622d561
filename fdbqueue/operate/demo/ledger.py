"""The keys of the demo in the database.

D["queues", ...]            the root of its task queue
D["part", path, number]     (digest, lines), written in the transaction of the ack
D["times", path, number]    number of these writes, an atomic add: proves "once"
D["parts"]                  number of counted parts, an atomic add
D["lines"]                  number of their lines, an atomic add
"""

import hashlib
import struct
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction

_NOT_THE_LIBRARY = {"site-packages", "dist-packages"}


class Part(NamedTuple):
    """A part of a file. The file has `of` parts of about equal size, numbered from 0."""

    path: str
    number: int
    of: int


@dataclass(frozen=True)
class Counted:
    digest: bytes
    lines: int


def source_files() -> dict[str, int]:
    """Return the sizes of the files in bytes, by path, in order."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path for path in library.rglob("*.py") if not _NOT_THE_LIBRARY.intersection(path.parts))
    return {str(path): path.stat().st_size for path in sorted(found) if path.is_file()}


def parts_of(sizes: Mapping[str, int], wanted: int) -> list[Part]:
    """Split the files into `wanted` parts in all: large files into more parts, each into one at least."""
    more, total = max(0, wanted - len(sizes)), max(1, sum(sizes.values()))
    parts, bytes_before = [], 0
    for path, size in sizes.items():
        # The extra parts begin at even distances over all bytes; a file gets those within its own bytes.
        first, last = (more * position // total for position in (bytes_before, bytes_before + size))
        of = 1 + last - first
        parts += [Part(path, number, of) for number in range(of)]
        bytes_before += size
    return parts


def count(part: Part) -> Counted:
    """Return the digest and the number of lines of a part. Raises OSError."""
    content = Path(part.path).read_bytes()
    begin, end = (len(content) * number // part.of for number in (part.number, part.number + 1))
    return Counted(hashlib.sha256(content[begin:end]).digest(), content.count(b"\n", begin, end))


QUEUE = "parts"
ROWS_PER_READ = 2_000
_ONE = struct.pack("<q", 1)
PartId = tuple[str, int]
"""The path of a file, and the number of a part of it."""


class Ledger:
    def __init__(self, space: Subspace) -> None:
        self._space = space
        self.root = space["queues"]

    def count(self, tr: Transaction, part: Part, counted: Counted) -> None:
        place = part.path, part.number
        tr[self._space["part"][place[0]][place[1]]] = layer.pack((counted.digest, counted.lines))
        tr.add(self._space["times"][place[0]][place[1]], _ONE)
        tr.add(self._space["parts"], _ONE)
        tr.add(self._space["lines"], struct.pack("<q", counted.lines))

    def totals(self, tr: Transaction) -> tuple[int, int]:
        return _number(tr[self._space["parts"]].value), _number(tr[self._space["lines"]].value)

    def parts(self, database: Database) -> dict[PartId, Counted]:
        return {place: Counted(*layer.unpack(value)) for place, value in self._entries(database, "part")}

    def times(self, database: Database) -> dict[PartId, int]:
        return {place: _number(value) for place, value in self._entries(database, "times")}

    def erase(self, tr: Transaction) -> None:
        everything = self._space.range()
        tr.clear_range(everything.start, everything.stop)

    def _entries(self, database: Database, column: str) -> Iterator[tuple[Any, bytes]]:
        """Read a column, ROWS_PER_READ rows per transaction, so that none lasts longer than 5 s."""
        space = self._space[column]
        begin, end = space.range().start, space.range().stop
        while rows := run(database, lambda tr: tr.get_range(begin, end, limit=ROWS_PER_READ).to_list()):  # noqa: B023  # run() is done with it before `begin` moves
            for row in rows:
                yield space.unpack(row.key), row.value
            begin = rows[-1].key + b"\x00"


def _number(value: bytes | None) -> int:
    number: int = struct.unpack("<q", value)[0] if value is not None else 0
    return number
