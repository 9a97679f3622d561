"""A cursor: where a pass over a queue's names has come to, and what it has read ahead.

Names are read in batches, each in a transaction of its own, by the last name of the one before. So no
transaction stays open between elements; every element that is there for the whole pass is shown, none twice.
"""

from collections.abc import Callable

from fdbqueue import limits

_FIRST_BATCH = 16

ReadNames = Callable[[str, int], list[str]]
"""The next names after one, up to so many."""


class Cursor:
    """Not for several threads at once, as the queue object that has it."""

    def __init__(self, batch_max: int) -> None:
        """Reads at most `batch_max` names at a time."""
        self._batch_max = max(1, min(batch_max, limits.BATCH_ITEMS_MAX))
        self.end()

    def fresh(self) -> "Cursor":
        """Another of the same kind, without a pass."""
        return Cursor(self._batch_max)

    def rewind(self) -> None:
        """Start a pass."""
        self._ahead: list[str] = []  # in reverse
        self._last = ""
        self._ended = False
        self._batch = min(_FIRST_BATCH, self._batch_max)

    def end(self) -> None:
        self.rewind()
        self._ended = True

    def next(self, read: ReadNames) -> str:
        """The next name; "" at the end, and from then on."""
        if not self._ahead and not self._ended:
            self._read_ahead(read)
        return self._ahead.pop() if self._ahead else ""

    def _read_ahead(self, read: ReadNames) -> None:
        found = read(self._last, self._batch)
        self._ended = len(found) < self._batch
        # A short pass, to the first element that can be locked, should not read a thousand names.
        self._batch = min(2 * self._batch, self._batch_max)
        self._last = found[-1] if found else self._last
        self._ahead = found[::-1]
