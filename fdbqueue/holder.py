"""Holder: the public frozen values that tell who holds a task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HolderProcess:
    """A process that holds tasks in the name of a session."""

    host: str
    process_id: int


@dataclass(frozen=True)
class Holder:
    """The holder of a task: a session, and its processes. Times are seconds since the epoch."""

    session: str
    """Its id, in hexadecimal."""
    name: str | None
    processes: tuple[HolderProcess, ...]
    """Empty if the session has ended, or if an earlier release opened it."""
    seen: float | None
    """The time of its last heartbeat; None if it has ended."""
    dies: float | None
    """The time at which it counts as dead without another heartbeat; None if it has ended."""
