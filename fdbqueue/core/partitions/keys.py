"""Keys of partitions: the only file that builds or parses them.

Queue S, of tasks or of the recipe. The comment of a column has its value, and behind the semicolon its
readers. Only a queue with partitions has the keys S[24] to S[28]. Partition 0 is the queue itself; another
one has columns of its own in S[28], as S. Queues of tasks have the other keys with partitions or without: a
unique key holds for the whole queue, and a result outlives the partition of its task. Times are microseconds
since the epoch.

A queue over a subspace may have S[37], its layout: see registry/registry.py.

Each member of a group has S[35]. S[34] and S[36] outlive a truncate, and S[34] a drop.
"""

from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.columns import Table, number, sized
from fdbqueue.core.root_keys import MEMBERS as _MEMBERS
from fdbqueue.core.seam import Transaction, Value

ID_BYTES = 8 + limits.RANDOM_SUFFIX_BYTES
TIME_BYTES = 8
EPOCH_BYTES = 8
GROUP_BYTES = 16

ANY = sized(1, limits.KEY_BYTES_MAX)
ID, KEY, GROUP = sized(ID_BYTES), sized(1, limits.TASK_KEY_BYTES_MAX), sized(GROUP_BYTES)
PIECE_NUMBER, TIME, BYTE = number(4), number(8), number(1)

S = Table()
FLAG = S.column(24, BYTE)  # empty; takes: the partition may have available items
BELL = S.column(25)  # grows with each new flag; watches of the first request in S[26]
ROOM = S.column(25, sized(1))  # 00: grows as tasks go, if there is a capacity; puts that wait for room
WIDE_LINE = S.column(26, ANY)  # see line/keys.py; takes that wait for all partitions
MOVED = S.column(27, ID)  # the task's partition; verbs by id, if that is not the one in the id
PARTITION = S.column(28, BYTE, sized(2, limits.KEY_BYTES_MAX - 1))
UNIQUE = S.column(29, KEY)  # id of its task, and the end of a scope in seconds; puts with this unique key
WINDOW = S.column(30, TIME, KEY)  # id of its task; sweeps: the ends of scopes in seconds
RESULT = S.column(31, ID)  # see tasks/results.py; result(): the end of a task that was asked for one
RESULT_PIECE = S.column(31, ID, PIECE_NUMBER)  # a piece of it; result(), if it is large
RESULT_AT = S.column(32, TIME, ID)  # empty; sweeps: the results that are over, the oldest first
MEMBERS = S.column(_MEMBERS, TIME, GROUP)  # by epoch: counts, see records/groups.py; sweeps, after a truncate
MEMBER = S.column(35, GROUP, ID)  # empty; sweeps, after the cancel of a group
EPOCH = S.column(36)  # number of truncates; puts of members


def prefix_of(subspace: Any, partition: int) -> bytes:
    """The prefix of the keys of a partition of the queue in `subspace`."""
    prefix: bytes = subspace.key()
    return prefix + PARTITION.code + bytes((partition,)) if partition else prefix


def time_bytes(time_us: int) -> bytes:
    return time_us.to_bytes(TIME_BYTES, "big")


class SharedKeys:
    """The keys that the partitions of a queue share."""

    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        self.flag, self.flags, self.flagged = FLAG.key(prefix), FLAG.all(prefix), FLAG.first(prefix)
        self.bell, self.room = BELL.start(prefix), ROOM.key(prefix)(b"\x00")
        self.line = WIDE_LINE.start(prefix)
        self.moved, self.all_moved = MOVED.key(prefix), MOVED.all(prefix)
        self.partitions = PARTITION.all(prefix)
        self.under = PARTITION.of(prefix, b"\xff")
        """Everything of a partition but partition 0."""
        self.unique, self.uniques = UNIQUE.key(prefix), UNIQUE.all(prefix)
        self.window, self.windows = WINDOW.key(prefix), WINDOW.all(prefix)
        self.window_parts, self.windows_until = WINDOW.pair(prefix), WINDOW.until(prefix)
        self.result, self.results = RESULT.key(prefix), RESULT.all(prefix)
        self.result_piece = RESULT_PIECE.key(prefix)
        self.result_at, self.result_times = RESULT_AT.key(prefix), RESULT_AT.all(prefix)
        self.result_time, self.results_until = RESULT_AT.first(prefix), RESULT_AT.until(prefix)
        self.members_of, self.members = MEMBERS.key(prefix), MEMBERS.all(prefix)
        """The counts of the members of a group that were put in an epoch."""
        self.members_parts = MEMBERS.pair(prefix)
        self.member, self.all_member = MEMBER.key(prefix), MEMBER.all(prefix)
        self.epoch = EPOCH.start(prefix)

    def column_of(self, key: bytes) -> int | None:
        """The column of a key that queues of every kind have: FLAG, BELL or WIDE_LINE; None for another."""
        if key.startswith(self.line):
            return WIDE_LINE
        if key in (self.bell, self.room):
            return BELL
        return FLAG if key.startswith(self.flags.start) and len(key) == len(self.flags.start) + 1 else None

    def pieces_of(self, id_: bytes) -> slice:
        """The pieces of a large result."""
        return slice(self.result(id_) + b"\x00", self.result(id_) + b"\xff")

    def members_before(self, epoch: int) -> slice:
        """The counts of the members that were put in earlier epochs."""
        return slice(self.members.start, self.members_of(epoch, b""))

    def members_in(self, group: bytes, after: bytes = b"") -> slice:
        """The members of a group, behind the task `after`."""
        start = self.member(group, b"")
        return slice(start + after + b"\x00" * bool(after), start + b"\xff" * 32)


_RING = (1).to_bytes(8, "little")


class Flag:
    """The flag of one partition, in one transaction: it may have available items. Without it, it has none.

    A change that may make an item available reads the flag, and sets it if it is absent; then it also rings
    the bell, which wakes a waiting take. A taker clears the flag after it has read serialisably that none is
    there.
    """

    def __init__(self, tr: Transaction, keys: SharedKeys, partition: int) -> None:
        self._tr = tr
        self._keys = keys
        self._key = keys.flag(partition)
        self._asked: Value | None = None

    def ask(self) -> None:
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
    tr.add(keys.bell, _RING)


def ring_for_room(tr: Transaction, keys: SharedKeys) -> None:
    tr.add(keys.room, _RING)
