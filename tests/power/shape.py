"""How the files of a journal grow in a run: preallocated or by appends, with large or tiny generations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.embedded import journal


@dataclass(frozen=True)
class Shape:
    """`ahead_bytes`: the zeros behind a record. `can_allocate`: the file system has `fallocate`."""

    generation_bytes: int = limits.GENERATION_BYTES_MAX
    ahead_bytes: int = journal._ZEROS_BYTES
    can_allocate: bool = True

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let this process open directories in this shape meanwhile."""
        before = limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES
        limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES = self.generation_bytes, self.ahead_bytes
        try:
            yield
        finally:
            limits.GENERATION_BYTES_MAX, journal._ZEROS_BYTES = before


SHAPES = {
    "preallocated": Shape(),
    "appended": Shape(ahead_bytes=0, can_allocate=False),
    "tiny": Shape(generation_bytes=2_000, ahead_bytes=1_000),
    "tiny-appended": Shape(generation_bytes=2_000, ahead_bytes=0, can_allocate=False),
}
"""With a tiny generation, a checkpoint follows every few commits."""
