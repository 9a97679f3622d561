"""The demo's input: the source files of the standard library that this Python runs on, in parts."""

import hashlib
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_NOT_THE_LIBRARY = {"site-packages", "dist-packages"}


class Part(NamedTuple):
    """A part of a file: number `number` of `of` about equal ones, from 0."""

    path: str
    number: int
    of: int


@dataclass(frozen=True)
class Counted:
    """What one part came to."""

    digest: bytes
    lines: int


def source_files() -> dict[str, int]:
    """Their paths, in order, and how many bytes they have."""
    library = Path(sysconfig.get_path("stdlib"))
    found = (path for path in library.rglob("*.py") if not _NOT_THE_LIBRARY.intersection(path.parts))
    return {str(path): path.stat().st_size for path in sorted(found) if path.is_file()}


def parts_of(sizes: Mapping[str, int], wanted: int) -> list[Part]:
    """All files in `wanted` parts altogether, large files in more; at least one each."""
    more, total = max(0, wanted - len(sizes)), max(1, sum(sizes.values()))
    parts, bytes_before = [], 0
    for path, size in sizes.items():
        # The extra parts lie evenly over all the bytes: a file has those that fall on its own.
        first, last = (more * position // total for position in (bytes_before, bytes_before + size))
        of = 1 + last - first
        parts += [Part(path, number, of) for number in range(of)]
        bytes_before += size
    return parts


def count(part: Part) -> Counted:
    """Its digest and its number of lines. Raises OSError."""
    content = Path(part.path).read_bytes()
    begin, end = (len(content) * number // part.of for number in (part.number, part.number + 1))
    return Counted(hashlib.sha256(content[begin:end]).digest(), content.count(b"\n", begin, end))
