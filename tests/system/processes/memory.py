"""The memory that simulated processes share: the mapped part of a file. Each change of it is a point."""

from collections.abc import Callable
from typing import Any


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
