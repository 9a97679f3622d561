"""The commit request of one transaction, and its form as bytes for other processes.

A request says when its commit has to reach the disk. A commit that is flushed takes all commits before it
along.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from math import inf

import msgspec

from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.runtime import Lock
from fdbqueue.embedded.writes import KeyRange, KeySet, Pending, StampedKey, WriteBuffer


class Flush(IntEnum):
    """The smallest of a group of commits counts for all of them."""

    NOW = 0
    """Before its call returns: it survives a power cut."""
    SOON = 1
    """Within `FLUSH_SOON_S`: a power cut may lose it. The death of its process does not."""
    NEVER = 2
    """Whenever the system writes it, or a later commit is flushed."""


FLUSH_SOON_S = 0.1


class CommitRequest(msgspec.Struct, eq=False):
    """The reads and writes of one transaction, and the outcome of its commit."""

    buffer: WriteBuffer
    reads: KeySet
    read_version: int | None
    size_bytes: int
    is_bookkeeping: bool = False  # may use the reserve (reserve.py)
    flush: Flush = Flush.NOW
    turn: Lock | None = None
    version: int | None = None
    order: int = 0
    error: Exception | None = None
    deadline_s: float = inf
    """When its transaction times out, by the monotonic clock; `late` is the error for that."""
    late: FDBError | None = None
    is_left: bool = False
    """True once no thread waits for it: it cannot lead."""

    @property
    def finished(self) -> bool:
        return self.version is not None or self.error is not None

    def wake(self) -> None:
        """Let the waiting thread go on. It waits only once, so a second call has no effect."""
        if self.turn is not None:
            with suppress(RuntimeError):  # released already
                self.turn.release()


class _Keys(msgspec.Struct, array_like=True):
    points: set[bytes]
    ranges: list[KeyRange]


class _Published(msgspec.Struct, array_like=True):
    read_version: int | None
    size_bytes: int
    reads: _Keys
    conflicts: _Keys
    silent: _Keys
    known: dict[bytes, bytes | None]
    pending: dict[bytes, list[tuple[int, bytes]]]
    cleared: list[KeyRange]
    stamped_keys: list[StampedKey]
    is_bookkeeping: bool
    flush: Flush


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Published]).decode


def encode(requests: Sequence[CommitRequest]) -> bytes:
    return _encode([_published(request) for request in requests])


def decode(body: bytes) -> list[CommitRequest]:
    return [_request(published) for published in _decode(body)]


def _published(request: CommitRequest) -> _Published:
    buffer = request.buffer
    known: dict[bytes, bytes | None] = {}
    pending: dict[bytes, list[tuple[int, bytes]]] = {}
    for key, entry in buffer.entries.items():
        if isinstance(entry, Pending):
            pending[key] = entry.steps
        else:
            known[key] = entry
    return _Published(
        request.read_version,
        request.size_bytes,
        _Keys(request.reads.points, request.reads.ranges),
        _Keys(buffer.conflicts.points, buffer.conflicts.ranges),
        _Keys(buffer.silent.points, buffer.silent.ranges),
        known,
        pending,
        list(buffer.cleared),
        buffer.stamped_keys,
        request.is_bookkeeping,
        request.flush,
    )


def _request(published: _Published) -> CommitRequest:
    buffer = WriteBuffer()
    buffer.entries = dict(published.known)
    for key, steps in published.pending.items():
        buffer.entries[key] = Pending.of(steps)
    for begin, end in published.cleared:
        buffer.cleared.add(begin, end)
    buffer.stamped_keys = published.stamped_keys
    buffer.conflicts = KeySet(published.conflicts.points, published.conflicts.ranges)
    buffer.silent = KeySet(published.silent.points, published.silent.ranges)
    reads = KeySet(published.reads.points, published.reads.ranges)
    return CommitRequest(
        buffer, reads, published.read_version, published.size_bytes, published.is_bookkeeping, published.flush
    )
