"""The queues of FoundationDB's own examples: the layer of 2013, and the recipe of its documentation.

P is the prefix of the queue. `index` is one more than the last one in use. The strings are byte strings in a
queue that Python 2 wrote, and texts in one of Python 3.

    P "conflict" random       item           popped, for a call that has not collected it
    P "item" index, random    item           the layer
    P "pop" index, random     waiting pop    no item
    P index, random           item           the recipe: the value as it is; above, a packed tuple of it

The keys sort in the order of delivery, so the rest of a key behind P is the position of its entry.
"""

from collections.abc import Iterator
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import OriginUnusable
from fdbqueue.core.registry.definition import UNPACKING
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.imports.target import Entry

_PACKED, _RAW, _POP = "packed", "raw", "pop"
_COLUMNS = {"conflict": (_PACKED, 1), "item": (_PACKED, 2), "pop": (_POP, 2)}
"""The form of the value of a key, and the number of parts behind the string."""


class FdbLayer:
    kind = "queue"

    def __init__(self, database: Database, prefix: bytes) -> None:
        """Raises: OriginUnusable if no key below the prefix is one of such a queue."""
        self.label = f"fdb-layer:{prefix.hex()}"
        self._database = database
        self._prefix = prefix
        if all(form_of(key) is None for key, _ in self._page(b"")):
            raise OriginUnusable(path=prefix.hex(), reason="no key below this prefix is one of such a queue")

    def value(self, entry: Entry) -> Any:
        """Raises ValueError, and other errors of the tuple layer."""
        return layer.unpack(entry.raw)[0] if form_of(entry.position[0]) == _PACKED else entry.raw

    def entries(self) -> Iterator[Entry]:
        after = b""
        while page := self._page(after):
            for key, value in page:
                if (form := form_of(key)) != _POP:
                    damage = None if form else "its key is none of such a queue"
                    yield Entry((key,), f"key {key.hex()}", value, damage=damage)
            after = page[-1][0]

    def _page(self, after: bytes) -> list[tuple[bytes, bytes]]:
        """Read the next keys, without the prefix, and their values. Conflicts: none."""
        begin, end = self._prefix + after + b"\x00" * bool(after), self._prefix + b"\xff"

        def body(tr: Transaction) -> list[tuple[bytes, bytes]]:
            found = tr.snapshot.get_range(begin, end, limit=limits.IMPORT_BATCH_ITEMS).to_list()
            return [(bytes(row.key)[len(self._prefix) :], bytes(row.value)) for row in found]

        return run(self._database, body)


def form_of(key: bytes) -> str | None:
    """The form of the value of a key, given without its prefix; None for a key of something else."""
    try:
        first, *rest = layer.unpack(key)
    except UNPACKING:
        return None
    if isinstance(first, int):
        return _RAW if len(rest) == 1 else None
    name = first.decode("latin-1") if isinstance(first, bytes) else first
    form, parts = _COLUMNS.get(name, (None, 0)) if isinstance(name, str) else (None, 0)
    return form if len(rest) == parts else None
