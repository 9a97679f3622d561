"""Gate: the number of tasks that the limits of a queue still let through, in one look at its ready tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence

Ask = Callable[[], int | None]
"""The reply to a question for the tasks that may start; None for any number."""


class Gate:
    """Counts the tasks that a look finds. All partitions of a queue share it, as they share the limits."""

    def __init__(self, of_all: Iterable[Ask], named: Mapping[str, Ask], most: int) -> None:
        """`of_all`: the limits of all tasks; `named`: those that tasks name; `most`: number of tasks that may
        start in one transaction.
        """
        self._asked: tuple[Iterable[Ask], Mapping[str, Ask]] | None = (of_all, named)
        self._most = most
        self._left: int | None = None
        self._rooms: dict[str, int] = {}
        """The limits that let a number of tasks start, and no more."""

    def _see(self) -> None:
        """Wait for the replies, once."""
        if self._asked is None:
            return
        (of_all, named), self._asked = self._asked, None
        self._rooms = {name: free for name, ask in named.items() if (free := ask()) is not None}
        known = [free for ask in of_all if (free := ask()) is not None]
        if known or self._rooms:
            self._left = min([*known, self._most])

    @property
    def is_shut(self) -> bool:
        """True if no task may start, whatever it names."""
        self._see()
        return self._left == 0

    def room(self, names: Iterable[str]) -> int | None:
        """Number of tasks with these names that may start; None for any number."""
        self._see()
        rooms = [self._rooms[name] for name in names if name in self._rooms]
        if self._left is not None:
            rooms.append(self._left)
        return min(rooms) if rooms else None

    def passes(self, names: Sequence[str]) -> bool:
        """Let a task with these names through, and count it. False if a limit is reached."""
        if self.room(names) == 0:
            return False
        if self._left is not None:
            self._left -= 1
        for name in names:
            if name in self._rooms:
                self._rooms[name] -= 1
        return True
