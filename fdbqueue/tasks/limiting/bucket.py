"""Bucket: the tokens of a limit of starts. Pure functions over the numbers of all cells.

Tokens come at `rate` in `per`, up to `burst` of them. Each cell has a part of the burst, and gets tokens at
its part of the rate. Its number is the time at which it is full. A start moves that time by the time that one
token takes, and may move it beyond the present at most by the time of the cell's whole burst. So in any span
of time a cell has at most the starts of its burst and of the tokens that came, and the same holds for their
sum. The times of a cell never go back: a clock that is behind gets no token twice.
"""

from collections.abc import Sequence

from fdbqueue.core import limits
from fdbqueue.tasks.limiting.keys import CELLS_MAX
from fdbqueue.tasks.limiting.rule import Rule
from fdbqueue.tasks.limiting.slots import parts_of

_SKEW_NS = round(limits.CLOCK_SKEW_S * 1_000_000_000)


class Bucket:
    """The tokens of one rule, at one time. A take asks for all cells: their numbers are computed at once."""

    def __init__(self, rule: Rule, full_ns: Sequence[int], now_ns: int, cells_max: int = CELLS_MAX) -> None:
        """`full_ns`: the times at which the cells are full."""
        self.now_ns = now_ns
        # A small burst is in few cells, because each of them is lost separately when it is full.
        self.cells = max(1, min(cells_max, rule.burst // limits.CELL_TOKENS_MIN))
        self.token_ns = -(-rule.per_us * 1_000 * self.cells // rule.rate)
        """The time in which a cell gets one token, rounded up."""
        self.rooms = parts_of(rule.burst, self.cells)
        """The tokens for which each cell has room."""
        self.until_full: list[int] = []
        """Nanoseconds until each cell is full. A time that no clock within the bounds has written counts as
        none: it comes from a wrong clock, and would stop the limit until then.
        """
        self.tokens: list[int] = []
        """Those of each cell."""
        for cell, room in enumerate(self.rooms):
            missing = full_ns[cell] - now_ns
            if missing < 0 or missing > room * self.token_ns + _SKEW_NS:
                missing = 0
            tokens = room - -(-missing // self.token_ns)
            self.until_full.append(missing)
            self.tokens.append(tokens if tokens > 0 else 0)

    def all_tokens(self) -> int:
        return sum(self.tokens)

    def next_us(self) -> int | None:
        """The time of the next token; None while there are some."""
        if self.all_tokens():
            return None
        missing = zip(self.until_full, self.rooms, strict=True)
        waits = [until_ns - (room - 1) * self.token_ns for until_ns, room in missing]
        return -(-(self.now_ns + min(waits)) // 1_000)

    def taken(self, count: int, first: int) -> dict[int, int] | None:
        """The new times of the cells that give `count` tokens, `first` before others; None for too few."""
        changed: dict[int, int] = {}
        for step in range(self.cells):
            cell = (first + step) % self.cells
            few = min(self.tokens[cell], count)
            if few:
                count -= few
                changed[cell] = self.now_ns + self.until_full[cell] + few * self.token_ns
        return None if count else changed

    def poured(self, tokens: int) -> list[int]:
        """The times of all cells that have `tokens` together, as many as there is room for."""
        times = []
        for room in self.rooms:
            few = min(room, tokens)
            tokens -= few
            times.append(self.now_ns + (room - few) * self.token_ns)
        return times
