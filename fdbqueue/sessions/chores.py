"""Chores: work in the background that rooms above register, and that the keeper of each process does."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from fdbqueue.database import Database
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction

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

_makers: list[MakeChore] = []


def register_chore(make: MakeChore) -> MakeChore:
    """Have the chore that `make` makes done by each keeper that is made from now on."""
    _makers.append(make)
    return make


def chores_for(database: Database, keys: RootKeys) -> list[Chore]:
    return [make(database, keys) for make in _makers]
