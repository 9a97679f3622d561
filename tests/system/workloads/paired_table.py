"""A world with a table of pairs: each verb meets each other one equally often, beside a state that fits.

Before each pair the queue is topped up. Otherwise verbs that remove much would leave nothing to meet at.
"""

from collections.abc import Callable, Sequence
from itertools import product
from random import Random

from tests.system.workloads.paired_calls import Call, chain
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import World

CHAINED = 0.15


class Table(World):
    before: Sequence[int] = (0, 0, 1, 3)
    topped_up = 0.6
    """The chance that the queue is topped up before a pair."""

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._pairs: list[tuple[str, str]] = []
        self._planned: list[str] = []

    def top_up(self) -> None:
        """Bring the queue near a bound: some tasks in each state, a last slot, a last member."""

    def look_around(self) -> None:
        """Look at the queue, for calls that fit to its state."""
        super().refresh()

    def refresh(self) -> None:
        self.look_around()
        if self.random.random() < self.topped_up:
            self.top_up()
            self.look_around()

    def forget_focus(self) -> None:
        super().forget_focus()
        if not self._pairs:
            self._pairs = list(product(self.verbs, self.verbs))
            self.random.shuffle(self._pairs)
        self._planned = [*self._pairs.pop()]

    def is_loose(self, one: Call, other: Call) -> bool:
        """A take of fewer tasks than it may take relies on those that it found, and not on the end of the
        queue. Two calls in a row may tell.
        """
        if not other.parts:
            return super().is_loose(one, other)
        return one.name == "take" or any(self.is_loose(one, part) for part in other.parts)

    def lengthened(self, call: Call, draw: Callable[[], Call]) -> Call:
        return chain(call, draw()) if self.random.random() < CHAINED else call

    def draw(self) -> Call:
        """The next verb of the pair; another one if there is nothing that it could be about."""
        while True:
            verb = self._planned.pop(0) if self._planned else self.random.choice(self.verbs)
            call: Call | None = getattr(self, f"_{verb}")()
            if call is not None:
                return call
