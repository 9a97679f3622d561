"""The SQLite stores of persist-queue: one table for each queue, its name made of the class and the name.

SQLite gives no id of an AUTOINCREMENT column twice, so the id of a row is its position.

The queues of FoundationDB's own examples: the layer of 2013, and the recipe of its documentation.

P is the prefix of the queue. `index` is one more than the last one in use. The strings are byte strings in a
queue that Python 2 wrote, and texts in one of Python 3.

    P "conflict" random       item           popped, for a call that has not collected it
    P "item" index, random    item           the layer
    P "pop" index, random     waiting pop    no item
    P index, random           item           the recipe: the value as it is; above, a packed tuple of it

The keys sort in the order of delivery, so the rest of a key behind P is the position of its entry.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import OriginUnusable
from fdbqueue.core.registry import UNPACKING
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.imports.files import Serializer
from fdbqueue.operate.imports.target import Entry, Fate

FILE = "data.db"
_ACKED, _ACK_FAILED = 5, 9
_FATES = {_ACKED: Fate.LEFT_OUT, _ACK_FAILED: Fate.BURIED}


@dataclass(frozen=True)
class Shape:
    kind: str
    """The kind of the queue that takes its entries, "" if none does."""
    columns: str = "_id, data, timestamp"
    column: str = ""
    """The name of the fourth column."""


_SHAPES: Mapping[str, Shape] = {
    # Longer names first: a name begins with its class.
    "ack_unique_queue": Shape("fifo", "_id, data, timestamp, status", "status"),
    "ack_filo_queue": Shape(""),
    "ack_queue": Shape("fifo", "_id, data, timestamp, status", "status"),
    "priority_queue": Shape("fifottl", "_id, data, timestamp, priority", "priority"),
    "unique_queue": Shape("fifo"),
    "filo_queue": Shape(""),
    "queue": Shape("fifo"),
}


class Table:
    def __init__(self, path: Path, table: str | None, serializer: Serializer) -> None:
        """Raises: OriginUnusable without such a file or table, or with several tables and no choice."""
        if not path.is_file():
            raise OriginUnusable(
                path=str(path.parent), reason=f"it has neither {path.name} nor the files of a file queue"
            )
        self._path = path
        self._serializer = serializer
        self._table = self._chosen(
            [name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type = 'table'", ())],
            table,
        )
        self._shape = self._shape_of(self._table)
        self.kind = self._shape.kind
        self.label = f"persist-queue:{path.resolve()}:{self._table}"

    def value(self, entry: Entry) -> Any:
        return self._serializer.loads(entry.raw)

    def entries(self) -> Iterator[Entry]:
        after = 0
        while rows := self._rows(after):
            yield from map(self._entry, rows)
            after = rows[-1][0]

    def _entry(self, row: Sequence[Any]) -> Entry:
        id_, data, timestamp, *rest = row
        fate = _FATES.get(rest[0], Fate.READY) if self._shape.column == "status" else Fate.READY
        pri = rest[0] if self._shape.column == "priority" else None
        raw, damage = (data, None) if isinstance(data, bytes) else (b"", "its data are no bytes")
        return Entry((id_,), f"row {id_}", raw, repr(timestamp), fate, pri, damage)

    def _rows(self, after: int) -> list[tuple[Any, ...]]:
        wanted = f'SELECT {self._shape.columns} FROM "{self._table}" WHERE _id > ? ORDER BY _id LIMIT ?'
        return self._query(wanted, (after, limits.IMPORT_BATCH_ITEMS))

    def _chosen(self, found: list[str], wanted: str | None) -> str:
        queues = [name for name in found if self._class_of(name)]
        if wanted is not None and wanted not in queues:
            raise self._unusable(f"it has no queue in a table {wanted!r}; it has {_listed(queues)}")
        if wanted is None and len(queues) != 1:
            raise self._unusable(f"--table has to name one of its queues: {_listed(queues)}")
        return queues[0] if wanted is None else wanted

    def _class_of(self, table: str) -> str:
        return next((name for name in _SHAPES if table.startswith(f"{name}_")), "")

    def _shape_of(self, table: str) -> Shape:
        shape = _SHAPES[self._class_of(table)]
        if not shape.kind:
            raise self._unusable(f"{table} hands out its newest item first, which no kind of queue does here")
        return shape

    def _query(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            # The file may be locked by a writer for a moment; sqlite3 waits for five seconds.
            with closing(
                sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            ) as connection:
                return connection.execute(statement, arguments).fetchall()
        except sqlite3.Error as reason:
            raise self._unusable(f"SQLite says: {reason}") from reason

    def _unusable(self, reason: str) -> OriginUnusable:
        return OriginUnusable(path=str(self._path), reason=reason)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


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
