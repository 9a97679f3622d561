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

    __slots__ = ("__weakref__", "_live", "_serial", "expires_s", "txn", "version")

    def __init__(self, txn: Any, expires_s: float, live: "dict[int, weakref.ref[Snapshot]]", serial: int):
        self.txn = txn
        self.version: int = txn.id()
        self.expires_s = expires_s
        self._live = live
        self._serial = serial
        live[serial] = weakref.ref(self)

    def __del__(self) -> None:
        self._live.pop(self._serial, None)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`.

        Raises: FDBError 1007 if the snapshot has ended.
        """
        try:
            return layout.get(self.txn, key)
        except lmdb.Error:
            raise FDBError(1007) from None

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[layout.KeyAndValue]:
        try:
            yield from layout.scan(self.txn, begin, end, reverse)
        except lmdb.Error:
            raise FDBError(1007) from None

    def end(self) -> None:
        """End the LMDB transaction, so that LMDB may reuse the pages of this version."""
        self.txn.abort()
