"""A limit that is reached, and the tasks that hold its slots: public frozen values (docs/limits.md)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHolder:
    """A task that holds a slot of a limit."""

    task: str
    """Its id."""
    queue: str
    session: str
    """The session that holds the task, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedLimit:
    """A limit that lets no task start now."""

    name: str
    slots: int | None
    """None for a limit of starts."""
    used: int
    """Number of slots that tasks hold."""
    next: float | None
    """The time of the next token of a limit of starts."""
    holders: tuple[LimitHolder, ...]
    """Tasks that hold slots, at most limits.LIMIT_HOLDERS_SHOWN, in any queue; only those of the key, if the
    limit counts each key apart.
    """
    per_key: bool = False
    """True if the limit counts each key apart, and the task names it with `key`."""
    key: Any = None
    error: str | None = None
    """The reason why the limit cannot be read. It limits nothing, but tasks of the key have waited for it."""
