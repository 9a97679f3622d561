"""Status: the running tasks and the counts of a worker, as frozen values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Running:
    """A task, while its handler runs."""

    id: str
    queue: str
    for_s: float
    cancelled: bool = False
    """True if the task was cancelled, and the worker knows it."""
    fraction: float | None = None
    """The progress that its handler has told."""


@dataclass(frozen=True)
class Tally:
    """Numbers of attempts, by outcome."""

    done: int = 0
    failed: int = 0
    """Attempts that failed; the task was released, to be tried again."""
    buried: int = 0
    lost: int = 0
    """Attempts that lost their lease before their outcome."""
    snoozed: int = 0
    """Attempts in which the handler put the task off, without a failure."""
    cancelled: int = 0
    """Attempts that ended with their task, because it was cancelled."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.done + other.done,
            self.failed + other.failed,
            self.buried + other.buried,
            self.lost + other.lost,
            self.snoozed + other.snoozed,
            self.cancelled + other.cancelled,
        )

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.buried + self.lost + self.snoozed + self.cancelled


@dataclass(frozen=True)
class WorkerStatus:
    state: str
    """"working", "stopping" or "ended"."""
    tally: Tally
    running: tuple[Running, ...]
    overrun: int
    """Number of threads that were given up, as a handler ran longer than `timeout_s`."""
