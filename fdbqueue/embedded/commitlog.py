"""The commit log: the writes of recent commits, which the conflict checks of all processes read.

Each commit adds one record under its version, in the same LMDB transaction as its data, so log and data never
disagree, even if a process dies. As the log grows, records older than any transaction are deleted. Each
process keeps the newest records decoded, so a process that commits alone never reads the log.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded.journal import NOWHERE, Place
from fdbqueue.embedded.layout import LOG_END, LOG_PREFIX, Txn, log_key
from fdbqueue.embedded.pool import Answer
from fdbqueue.embedded.writes import KeySet

# Twice the age of a transaction, since two processes do not read their clocks at the same instant.
_KEPT_US = int(2 * limits.TRANSACTION_AGE_MAX_S * 1_000_000)

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class Written:
    """The writes of one commit: `conflicts` for readers and watches, `silent` for watches only."""

    version: int
    conflicts: KeySet
    silent: KeySet
    removed: set[bytes] = field(default_factory=set)  # keys in cleared ranges; not in the log

    def keys(self) -> set[bytes]:
        return self.conflicts.points | self.silent.points | self.removed


class _Record(msgspec.Struct, array_like=True):
    committed_us: int
    points: set[bytes]
    ranges: list[tuple[bytes, bytes]]
    silent_points: set[bytes]
    silent_ranges: list[tuple[bytes, bytes]]
    answers: Sequence[Answer] = ()
    asked_in: int = 0
    place: tuple[int, int, int] = (0, 0, 0)


_decode = msgspec.msgpack.Decoder(_Record).decode


def append(
    txn: Txn,
    written: Written,
    now_us: int,
    answers: Sequence[Answer] = (),
    asked_in: int = 0,
    place: Place = NOWHERE,
) -> None:
    """Add the record of a commit, and its place. `answers`: to requests in the pool's file `asked_in`."""
    conflicts, silent = written.conflicts, written.silent
    record = _Record(
        now_us, conflicts.points, conflicts.ranges, silent.points, silent.ranges, answers, asked_in, place
    )
    txn.put(log_key(written.version), _encode(record), append=False)
    if written.version % limits.LOG_TRIMMED_EVERY_VERSIONS == 0:
        _trim(txn, now_us)


def note_place(txn: Txn, place: Place, now_us: int) -> None:
    """Add the record of a commit without writes, so that the next one goes to `place` in the journal."""
    append(txn, Written(txn.id(), KeySet(), KeySet()), now_us, place=place)


def _trim(txn: Txn, now_us: int) -> None:
    cursor = txn.cursor()
    found = cursor.set_range(LOG_PREFIX)
    for _ in range(limits.LOG_TRIMMED_MAX):
        # A record from the future was written before the clock was set back. It is deleted: kept, it would
        # keep all later records. The newest record stays, as it shows how far back the log reaches.
        if not found or cursor.key() >= LOG_END:
            return
        if abs(now_us - _decode(cursor.value()).committed_us) <= _KEPT_US:
            return
        cursor.delete()
        found = bool(cursor.key())


def clear(txn: Txn) -> None:
    cursor = txn.cursor()
    found = cursor.set_range(LOG_PREFIX)
    while found and cursor.key() < LOG_END:
        cursor.delete()
        found = bool(cursor.key())


def last_place(txn: Txn) -> Place:
    newest = _newest(txn)
    return Place(*_decode(txn.get(newest)).place) if newest is not None else NOWHERE


def trim_before(txn: Txn, version: int) -> int:
    """Delete up to limits.LOG_TRIMMED_MAX records before `version`, never the newest; return their number."""
    newest = _newest(txn)
    if newest is None:
        return 0
    cursor = txn.cursor()
    found, end, count = cursor.set_range(LOG_PREFIX), min(log_key(version), newest), 0
    while found and cursor.key() < end and count < limits.LOG_TRIMMED_MAX:
        cursor.delete()
        found, count = bool(cursor.key()), count + 1
    return count


def _newest(txn: Txn) -> bytes | None:
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(LOG_END) else cursor.last()
    return bytes(cursor.key()) if found and cursor.key() >= LOG_PREFIX else None


def read_since(txn: Txn, version: int) -> Iterator[Written]:
    """Oldest first."""
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
    """Return the answers of the commit at `version`, [] if there was none; None if the log is too short."""
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
    """The decoded end of the log: each commit with floor < version <= last."""

    def __init__(self) -> None:
        self._commits: deque[Written] = deque()
        self._floor = self._last = -1

    def catch_up(self, txn: Txn, last: int, asked: int) -> None:
        """Add other processes' commits up to `last` with which a reader at version `asked` may conflict."""
        if self._last == last:
            return
        oldest, since = oldest_version(txn), max(self._last, asked)
        if oldest is None or oldest > since + 1:
            # The log was trimmed too far: a clock jumped, or this process waited long for its turn. The
            # missing commits must not count as commits without writes.
            since = last
        if since > self._last:
            self._floor = since  # first, since an interrupt may come between any two steps
            self._commits.clear()
        self._commits.extend(read_since(txn, since))
        self._last = last

    def add(self, written: Written) -> None:
        self._commits.append(written)
        self._last = written.version

    def forget_before(self, version: int) -> None:
        """Drop the commits up to `version`: all transactions of this process read at it or later."""
        while self._commits and self._commits[0].version <= version:
            self._floor = self._commits[0].version  # first, since an interrupt may come before the next step
            self._commits.popleft()

    def conflict(self, txn: Txn, reads: KeySet, read_version: int) -> bool:
        """True if a commit after `read_version` wrote a key of `reads`. Raises: FDBError 1007 (too old)."""
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
