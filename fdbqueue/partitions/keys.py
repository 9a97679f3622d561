"""Keys of partitions: the only file that builds or parses them.

Queue S, of tasks or of the recipe. `p` is the number of a partition, a byte. Only a queue with partitions has
the keys S[24] to S[28]. The last column names the readers.

    S[24] p        flag       empty                     takes: partition p may have available items
    S[25]          bell       grows with each new flag  watches of the first request in S[26]
    S[25] 00       room       grows as tasks go, if     watches of puts that wait for room
                              there is a capacity
    S[26, ...]     line       see line/keys.py          takes that wait for all partitions
    S[27] id       moved      p, the task's partition   verbs by id, if that is not the one in the id
    S[28] p, ...   partition  columns of its own, as S  partition 0 is the queue itself

Queues of tasks share these keys, too, with partitions or without: a unique key holds for the whole queue, and
a result outlives the partition of its task. Times are microseconds since the epoch, 8 bytes.

    S[29] key         unique     id of its task, and the end of a scope in seconds  puts with this unique key
    S[30] time, key   window     id of its task            sweeps: the ends of scopes in seconds
    S[31] id          result     see tasks/results.py      result(): the end of a task that was asked for one
    S[31] id, number  piece      a piece of it             result(), if it is large
    S[32] time, id    result at  empty                     sweeps: the results that are over, the oldest first
    S[34] epoch, group  members  counts, see records/groups.py  sweeps, after a truncate or a drop
    S[35] group, id     member   empty                          sweeps, after the cancel of a group
    S[36]               epoch    number of truncates            puts of members

A queue over a subspace may have S[37], its layout: see registry/subspace_layout.py.

Each member of a group has S[35]. S[34] and S[36] outlive a truncate, and S[34] a drop.
"""

from typing import Any

from fdb import tuple as layer

from fdbqueue.root_keys import MEMBERS as MEMBERS

FLAG, BELL, WIDE_LINE, MOVED, PARTITION, UNIQUE, WINDOW, RESULT, RESULT_AT = range(24, 33)
MEMBER, EPOCH = MEMBERS + 1, MEMBERS + 2

TIME_BYTES = 8
EPOCH_BYTES = 8
GROUP_BYTES = 16
_NUMBER_BYTES = 4


_PACKED: dict[int, bytes] = {column: layer.pack((column,)) for column in range(FLAG, EPOCH + 1)}


def prefix_of(subspace: Any, partition: int) -> bytes:
    """The prefix of the keys of a partition of the queue in `subspace`."""
    prefix: bytes = subspace.key()
    return prefix + _PACKED[PARTITION] + bytes((partition,)) if partition else prefix


def time_bytes(time_us: int) -> bytes:
    return time_us.to_bytes(TIME_BYTES, "big")


class SharedKeys:
    """The keys that the partitions of a queue share."""

    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        columns = {n: prefix + _PACKED[n] for n in range(FLAG, RESULT_AT + 2)}
        self._flag, self._moved, self._partition = columns[FLAG], columns[MOVED], columns[PARTITION]
        self.flags = slice(columns[FLAG], columns[BELL])
        self.bell = columns[BELL]
        self.room = self.bell + b"\x00"
        self.line = columns[WIDE_LINE]
        self.all_moved = slice(columns[MOVED], columns[PARTITION])
        self.partitions = slice(columns[PARTITION], columns[UNIQUE])
        self._unique, self._window = columns[UNIQUE], columns[WINDOW]
        self.uniques = slice(columns[UNIQUE], columns[WINDOW])
        self.windows = slice(columns[WINDOW], columns[RESULT])
        self._result, self._result_at = columns[RESULT], columns[RESULT_AT]
        self.results = slice(columns[RESULT], columns[RESULT_AT])
        self.result_times = slice(columns[RESULT_AT], columns[RESULT_AT + 1])
        of_groups = {n: prefix + _PACKED[n] for n in (MEMBERS, MEMBER, EPOCH)}
        self._members, self._member = of_groups[MEMBERS], of_groups[MEMBER]
        self.members = slice(of_groups[MEMBERS], of_groups[MEMBER])
        self.all_member = slice(of_groups[MEMBER], of_groups[EPOCH])
        self.epoch = of_groups[EPOCH]

    def flag(self, partition: int) -> bytes:
        return self._flag + bytes((partition,))

    def flagged(self, flag_key: bytes) -> int:
        return flag_key[-1]

    def column_of(self, key: bytes) -> int | None:
        """The column of a key that queues of every kind have: FLAG, BELL or WIDE_LINE; None for another."""
        if key.startswith(self.line):
            return WIDE_LINE
        if key in (self.bell, self.room):
            return BELL
        return FLAG if key.startswith(self._flag) and len(key) == len(self._flag) + 1 else None

    def moved(self, id_: bytes) -> bytes:
        return self._moved + id_

    def result(self, id_: bytes) -> bytes:
        return self._result + id_

    def result_piece(self, id_: bytes, number: int) -> bytes:
        return self._result + id_ + number.to_bytes(_NUMBER_BYTES, "big")

    def pieces_of(self, id_: bytes) -> slice:
        """The pieces of a large result."""
        return slice(self._result + id_ + b"\x00", self._result + id_ + b"\xff")

    def result_at(self, time_us: int, id_: bytes) -> bytes:
        return self._result_at + time_bytes(time_us) + id_

    def results_until(self, time_us: int) -> slice:
        """The times of the results that are over then."""
        return slice(self._result_at, self._result_at + time_bytes(time_us + 1))

    def result_time(self, result_at_key: bytes) -> int:
        start = len(self._result_at)
        return int.from_bytes(result_at_key[start : start + TIME_BYTES], "big")

    def unique(self, key: bytes) -> bytes:
        return self._unique + key

    def window(self, until_us: int, key: bytes) -> bytes:
        return self._window + time_bytes(until_us) + key

    def windows_until(self, now_us: int) -> slice:
        """The windows that end at that time or before."""
        return slice(self._window, self._window + time_bytes(now_us + 1))

    def window_parts(self, window_key: bytes) -> tuple[int, bytes]:
        """The end of a window, and its unique key."""
        rest = window_key[len(self._window) :]
        return int.from_bytes(rest[:TIME_BYTES], "big"), rest[TIME_BYTES:]

    def members_of(self, epoch: int, group: bytes) -> bytes:
        """The counts of the members of a group that were put in that epoch."""
        return self._members + epoch.to_bytes(EPOCH_BYTES, "big") + group

    def members_before(self, epoch: int) -> slice:
        """The counts of the members that were put in earlier epochs."""
        return slice(self._members, self._members + epoch.to_bytes(EPOCH_BYTES, "big"))

    def members_parts(self, members_key: bytes) -> tuple[int, bytes]:
        """The epoch and the group of a key of counts."""
        rest = members_key[len(self._members) :]
        return int.from_bytes(rest[:EPOCH_BYTES], "big"), rest[EPOCH_BYTES:]

    def member(self, group: bytes, id_: bytes) -> bytes:
        return self._member + group + id_

    def members_in(self, group: bytes, after: bytes = b"") -> slice:
        """The members of a group, behind the task `after`."""
        start = self._member + group
        return slice(start + after + b"\x00" * bool(after), start + b"\xff" * 32)

    def under(self, partition: int) -> slice:
        """Everything of a partition but partition 0."""
        under = self._partition + bytes((partition,))
        return slice(under, under + b"\xff")
