"""The origins of imports: the queues of other systems, and the queue that an import puts into.

That is a task queue or a plain one. Each entry has a position, which grows in the order of delivery and which
the origin never uses again. So the position of the last entry that was put tells a later import where to go
on.

The file store of persist-queue, `persistqueue.Queue`: a directory of numbered chunks, and `info`, which holds
two places, each a chunk, an entry and a byte: the tail, where the next get reads, and the head, where the
next put writes. Bytes behind the head belong to a put that did not finish.

A pickle may name a class or a function, which loading it would import and call. So a class or function in a
pickle is refused, unless the caller trusts the pickles. Numbers, texts, bytes and containers name none.

The SQLite stores of persist-queue: one table for each queue, its name made of the class and the name. SQLite
gives no id of an AUTOINCREMENT column twice, so the id of a row is its position.

The queues of FoundationDB's own examples: the layer of 2013, and the recipe of its documentation. P is the
prefix of the queue. `index` is one more than the last one in use. The strings are byte strings in a queue
that Python 2 wrote, and texts in one of Python 3.

    P "conflict" random       item           popped, for a call that has not collected it
    P "item" index, random    item           the layer
    P "pop" index, random     waiting pop    no item
    P index, random           item           the recipe: the value as it is; above, a packed tuple of it

The keys sort in the order of delivery, so the rest of a key behind P is the position of its entry.
"""

import hashlib
import importlib
import io
import os
import pickle
import pickletools
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import InvalidArgument, OriginUnusable
from fdbqueue.core.registry import UNPACKING
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

Position = tuple[Any, ...]
UNMARKED = b""


class Fate(Enum):
    """The place of an entry after the import."""

    READY = "ready"
    BURIED = "buried"
    """Failed for good in the origin."""
    LEFT_OUT = "left out"
    """Done in the origin."""


@dataclass(frozen=True)
class Entry:
    """One entry as the origin stores it."""

    position: Position
    where: str
    """Its place, for messages."""
    raw: bytes
    identity: str = ""
    """Tells it from an entry with equal bytes at the same position of another origin."""
    fate: Fate = Fate.READY
    pri: Any = None
    """As the origin has it: an int, None, or a value that is no priority."""
    damage: str | None = None
    """The reason why its bytes could not even be found."""

    def mark(self) -> bytes:
        """A digest that recognises the entry; UNMARKED for a damaged one, which may be mended."""
        if self.damage is not None:
            return UNMARKED
        return hashlib.sha256(self.identity.encode() + b"\x00" + self.raw).digest()


class Origin(Protocol):
    label: str
    """The name of its progress."""
    kind: str
    """The kind of the queue that --create makes for it."""

    def entries(self) -> Iterator[Entry]:
        """Read the entries in order of their positions."""

    def value(self, entry: Entry) -> Any:
        """Decode an entry. Raises any Exception for bytes that are not readable."""


@dataclass(frozen=True)
class Prepared:
    entry: Entry
    value: Any = None
    size_bytes: int = 0
    problem: str | None = None

    @property
    def pri(self) -> int | None:
        pri: int | None = self.entry.pri  # Reading skips any other
        return pri


class Target(Protocol):
    batch_items: int

    def takes(self, fate: Fate) -> bool:
        """True if entries of this fate are put."""

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        """Put entries, in order."""


class Tasks:
    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        # A batch needs room for all its tasks at once: a bounded queue may never have it.
        self.batch_items = 1 if queue.options["capacity"] else limits.IMPORT_BATCH_ITEMS

    def takes(self, fate: Fate) -> bool:
        return fate is not Fate.LEFT_OUT

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        """Put tasks, and bury those that have failed for good. Raises as put_many does."""
        for pri, group in groupby(entries, key=attrgetter("pri")):
            alike = list(group)
            options = {} if pri is None else {"pri": pri}
            tasks = self._queue.put_many(tr, [one.value for one in alike], **options)
            for one, task in zip(alike, tasks, strict=True):
                if one.entry.fate is Fate.BURIED:
                    self._queue.bury(tr, task.id)


class Items:
    batch_items = limits.IMPORT_BATCH_ITEMS

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def takes(self, fate: Fate) -> bool:
        """False for failed entries, too: a plain queue has no buried items."""
        return fate is Fate.READY

    def put(self, tr: Transaction, entries: Sequence[Prepared]) -> None:
        self._queue.enqueue_many(tr, [one.value for one in entries])


_LENGTH = struct.Struct("<L")


@dataclass(frozen=True)
class Serializer:
    loads: Callable[[bytes], Any]
    cut: Callable[[BinaryIO], bytes]
    """Read the bytes of the next value of a file. Raises any Exception if they are not whole."""
    loads_cut: Callable[[bytes], Any]
    """Decode those bytes."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        said = f"it needs {module}.{name}, and loading it may run code: --pickle-may-run-code allows that"
        raise pickle.UnpicklingError(said)


def serializer_named(name: str, *, trust_pickle: bool = False) -> Serializer:
    """Return json, msgpack, pickle, or a module with `load` and `loads`. Raises InvalidArgument."""

    def plain_loads(raw: bytes) -> Any:
        return _PlainUnpickler(io.BytesIO(raw)).load()

    known: dict[str, tuple[Callable[[bytes], Any], Callable[[BinaryIO], bytes]]] = {
        "pickle": (pickle.loads if trust_pickle else plain_loads, _cut_pickle),
        "json": (msgspec.json.decode, _cut_line),
        "msgpack": (msgspec.msgpack.decode, _cut_counted),
    }
    # The module of persist-queue for pickles would load any.
    short = name.removeprefix("persistqueue.serializers.")
    if short not in known:
        return _from_module(name)
    loads, cut = known[short]
    return Serializer(loads, cut, loads)


def plain(value: Any) -> Any:
    """`value` as JSON's types and bytes, as `type=` stores it. Raises TypeError, RecursionError."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return plain(msgspec.to_builtins(value, builtin_types=(bytes,)))


