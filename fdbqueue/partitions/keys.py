"""Keys of partitions: the only file that builds or parses them.

Queue S, of tasks or of the recipe. `p` is the number of a partition, a byte. Only a queue with partitions has
these keys. The last column names the readers.

    S[24] p        flag       empty                     takes: partition p may have available items
    S[25]          bell       grows with each new flag  watches of the first request in S[26]
    S[26, ...]     line       see line/keys.py          takes that wait for all partitions
    S[27] id       moved      p, the task's partition   verbs by id, if that is not the one in the id
    S[28] p, ...   partition  columns of its own, as S  partition 0 is the queue itself
"""

from typing import Any

from fdb import tuple as layer

FLAG, BELL, WIDE_LINE, MOVED, PARTITION = range(24, 29)


def _packed(column: int) -> bytes:
    packed: bytes = layer.pack((column,))
    return packed


def prefix_of(subspace: Any, partition: int) -> bytes:
    """The prefix of the keys of a partition of the queue in `subspace`."""
    prefix: bytes = subspace.key()
    return prefix + _packed(PARTITION) + bytes((partition,)) if partition else prefix


class SharedKeys:
    """The keys that the partitions of a queue share."""

    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        columns = {n: prefix + _packed(n) for n in range(FLAG, PARTITION + 2)}
        self._flag, self._moved, self._partition = columns[FLAG], columns[MOVED], columns[PARTITION]
        self.flags = slice(columns[FLAG], columns[BELL])
        self.bell = columns[BELL]
        self.line = columns[WIDE_LINE]
        self.all_moved = slice(columns[MOVED], columns[PARTITION])
        self.partitions = slice(columns[PARTITION], columns[PARTITION + 1])

    def flag(self, partition: int) -> bytes:
        return self._flag + bytes((partition,))

    def flagged(self, flag_key: bytes) -> int:
        return flag_key[-1]

    def column_of(self, key: bytes) -> int | None:
        """The column of a key that queues of every kind have: FLAG, BELL or WIDE_LINE; None for another."""
        if key.startswith(self.line):
            return WIDE_LINE
        if key == self.bell:
            return BELL
        return FLAG if key.startswith(self._flag) and len(key) == len(self._flag) + 1 else None

    def moved(self, id_: bytes) -> bytes:
        return self._moved + id_

    def under(self, partition: int) -> slice:
        """Everything of a partition but partition 0."""
        under = self._partition + bytes((partition,))
        return slice(under, under + b"\xff")
