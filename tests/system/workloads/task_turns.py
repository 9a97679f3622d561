"""A model of the rounds of a fair queue: each task key gets its weight in units of every round."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

Turn = tuple[int, int]
"""The last round in which a task key was served, and the units of it that are used."""


class Entry(Protocol):
    """A task, or an item, with its task key and its cost in units."""

    @property
    def id(self) -> str: ...

    @property
    def key(self) -> Any: ...

    @property
    def cost(self) -> int: ...


class Turns:
    """The turns of the task keys that have ready tasks, and the current round."""

    def __init__(self, weights: Mapping[Any, int]) -> None:
        self.now = 0
        self._weights = weights
        self._turns: dict[Any, Turn] = {}
        self._took: dict[Any, Turn] = {}

    def copy(self) -> "Turns":
        turns = Turns(self._weights)
        turns.now, turns._turns = self.now, dict(self._turns)
        return turns

    def with_changes(self, base: "Turns", seen: "Turns") -> "Turns":
        turns = self.copy()
        for key in base._turns.keys() | seen._turns.keys():
            if (turn := seen._turns.get(key)) != base._turns.get(key):
                turns._turns.pop(key, None)
                turns._turns |= {} if turn is None else {key: turn}
        if seen.now != base.now:  # otherwise it is that of before, and a truncate may have begun anew
            turns.now = max(self.now, seen.now)
        return turns

    def place(self, head: Entry) -> tuple[int, str]:
        """The place of a task key, with its first task, among all."""
        return self._after(head)[0], head.id

    def _after(self, head: Entry) -> Turn:
        round_, used = self._turns[head.key]
        weight, units = self._weights.get(head.key, 1), used + head.cost
        rounds = (units - 1) // weight
        return round_ + rounds, units - rounds * weight

    def take_next(self, life: Entry) -> None:
        """Note a task of a take. Within the take the current round stays."""
        round_, used = self._after(life)
        self._turns[life.key] = (round_, used) if round_ >= self.now else (self.now + 1, 0)
        self._took[life.key] = self._turns[life.key]

    def meet(self, ready: Iterable[Entry]) -> None:
        """After a call: let task keys join the next round with their first ready task, and leave with their
        last.
        """
        self.now = max([self.now, *(round_ for round_, used in self._took.values() if used)])
        self._took = {}
        keys = {life.key for life in ready}
        self._turns = {key: self._turns.get(key, (self.now + 1, 0)) for key in keys}