def _cut_pickle(stream: BinaryIO) -> bytes:
    # Reads the instructions of the pickle without following them.
    return _between(stream, lambda: sum(1 for _ in pickletools.genops(stream)))


def _cut_line(stream: BinaryIO) -> bytes:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError("its line has no end")
    return line


def _cut_counted(stream: BinaryIO) -> bytes:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError("its length is missing")
    (length,) = _LENGTH.unpack(header)
    raw = stream.read(length)
    if len(raw) < length:
        raise EOFError(f"it has {len(raw)} of {length} bytes")
    return raw


def _from_module(name: str) -> Serializer:
    try:
        module: Any = importlib.import_module(name)
        load, loads = module.load, module.loads
    except Exception as reason:
        wanted = f"json, msgpack, pickle, or a module with load and loads ({type(reason).__name__}: {reason})"
        raise InvalidArgument(name="serializer", wanted=wanted, got=name) from reason
    # In a file, `dump` may have framed the bytes of `dumps`, so `load` decodes them.
    return Serializer(
        loads, lambda stream: _between(stream, lambda: load(stream)), lambda raw: load(io.BytesIO(raw))
    )


def _between(stream: BinaryIO, read: Callable[[], object]) -> bytes:
    begin = stream.tell()
    read()
    end = stream.tell()
    stream.seek(begin)
    return stream.read(end - begin)


INFO = "info"
FIRST_CHUNK = "q00000"


def is_file_queue(folder: Path) -> bool:
    """True for the directory of a file queue, also of one into which nothing was ever put."""
    return any((folder / name).is_file() for name in (INFO, FIRST_CHUNK))


class Files:
    kind = "fifo"

    def __init__(self, folder: Path, serializer: Serializer) -> None:
        """Raises: OriginUnusable if `info` is not readable."""
        self.label = f"persist-queue:{folder.resolve()}"
        self._folder = folder
        self._serializer = serializer
        self._info = self._read_info()

    def value(self, entry: Entry) -> Any:
        return self._serializer.loads_cut(entry.raw)

    def entries(self) -> Iterator[Entry]:
        (first, index, offset), (last, _, _) = self._info["tail"], self._info["head"]
        for number in range(first, last + 1):
            yield from self._chunk(number, index, offset)
            index = offset = 0

    def _chunk(self, number: int, index: int, offset: int) -> Iterator[Entry]:
        """Read the entries of one chunk. If one cannot be cut out, those behind it cannot either."""
        last, count, end = self._info["head"]
        count = count if number == last else self._info["chunksize"]
        path = self._folder / f"q{number:05d}"
        if index >= count:
            return
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            yield from _damaged(path, range(index, count), number, "its file is missing")
            return
        with stream:
            stream.seek(offset)
            inode = os.fstat(stream.fileno()).st_ino
            for at in range(index, count):
                try:
                    raw = self._cut(stream, end if number == last else None)
                except OSError:
                    raise
                except Exception as reason:
                    said = f"{type(reason).__name__}: {reason}"
                    said = f"its bytes cannot be told from those behind it ({said})"
                    yield from _damaged(path, range(at, count), number, said)
                    return
                yield Entry((number, at), _where(path, at), raw, identity=str(inode))

    def _cut(self, stream: BinaryIO, end: int | None) -> bytes:
        raw = self._serializer.cut(stream)
        if end is not None and stream.tell() > end:
            raise EOFError("it ends behind the head")
        return raw

    def _read_info(self) -> Mapping[str, Any]:
        path = self._folder / INFO
        if not path.exists():  # nothing was ever put
            return {"head": (0, 0, 0), "tail": (0, 0, 0), "chunksize": 0}
        try:
            with path.open("rb") as stream:
                found = self._serializer.loads_cut(self._serializer.cut(stream))
            head, tail = (_three(*map(int, found[end])) for end in ("head", "tail"))
            return {"head": head, "tail": tail, "chunksize": int(found["chunksize"])}
        except Exception as reason:
            said = f"{INFO} cannot be read with this --serializer ({type(reason).__name__}: {reason})"
            raise OriginUnusable(path=str(self._folder), reason=said) from reason


def _three(chunk: int, index: int, offset: int) -> tuple[int, int, int]:
    return chunk, index, offset


def _damaged(path: Path, indexes: range, number: int, reason: str) -> Iterator[Entry]:
    for at in indexes:
        yield Entry((number, at), _where(path, at), b"", damage=reason)


def _where(path: Path, at: int) -> str:
    return f"item {at} of {path.name}"


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
            reason = f"it has neither {path.name} nor the files of a file queue"
            raise OriginUnusable(path=str(path.parent), reason=reason)
        self._path = path
        self._serializer = serializer
        names = self._query("SELECT name FROM sqlite_master WHERE type = 'table'", ())
        self._table = self._chosen([name for (name,) in names], table)
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
            url = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(url, uri=True)) as connection:
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
