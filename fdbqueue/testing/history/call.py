"""One call of a history: the moments between which it ran, its argument, and its result if that is known."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call by one process of a history, which makes one call at a time.

    Times are microseconds of a clock that all processes of the history share. A call without `end_us` has
    an unknown result: it may have had its effect, at any moment since its begin, or none.
    """

    process: str
    name: str
    argument: Any
    begin_us: int
    end_us: int | None = None
    result: Any = None

    @property
    def is_known(self) -> bool:
        return self.end_us is not None

    def __str__(self) -> str:
        told = "unknown" if self.end_us is None else f"{self.result!r} at {self.end_us} us"
        return f"{self.process}: {self.name}({self.argument!r}) from {self.begin_us} us: {told}"


def in_order(calls: Iterable[Call]) -> list[Call]:
    """The calls by their begins."""
    return sorted(calls, key=lambda call: call.begin_us)
