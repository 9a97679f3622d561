"""Gate: the number of tasks that the limits of a queue still let through, in one look at its ready tasks."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

Ask = Callable[[], int | None]
"""The reply to a question for the tasks that may start; None for any number."""


class Gate:
    """Counts the tasks that a look finds. All partitions of a queue share it, as they share the limits."""

    def __init__(self, of_all: Iterable[Ask], named: Mapping[str, Ask], most: int) -> None:
        """`of_all`: the limits of all tasks; `named`: those that tasks name; `most`: number of tasks that may
        start in one transaction.
        """
        self._of_all = of_all
        self._named = named
        self._most = most

    @cached_property
    def _left(self) -> int | None:
        known = [free for ask in self._of_all if (free := ask()) is not None]
        return min([*known, self._most]) if known or self._rooms else None

    @cached_property
    def _rooms(self) -> dict[str, int]:
        """The limits that let a number of tasks start, and no more."""
        return {name: free for name, ask in self._named.items() if (free := ask()) is not None}

    @property
    def is_shut(self) -> bool:
        """True if no task may start, whatever it names."""
        return self._left == 0

    def room(self, names: Iterable[str]) -> int | None:
        """Number of tasks with these names that may start; None for any number."""
        rooms = (self._rooms[name] for name in names if name in self._rooms)
        return min((free for free in (self._left, *rooms) if free is not None), default=None)

    def passes(self, names: Iterable[str]) -> bool:
        """Let a task with these names through, and count it. False if a limit is reached."""
        names = [*names]
        if self.room(names) == 0:
            return False
        if self._left is not None:
            self._left -= 1
        for name in names:
            if name in self._rooms:
                self._rooms[name] -= 1
        return True
