"""A cursor: the position of a pass over a queue's names, and the names that it has read ahead.

Names are read in batches, each in a transaction of its own, from the last name of the batch before. So no
transaction stays open between elements. An element that exists during the whole pass is shown once.
"""

from collections.abc import Callable

from fdbqueue import limits

ReadNames = Callable[[str, int], list[str]]
"""Given a name and a limit: the next names, at most `limit`."""


class Cursor:
    """For one thread at a time, like the queue object that owns it."""

    def __init__(self, batch_max: int) -> None:
        """Reads at most `batch_max` names at a time."""
        self._batch_max = max(1, min(batch_max, limits.BATCH_ITEMS_MAX))
        self.end()

    def fresh(self) -> "Cursor":
        """Make a cursor with the same batches, without a pass."""
        return Cursor(self._batch_max)

    def rewind(self) -> None:
        """Start a pass."""
        self._ahead: list[str] = []  # in reverse
        self._last = ""
        self._ended = False
        self._batch = min(limits.NAMES_READ_FIRST, self._batch_max)

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
