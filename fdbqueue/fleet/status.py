"""Status: what a worker is doing and has done, as values that others may keep."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Running:
    """A task that a handler is at."""

    id: str
    queue: str
    for_s: float


@dataclass(frozen=True)
class Tally:
    """How many attempts ended how."""

    done: int = 0
    failed: int = 0
    """Released, to be tried again."""
    buried: int = 0
    lost: int = 0
    """Their lease was over when they ended."""
    snoozed: int = 0
    """Put off by their handler, without a failure."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.done + other.done,
            self.failed + other.failed,
            self.buried + other.buried,
            self.lost + other.lost,
            self.snoozed + other.snoozed,
        )

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.buried + self.lost + self.snoozed


@dataclass(frozen=True)
class WorkerStatus:
    state: str
    """"working", "stopping" or "ended"."""
    tally: Tally
    running: tuple[Running, ...]
    overrun: int
    """Threads that a handler has kept beyond its time, for ever perhaps."""
