"""Opens an LMDB environment with as large a map as the system grants."""

from collections.abc import Callable
from typing import Any

import lmdb

# Address space, not disk: the file grows with its contents. The size is halved if the system grants less, and
# doubled when the contents reach it.
MAP_BYTES_FIRST = 1 << 40
_MAP_BYTES_LEAST = 1 << 24


def with_largest_map(opening: Callable[..., Any], path: str, **options: Any) -> Any:
    """Open an environment.

    Raises: lmdb.Error, MemoryError.
    """
    map_bytes = MAP_BYTES_FIRST
    while True:
        try:
            return opening(path, map_size=map_bytes, meminit=False, **options)
        except (lmdb.MemoryError, MemoryError):
            if map_bytes <= _MAP_BYTES_LEAST:
                raise
            map_bytes //= 2


def open_base(path: str, mode: int) -> Any:
    """Open an environment in one file, which only one process uses at a time."""
    return with_largest_map(lmdb.open, path, mode=mode, subdir=False, lock=False)
