"""Keys under the root subspace: the only file that builds or parses them.

Root R (`Subspace(("fdbqueue",))` unless told otherwise); values are tuples unless said otherwise.

    R[0, name]            definition     (id, kind, options as JSON)   read by every call on a named queue
    R[1]                  last id        little-endian, grows only     read by create
    R[2, id, ...]         contents       the queue's own subspace
    R[3, process, slot]   receipt        who attempted last, and when  read by a retry after 1021/1039

`id` is never used twice, so a handle to a dropped queue cannot reach the contents of its successor.
"""

from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

DEFAULT_ROOT = Subspace(("fdbqueue",))

DEFINITION, LAST_ID, CONTENTS, RECEIPT = range(4)


class RootKeys:
    def __init__(self, root: Any) -> None:
        self.prefix: bytes = root.key()
        self.last_id: bytes = self._pack(LAST_ID)
        self.definitions: slice = self._range(DEFINITION)
        self.receipts: slice = self._range(RECEIPT)

    def _pack(self, *items: Any) -> bytes:
        key: bytes = layer.pack(items, prefix=self.prefix)
        return key

    def _range(self, *items: Any) -> slice:
        under = self._pack(*items)
        return slice(under + b"\x00", under + b"\xff")

    def definition(self, name: str) -> bytes:
        return self._pack(DEFINITION, name)

    def name_of(self, definition_key: bytes) -> str:
        name: str = layer.unpack(definition_key, prefix_len=len(self.prefix))[1]
        return name

    def contents(self, id_: int) -> Subspace:
        return Subspace((CONTENTS, id_), self.prefix)

    def receipt(self, process: bytes, slot: int) -> bytes:
        return self._pack(RECEIPT, process, slot)
