"""Gate: the number of tasks that the limits of a queue still let through, in one look at its ready tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from fdbqueue.core import limits
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limiting.state import State

Ask = Callable[[], int | None]
"""The reply to a question for the tasks that may start; None for any number."""

Keyed = tuple[str, bytes]
"""A limit that a task names with a key."""


class Apart(Protocol):
    """The limits that count each key apart."""

    def counts(self, name: str) -> bool:
        """True if that limit does. It waits for the limit."""

    def ask(self, tr: Transaction, name: str, key: bytes) -> Ask:
        """Ask for the tasks of a key that may start."""


class Gate:
    """Counts the tasks that a look finds. All partitions of a queue share it, as they share the limits."""

    def __init__(
        self,
        of_all: Iterable[Ask],
        named: Mapping[str, Ask],
        most: int,
        apart: Apart,
        states: Mapping[str, Callable[[], State]],
    ) -> None:
        """`of_all`: the limits of all tasks; `named`: those that tasks name; `most`: number of tasks that may
        start in one transaction; `states`: all these limits, by their names.
        """
        self._asked: tuple[Iterable[Ask], Mapping[str, Ask]] | None = (of_all, named)
        self._most = most
        self._apart = apart
        self._states = states
        self._left: int | None = None
        self._rooms: dict[str, int] = {}
        """The limits that let a number of tasks start, and no more."""
        self._key_rooms: dict[Keyed, int] = {}
        """The keys that do, of limits that count each apart."""

    def _see(self) -> None:
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

    def room(self, names: Iterable[str], but: str | None = None) -> int | None:
        """Number of tasks with these names that may start; None for any number. `but`: a name that they have
        with keys, which counts only if its limit does not count them apart.
        """
        if self._asked is not None:
            self._see()
        room = self._left
        for name in names:
            few = self._rooms.get(name)
            if few is None or (name == but and self._apart.counts(name)):
                continue
            room = few if room is None else min(room, few)
        return room

    def spend(self) -> Mapping[str, Callable[[], State]]:
        """The limits as this look has read them. A start changes them, so the second one gets none."""
        states, self._states = self._states, {}
        return states

    def ask_key(self, tr: Transaction, keyed: Keyed) -> Callable[[], None]:
        """Ask for the tasks of a key that may start, unless this look knows it. Wait for the limits."""
        if keyed in self._key_rooms or not self._apart.counts(keyed[0]):
            return lambda: None
        asked = self._apart.ask(tr, *keyed)

        def see() -> None:
            free = asked()
            if free is not None:
                self._key_rooms.setdefault(keyed, free)

        return see

    def room_of_key(self, keyed: Keyed) -> int | None:
        """As `room`, for tasks of a key that has been asked for."""
        return self._key_rooms.get(keyed)

    def passes(self, names: Sequence[str], keyed: Keyed | None = None) -> bool:
        """Let a task with these names through, and count it. False if a limit is reached."""
        but = None if keyed is None else keyed[0]
        if self.room(names, but) == 0 or (keyed is not None and self.room_of_key(keyed) == 0):
            return False
        if self._left is not None:
            # One with a key counts for several: it writes the key several times, and may park its lanes.
            weight = (
                limits.STARTS_OF_A_KEYED_ONE + len(keyed[1]) // limits.KEY_BYTES_OF_A_START if keyed else 1
            )
            self._left = max(0, self._left - weight)
        for name in names:
            if name in self._rooms and not (name == but and self._apart.counts(name)):
                self._rooms[name] -= 1
        if keyed in self._key_rooms:
            self._key_rooms[keyed] -= 1
        return True
