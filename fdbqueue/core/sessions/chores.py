"""Chores: work of rooms above that the keeper does. Kept, Tidied: the sessions and queues that it keeps."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Protocol, TypeVar

from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction


class Kept(Protocol):
    """A session that the keeper renews, and ends as soon as it is not `wanted`."""

    id: bytes
    name: str | None
    lost: bool
    wanted: Callable[[], bool] | None

    def beat_if_due(self) -> None: ...
    def end_within(self, timeout_s: float | None) -> None: ...


class Tidied(Protocol):
    """A queue that the keeper sweeps, one batch at a time, when something is due."""

    @property
    def name(self) -> str: ...
    def guard(self, tr: Transaction) -> Callable[[], None]: ...
    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]: ...
    def tidy(self, tr: Transaction) -> bool: ...


T = TypeVar("T")


class Round(Protocol):
    """One round of a keeper, as a chore sees it."""

    @property
    def sharers(self) -> int:
        """Number of processes that share the work under this root."""

    @property
    def is_stopping(self) -> bool:
        """True if the process ends: a chore returns at once."""

    def ask(self, body: Callable[[Transaction], T]) -> T:
        """Run a transaction with a time limit."""

    def beat(self) -> None:
        """Renew the heartbeats that are due, in the middle of long work."""


class Chore(Protocol):
    @property
    def name(self) -> str: ...
    def do(self, round_: Round) -> None:
        """Do what is due. Called several times a second."""


MakeChore = Callable[[Database, RootKeys], Chore]

CHORES = ("fdbqueue.tasks.schedules.passing:pass_of",)
"""Names, imported by the first round: a process that uses one queue has not imported the rooms of others."""


def chores_for(database: Database, keys: RootKeys) -> list[Chore]:
    makers: list[MakeChore] = [resolve_name(name) for name in CHORES]
    return [make(database, keys) for make in makers]
