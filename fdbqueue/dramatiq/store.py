"""Keys of results, limits and events, and their values: the only file that builds or parses them.

S is a subspace of its own, beside the root of the queues. `expires` is microseconds since the epoch.

    S[1, name, number]           result    expires, 8 bytes; then the encoded result, cut into pieces
    S[2, name]                   counter   expires, and a whole number, 8 bytes each
    S[3, name]                   event     expires, and the number of its calls; each change wakes its waits
    S[4, expires, column, name]  timer     empty

A name that is written again gets a second timer. The first one then finds that the name is not over.
"""

import struct
from collections.abc import Callable
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.pieces import pieces_of
from fdbqueue.seam import Future, Transaction

SUBSPACE = Subspace(("fdbqueue-dramatiq",))
SWEPT_MAX = 20
"""Timers that one write looks at. It removes more than it adds, so nothing piles up."""

RESULT, COUNTER, EVENT, TIMER = range(1, 5)
_TIME = struct.Struct(">Q")
_COUNT = struct.Struct(">Qq")


class Store:
    """Values that expire. A value that is over counts as missing, swept or not."""

    def __init__(self, subspace: Any = SUBSPACE) -> None:
        self._subspace = subspace

    # Results:

    def result(self, tr: Transaction, name: str, now_us: int) -> bytes | None:
        """The encoded result. Reads: its keys, serialisably."""
        under = self._subspace.range((RESULT, name))
        found = b"".join(row.value for row in tr.get_range(under.start, under.stop))
        return found[_TIME.size :] if found and _expires_us(found) > now_us else None

    def watch_result(self, tr: Transaction, name: str) -> Future:
        return tr.watch(self._subspace.pack((RESULT, name, 0)))

    def set_result(self, tr: Transaction, name: str, encoded: bytes, expires_us: int) -> None:
        """Writes: the result, and its timer."""
        under = self._subspace.range((RESULT, name))
        tr.clear_range(under.start, under.stop)
        for number, piece in enumerate(pieces_of(_TIME.pack(expires_us) + encoded)):
            tr.set(self._subspace.pack((RESULT, name, number)), piece)
        self._set_timer(tr, RESULT, name, expires_us)

    # Counters and events:

    def ask_count(self, tr: Transaction, column: int, name: str, now_us: int) -> Callable[[], int | None]:
        """Ask for the number of a counter or event. Reads: it, serialisably."""
        asked = tr.get(self._subspace.pack((column, name)))
        return lambda: _count_in(asked.value, now_us) if asked.present() else None

    def watch_count(self, tr: Transaction, column: int, name: str) -> Future:
        return tr.watch(self._subspace.pack((column, name)))

    def set_count(self, tr: Transaction, column: int, name: str, number: int, expires_us: int) -> None:
        """Writes: the counter or event, and its timer."""
        tr.set(self._subspace.pack((column, name)), _COUNT.pack(expires_us, number))
        self._set_timer(tr, column, name, expires_us)

    # The end:

    def sweep(self, tr: Transaction, now_us: int) -> None:
        """Remove the first values that are over. Reads: timers by snapshot, their values serialisably."""
        under = self._subspace.range((TIMER,))
        due = tr.snapshot.get_range(under.start, self._subspace.pack((TIMER, now_us)), limit=SWEPT_MAX)
        for row in due.to_list():
            tr.clear(row.key)
            _, _, column, name = self._subspace.unpack(row.key)
            of = (column, name, 0) if column == RESULT else (column, name)
            value = tr.get(self._subspace.pack(of)).value
            if value is not None and _expires_us(value) <= now_us:
                self._clear(tr, column, name)

    def _clear(self, tr: Transaction, column: int, name: str) -> None:
        under = self._subspace.range((column, name))
        tr.clear_range(under.start, under.stop)
        tr.clear(self._subspace.pack((column, name)))

    def _set_timer(self, tr: Transaction, column: int, name: str, expires_us: int) -> None:
        tr.set(self._subspace.pack((TIMER, expires_us, column, name)), b"")


def _expires_us(value: bytes) -> int:
    expires_us: int = _TIME.unpack_from(value)[0]
    return expires_us


def _count_in(value: bytes, now_us: int) -> int | None:
    expires_us, number = _COUNT.unpack(value)
    return int(number) if expires_us > now_us else None
