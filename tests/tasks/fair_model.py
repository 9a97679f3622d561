"""Fair queues as plain Python: the two structures of the reference."""

from collections.abc import Callable
from typing import Any


class Overflow(Exception):
    pass


class Rounds:
    """A snapshot, and a line per key: spec and this class say the same."""

    def __init__(self, keyfn: Callable[[Any], Any], limit: int | None = None) -> None:
        self.keyfn, self.limit = keyfn, limit
        self.snapshot: list[Any] = []
        self.lines: dict[Any, list[tuple[int, Any]]] = {}
        self.arrivals = 0

    @property
    def count(self) -> int:
        return len(self.snapshot) + sum(map(len, self.lines.values()))

    def push(self, item: Any) -> None:
        if self.limit is not None and self.count >= self.limit:
            raise Overflow
        key = self.keyfn(item)
        self.arrivals += 1
        self.lines.setdefault((type(key), key), []).append((self.arrivals, item))

    def pull(self) -> Any:
        if not self.snapshot:
            heads = sorted((line.pop(0) for line in self.lines.values()), key=lambda head: head[0])
            self.lines = {key: line for key, line in self.lines.items() if line}
            self.snapshot = [item for _, item in heads]
        return self.snapshot.pop(0) if self.snapshot else None

    def deref(self) -> tuple[list[Any], dict[Any, list[Any]]]:
        lines = {key: [item for _, item in line] for (_, key), line in self.lines.items()}
        return list(self.snapshot), lines
