"""Flags: a flag says that a partition may have available items; without one, it has none.

A change that may make an item available reads the flag, and sets it if it is absent; then it also rings the
bell, which wakes a waiting take. A taker clears the flag after it has read serialisably that none is there.
"""

from fdbqueue.partitions.keys import SharedKeys
from fdbqueue.seam import Transaction, Value

_RING = (1).to_bytes(8, "little")


class Flag:
    """The flag of one partition, in one transaction."""

    def __init__(self, tr: Transaction, keys: SharedKeys, partition: int) -> None:
        self._tr = tr
        self._keys = keys
        self._key = keys.flag(partition)
        self._asked: Value | None = None

    def ask(self) -> None:
        """Ask early for the flag."""
        if self._asked is None:
            self._asked = self._tr.snapshot.get(self._key)

    def set(self) -> None:
        """Set the flag if it is absent. Conflicts: a taker that clears it."""
        self.ask()
        flag, self._asked = self._asked, None
        # A taker that clears the flag has not seen this change: one of the two conflicts.
        self._tr.add_read_conflict_key(self._key)
        if flag is None or not flag.present():
            self._tr.set(self._key, b"")
            ring(self._tr, self._keys)


def ring(tr: Transaction, keys: SharedKeys) -> None:
    """Wake the first take that waits for all partitions."""
    tr.add(keys.bell, _RING)


def ring_for_room(tr: Transaction, keys: SharedKeys) -> None:
    """Wake the puts that wait for room in any partition."""
    tr.add(keys.room, _RING)
