"""What recent commits wrote: the memory of the conflict check, shared by all processes.

Each commit adds one record under its version, in the same LMDB transaction as its data, so the log can
never disagree with the data, whoever dies when. Records older than a transaction may be are deleted as
the log grows. The newest ones are also kept decoded: a process that commits alone never reads the log.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.layout import LOG_END, LOG_PREFIX, Txn, log_key
from fdbqueue.embedded.pool import Answer
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import TRANSACTION_AGE_MAX_S

# Twice the age that a transaction may reach: clocks of two processes are not read at the same instant.
_KEPT_US = int(2 * TRANSACTION_AGE_MAX_S * 1_000_000)
_TRIM_EVERY_VERSIONS = 64
_TRIM_RECORDS_MAX = 256

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Written:
    """The writes of one commit: those that readers conflict with, and those that only watches see."""

    version: int
    conflicts: KeySet
    silent: KeySet
    removed: set[bytes] = field(default_factory=set)  # by clearing ranges; not in the log

    def keys(self) -> set[bytes]:
        """What may have another value now."""
        return self.conflicts.points | self.silent.points | self.removed


class _Record(msgspec.Struct, array_like=True):
    committed_us: int
    points: set[bytes]
    ranges: list[tuple[bytes, bytes]]
    silent_points: set[bytes]
    silent_ranges: list[tuple[bytes, bytes]]
    answers: Sequence[Answer] = ()
    asked_in: int = 0


_decode = msgspec.msgpack.Decoder(_Record).decode


def append(
    txn: Txn, written: Written, now_us: int, answers: Sequence[Answer] = (), asked_in: int = 0
) -> None:
    """Add the record of a commit, with its answers to other processes and the file of theirs (pool.py)."""
    conflicts, silent = written.conflicts, written.silent
    record = _Record(
        now_us, conflicts.points, conflicts.ranges, silent.points, silent.ranges, answers, asked_in
    )
    txn.put(log_key(written.version), _encode(record), append=False)
    if written.version % _TRIM_EVERY_VERSIONS == 0:
        _trim(txn, now_us)


def _trim(txn: Txn, now_us: int) -> None:
    cursor = txn.cursor()
    found = cursor.set_range(LOG_PREFIX)
    for _ in range(_TRIM_RECORDS_MAX):
        # The newest record stays: it tells how far back the log reaches. One of the future is of a clock that
        # was set back since: kept, it would keep all that come after it.
        if not found or cursor.key() >= LOG_END:
            return
        if abs(now_us - _decode(cursor.value()).committed_us) <= _KEPT_US:
            return
        cursor.delete()
        found = bool(cursor.key())


def trim_before(txn: Txn, version: int) -> int:
    """Delete records before that of `version`, which no transaction will ask for; how many.

    At most so many at once, and never the newest.
    """
    cursor = txn.cursor()
    found, end, count = cursor.set_range(LOG_PREFIX), log_key(version), 0
    while found and cursor.key() < end and count < _TRIM_RECORDS_MAX:
        cursor.delete()
        found, count = bool(cursor.key()), count + 1
    return count


def read_since(txn: Txn, version: int) -> Iterator[Written]:
    """The commits after `version`, oldest first."""
    cursor = txn.cursor()
    found = cursor.set_range(log_key(version + 1))
    while found and cursor.key() < LOG_END:
        record = _decode(cursor.value())
        yield Written(
            int.from_bytes(cursor.key()[1:], "big"),
            KeySet(record.points, record.ranges),
            KeySet(record.silent_points, record.silent_ranges),
        )
        found = cursor.next()


def answers_at(txn: Txn, version: int, asked_in: int) -> list[Answer] | None:
    """The answers of the commit at `version`, none if there was no such commit; None if nobody knows."""
    found = txn.get(log_key(version))
    if found is not None:
        record = _decode(found)
        return list(record.answers) if record.asked_in == asked_in else []
    oldest = oldest_version(txn)
    return None if oldest is not None and oldest > version else []


def oldest_version(txn: Txn) -> int | None:
    cursor = txn.cursor()
    if cursor.set_range(LOG_PREFIX) and cursor.key() < LOG_END:
        return int.from_bytes(cursor.key()[1:], "big")
    return None


class RecentCommits:
    """The decoded end of the log: every commit with floor < version <= last."""

    def __init__(self) -> None:
        self._commits: deque[Written] = deque()
        self._floor = self._last = -1

    def catch_up(self, txn: Txn, last: int, asked: int) -> None:
        """Take in what other processes committed up to `last`, as far as a reader at `asked` must know."""
        if self._last == last:
            return
        oldest, since = oldest_version(txn), max(self._last, asked)
        if oldest is None or oldest > since + 1:
            # The log was trimmed beyond it, by a clock that jumped, or while this process waited for its
            # turn: what lies between must not pass for unwritten.
            since = last
        if since > self._last:
            self._floor = since  # first: an interrupt may come between any two steps
            self._commits.clear()
        self._commits.extend(read_since(txn, since))
        self._last = last

    def add(self, written: Written) -> None:
        self._commits.append(written)
        self._last = written.version

    def forget_before(self, version: int) -> None:
        """Drop what no transaction of this process, all at `version` or later, will ask for."""
        while self._commits and self._commits[0].version <= version:
            self._floor = self._commits[0].version  # first: an interrupt may come before the next step
            self._commits.popleft()

    def conflict(self, txn: Txn, reads: KeySet, read_version: int) -> bool:
        """Whether a commit after `read_version` wrote what was read. Raises FDBError 1007."""
        if read_version < self._floor:
            self._reach_back(txn, read_version)
        for written in reversed(self._commits):
            if written.version <= read_version:
                return False
            if reads.meets(written.conflicts):
                return True
        return False

    def _reach_back(self, txn: Txn, read_version: int) -> None:
        oldest = oldest_version(txn)
        if oldest is None or oldest > read_version + 1:
            raise FDBError(1007)
        earlier = [w for w in read_since(txn, read_version) if w.version <= self._floor]
        self._commits.extendleft(reversed(earlier))
        self._floor = read_version
