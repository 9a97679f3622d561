"""Values by name, each with an end, in a transaction of the caller. One that has ended counts as missing."""

from collections.abc import Callable
from typing import Any

from fdbqueue import limits
from fdbqueue.frameworks.keys import ResultKeys, stored, stored_parts
from fdbqueue.pieces import pieces_of
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import Future, ReadTransaction, Transaction

SWEPT = 4
"""Ended values that one write removes: twice the number that a busy program adds."""


class Store:
    """The values of one space: `space` tells those of one framework from those of another."""

    def __init__(self, space: str, root: Any = DEFAULT_ROOT) -> None:
        self._keys = ResultKeys(root, space)

    def ask(self, tr: ReadTransaction, name: bytes, now_us: int) -> Callable[[], bytes | None]:
        """Ask for a value: the function that is returned waits for it. None: it is not there, or has ended.

        Reads: the value; in a snapshot, without a conflict.
        """
        asked = tr.get(self._keys.result(name))
        return lambda: self._value_in(tr, name, asked.value, now_us)

    def watch(self, tr: Transaction, name: bytes) -> Future:
        """A future that is ready when the value changes."""
        return tr.watch(self._keys.result(name))

    def write(self, tr: Transaction, name: bytes, value: bytes, ends_us: int) -> None:
        """Store a value until `ends_us`, 0 for ever.

        Reads: its earlier value. Writes: the value. Conflicts: its change.
        """
        self.clear(tr, name)
        pieces = list(pieces_of(value)) if len(value) > limits.PAYLOAD_PIECE_BYTES_MAX else []
        tr.set(self._keys.result(name), stored(ends_us, len(pieces), b"" if pieces else value))
        for number, piece in enumerate(pieces):
            tr.set(self._keys.piece(name, number), piece)
        if ends_us:
            tr.set(self._keys.end(ends_us, name), b"")

    def clear(self, tr: Transaction, name: bytes) -> None:
        """Remove a value, with its end. Conflicts: its change."""
        found = tr.get(self._keys.result(name)).value
        if found is not None:
            self._clear(tr, name, found)

    def sweep(self, tr: Transaction, now_us: int) -> None:
        """Remove the first values that have ended. Conflicts: a change of one of them."""
        under = self._keys.ends_until(now_us)
        for row in tr.snapshot.get_range(under.start, under.stop, limit=SWEPT).to_list():
            name = self._keys.name_of(row.key)
            tr.clear(row.key)
            found = tr.get(self._keys.result(name)).value
            if found is not None and 0 < stored_parts(found)[0] <= now_us:
                self._clear(tr, name, found)

    def _clear(self, tr: Transaction, name: bytes, found: bytes) -> None:
        ends_us, pieces, _ = stored_parts(found)
        tr.clear(self._keys.result(name))
        if pieces:
            under = self._keys.pieces(name)
            tr.clear_range(under.start, under.stop)
        if ends_us:
            tr.clear(self._keys.end(ends_us, name))

    def _value_in(self, tr: ReadTransaction, name: bytes, found: bytes | None, now_us: int) -> bytes | None:
        if found is None:
            return None
        ends_us, pieces, value = stored_parts(found)
        if ends_us and ends_us <= now_us:
            return None
        if not pieces:
            return value
        under = self._keys.pieces(name)
        return b"".join(bytes(row.value) for row in tr.get_range(under.start, under.stop, limit=pieces))
