"""Bucket: the tokens of a limit of starts. Pure functions over the numbers of all cells.

Tokens come at `rate` in `per`, up to `burst` of them. Each cell has a part of the burst, and gets tokens at
its part of the rate. Its number is the time at which it is full. A start moves that time by the time that one
token takes, and may move it beyond the present at most by the time of the cell's whole burst. So in any span
of time a cell has at most the starts of its burst and of the tokens that came, and the same holds for their
sum. The times of a cell never go back: a clock that is behind gets no token twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fdbqueue import limits
from fdbqueue.limiting.keys import CELLS_MAX
from fdbqueue.limiting.rule import Rule
from fdbqueue.limiting.slots import parts_of

_SKEW_NS = round(limits.CLOCK_SKEW_S * 1_000_000_000)


@dataclass(frozen=True)
class Bucket:
    """The tokens of one rule, at one time. A take asks for all cells: their numbers are computed at once."""

    rule: Rule
    full_ns: Sequence[int]
    """The times at which the cells are full."""
    now_ns: int

    @cached_property
    def cells(self) -> int:
        """Cells in use: a small burst is in few, because each of them is lost separately when it is full."""
        return max(1, min(CELLS_MAX, self.rule.burst // limits.CELL_TOKENS_MIN))

    @cached_property
    def token_ns(self) -> int:
        """The time in which a cell gets one token, rounded up."""
        return -(-self.rule.per_us * 1_000 * self.cells // self.rule.rate)

    @cached_property
    def rooms(self) -> Sequence[int]:
        """The tokens for which each cell has room."""
        return parts_of(self.rule.burst, self.cells)

    @cached_property
    def until_full(self) -> Sequence[int]:
        """Nanoseconds until each cell is full. A time that no clock within the bounds has written counts as
        none: it comes from a wrong clock, and would stop the limit until then.
        """
        now_ns, token_ns = self.now_ns, self.token_ns
        return [
            ahead if 0 <= (ahead := full_ns - now_ns) <= room * token_ns + _SKEW_NS else 0
            for full_ns, room in zip(self.full_ns, self.rooms, strict=False)
        ]

    @cached_property
    def tokens(self) -> Sequence[int]:
        """Those of each cell."""
        token_ns = self.token_ns
        return [
            max(0, room - -(-missing // token_ns))
            for room, missing in zip(self.rooms, self.until_full, strict=True)
        ]

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
