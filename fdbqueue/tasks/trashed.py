"""The end of the trash (operate/exports/trash.py): a sweep of the root clears the purges that are over.

    R[22, purge, id]   empty; purges of all queues, the oldest first

A purge is named by its time in microseconds, 8 bytes, and random bytes. So one read tells a process that
sweeps if anything is over, whatever the number of queues.
"""

from collections.abc import Callable

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.partitions import TIME_BYTES
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Range, Transaction


def over_us(purge: bytes) -> int:
    """The time from which on a purge cannot be restored."""
    return int.from_bytes(purge[:TIME_BYTES], "big") + limits.TRASH_KEPT_S * 1_000_000


def clear(tr: Transaction, keys: RootKeys, id_: int, purge: bytes) -> None:
    """Writes: clears the purge and its tasks. Conflicts: a restore of it."""
    under = keys.trashed_by(id_, purge)
    tr.clear(keys.purge(id_, purge))
    tr.clear_range(under.start, under.stop)
    tr.clear(keys.trash_over(purge, id_))


class Emptying:
    """The sweep of the trash under one root, by one process: a `Tidied` of its keeper."""

    name = "trash"

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._keys, self._now_us = keys, database.runtime.now_us

    def guard(self, _: Transaction) -> Callable[[], None]:
        return lambda: None

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Reads: the oldest purge of the root, by snapshot."""
        first = self._ask_first(tr)
        return lambda: min((self._due_us(bytes(row.key)) for row in first), default=None)

    def tidy(self, tr: Transaction) -> bool:
        """Clear the oldest purge if it is over. True if there was one."""
        keys = [bytes(row.key) for row in self._ask_first(tr)]
        over = [key for key in keys if self._due_us(key) <= self._now_us()]
        for key in over:
            found = self._keys.trash_over_in(key)
            if found is None:
                tr.clear(key)
            else:
                clear(tr, self._keys, found[1], found[0])
        return bool(over)

    def _ask_first(self, tr: Transaction) -> Range:
        under = self._keys.trash_overs
        return tr.snapshot.get_range(under.start, under.stop, limit=1)

    def _due_us(self, key: bytes) -> int:
        """The time of a purge; at once for a key of another shape."""
        found = self._keys.trash_over_in(key)
        return 0 if found is None else over_us(found[0])
