"""The database at one version, as an LMDB transaction that reads."""

import weakref
from collections.abc import Iterator
from typing import Any

import lmdb

from fdbqueue.embedded import layout
from fdbqueue.fdberror import FDBError


class Snapshot:
    """The database at one version. It ends with its last reference.

    Past the age of a transaction it cannot be read, and the next begin or commit of this process ends it.
    """

    __slots__ = (
        "__weakref__",
        "_has_ended",
        "_live",
        "_reads",
        "_serial",
        "_to_abort",
        "expires_s",
        "txn",
        "version",
    )

    def __init__(self, txn: Any, expires_s: float, live: "dict[int, weakref.ref[Snapshot]]", serial: int):
        self.txn = txn
        self.version: int = txn.id()
        self.expires_s = expires_s
        self._live = live
        self._serial = serial
        # Lists: append and pop are atomic, and a lock would cost each read more.
        self._reads: list[None] = []
        self._to_abort: list[None] = [None]
        self._has_ended = False
        live[serial] = weakref.ref(self)

    def __del__(self) -> None:
        self._live.pop(self._serial, None)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`.

        Raises: FDBError 1007 if the snapshot has ended.
        """
        self._reads.append(None)
        try:
            if self._has_ended:
                raise FDBError(1007)
            return layout.get(self.txn, key)
        except lmdb.Error:
            raise FDBError(1007) from None
        finally:
            self._reads.pop()
            if self._has_ended:
                self._abort_unread()

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[layout.KeyAndValue]:
        self._reads.append(None)
        try:
            if self._has_ended:
                raise FDBError(1007)
            yield from layout.scan(self.txn, begin, end, reverse)
        except lmdb.Error:
            raise FDBError(1007) from None
        finally:
            self._reads.pop()
            if self._has_ended:
                self._abort_unread()

    def end(self) -> None:
        """End the LMDB transaction, so that LMDB may reuse the pages of this version.

        The last of the reads under way in other threads ends it: LMDB reads without the lock of the
        interpreter. If a read loses its transaction, a segmentation fault kills the process.
        """
        self._has_ended = True
        self._abort_unread()

    def _abort_unread(self) -> None:
        """Abort the LMDB transaction, unless a read is under way. A read that begins later sees the end."""
        if self._reads:
            return
        try:
            self._to_abort.pop()
        except IndexError:  # another thread was first
            return
        self.txn.abort()
