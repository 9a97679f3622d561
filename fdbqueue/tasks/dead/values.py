"""The public frozen values of dead letters."""

from dataclasses import dataclass
from enum import StrEnum

from fdbqueue.core.task import Failure, Task


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A buried task with its last failure."""

    task: Task
    error: str
    """Its class of failure: the error of its last failure since the put or the last kick; empty without one.
    """
    failure: Failure | None
    """The last failure that is stored."""


@dataclass(frozen=True, slots=True)
class FailureClass:
    """The buried tasks of one class of failure."""

    error: str | None
    """None stands for the classes beyond the first limits.CLASSES_READ_MAX."""
    tasks: int
    """The exact number of tasks."""
    first: str | None = None
    """The id of the first of them."""
    failure: Failure | None = None
    """The last failure of that task."""


class RedriveState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive as it is stored. Append fields with a default. Times are seconds since the epoch."""

    state: RedriveState
    rate_per_s: float
    """Tasks that it moves in a second, at most."""
    error: str | None = None
    """The class of failure of its tasks; None for all."""
    text: str | None = None
    """A text in the last failure of its tasks; None for all."""
    into: str | None = None
    """The queue that its tasks go to; None for their own."""
    limit: int | None = None
    """The number of tasks that it moves at most."""
    left: int = 0
    """Buried tasks that it has not looked at."""
    moved: int = 0
    passed: int = 0
    """Tasks that it has looked at and left: another text, or a payload that cannot be read."""
    began: float = 0.0
    due: float = 0.0
    """The time of its next step, by its rate."""
    cursor: bytes = b""
    """The place of the last task that it has looked at, in its partition."""
    partition: int = 0
    """The partition of that task: a redrive goes through them by their numbers."""

    @property
    def is_open(self) -> bool:
        """True if it may go on: it is running or paused."""
        return self.state in (RedriveState.RUNNING, RedriveState.PAUSED)


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """The answer of one step of a redrive."""

    redrive: Redrive
    """The redrive after the step."""
    moved: int = 0
    """Tasks that this step has moved."""
    wait_s: float = 0.0
    """Time until the next step."""
    is_full: bool = False
    """True if the queue that its tasks go to has no room."""
