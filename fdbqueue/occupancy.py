"""Occupancy: whether a key prefix is free, or holds keys of ours only. One key is read at each end of it.

Keys of another layer sort before ours, between them or behind them. Keys in between are not seen, but no
layer writes only there. The reads are snapshot reads: the answer of a call does not depend on our own keys.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from fdbqueue.errors import SubspaceInUse
from fdbqueue.seam import Transaction

KEY_BYTES_SHOWN = 60
"""Bytes of a foreign key that an error message shows."""

IsOurs = Callable[[bytes], bool]


def ask_ends(tr: Any, prefix: bytes) -> Callable[[], list[bytes]]:
    """Ask for the first and the last key under `prefix`; the reply is a list, empty without keys."""
    snapshot, end = getattr(tr, "snapshot", tr), _end_of(prefix)
    first = snapshot.get_range(prefix, end, limit=1)
    last = snapshot.get_range(prefix, end, limit=1, reverse=True)
    return lambda: [bytes(row.key) for rows in (first, last) for row in rows]


def require_ours(prefix: bytes, keys: list[bytes], is_ours: IsOurs) -> None:
    """Raises SubspaceInUse for a key of another shape."""
    for key in keys:
        if not is_ours(key):
            raise SubspaceInUse(prefix=prefix, key=key, shown=key[:KEY_BYTES_SHOWN])


class Occupancy:
    """The subspace of a queue that is not registered; another program may use it."""

    def __init__(self, prefix: bytes, is_ours: IsOurs, root: bytes | None = None) -> None:
        """`root` is the prefix of receipts and sessions, which may lie in the subspace."""
        self._prefix = prefix
        self._is_ours = is_ours
        self._root = root
        # Databases in which a key of ours was seen: the queue is in use there, and the subspace is not
        # checked again.
        self._known: WeakSet[Any] = WeakSet()

    def ask(self, tr: Transaction) -> Callable[[], None]:
        """The reply raises SubspaceInUse. Reads the two ends by snapshot."""
        keys = ask_ends(tr, self._prefix)
        return lambda: self._judge(tr, keys())

    def ask_until_known(self, tr: Transaction) -> Callable[[], None]:
        """Like `ask`, until a key of ours was seen in the database of `tr`; then without a read."""
        return _nothing if getattr(tr, "db", None) in self._known else self.ask(tr)

    def _judge(self, tr: Transaction, keys: list[bytes]) -> None:
        keys = [key for key in keys if self._root is None or not key.startswith(self._root)]
        require_ours(self._prefix, keys, self._is_ours)
        database = getattr(tr, "db", None)
        if keys and database is not None:
            self._known.add(database)


def _nothing() -> None: ...


def _end_of(prefix: bytes) -> bytes:
    """The first key behind those that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff"
