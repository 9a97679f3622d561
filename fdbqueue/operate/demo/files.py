"""The input of the demo: the source files of this Python's standard library, in parts."""

import hashlib
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NOT_THE_LIBRARY = {"site-packages", "dist-packages"}


class Part(NamedTuple):
    """A part of a file. The file has `of` parts of about equal size, numbered from 0."""

    path: str
    number: int
    of: int


@dataclass(frozen=True)
class Counted:
    """The result for one part."""

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
