"""Slots: which cells the starts of a take use. Pure functions over the numbers of all cells.

Each cell has a part of the slots. A take adds to the number of its cell, and to that of no other; it writes
the gate of that cell, too, and has read it. So of two takes that use one cell, the second one has seen the
first, and no cell has more tasks than slots. The end of a task subtracts blindly: a take that has not seen it
has only read too large a number.

If the slots of a limit become fewer, a cell may have more tasks than slots. Then the sum decides, and all
takes that see such a cell conflict over one gate. A cell that is over its part gets no task, so it falls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import gt

from fdbqueue.tasks.limiting.keys import CELLS_MAX


@lru_cache(maxsize=256)
def parts_of(total: int, cells: int = CELLS_MAX) -> tuple[int, ...]:
    """The parts of `total` that the cells have."""
    part, more = divmod(total, cells)
    return (part + 1,) * more + (part,) * (cells - more)


def free_slots(slots: int, used: Sequence[int]) -> int:
    return max(0, slots - sum(used))


@dataclass(frozen=True)
class Places:
    """The cells of new tasks, one for each. `is_over`: a cell has more tasks than slots."""

    cells: Sequence[int]
    is_over: bool


def places(slots: int, used: Sequence[int], count: int, first: int) -> Places | None:
    """Cells for `count` tasks, the cell `first` before others; None if there are too few slots."""
    if count > free_slots(slots, used):
        return None
    chosen: list[int] = []
    parts = parts_of(slots)
    for step in range(CELLS_MAX):
        cell = (first + step) % CELLS_MAX
        free = parts[cell] - used[cell]
        if free > 0:
            chosen += [cell] * min(free, count - len(chosen))
            if len(chosen) == count:
                break
    return Places(chosen, is_over=any(map(gt, used, parts)))
