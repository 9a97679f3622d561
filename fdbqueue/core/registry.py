"""Named queues: a registry under the root that maps a name to a kind, options, and a short key prefix.

Every call on a named queue reads its definition serialisably, in the round trip of its other reads. So it
notices that the queue was dropped, or dropped and created again, and puts nothing below an orphaned prefix.

The definition is stored with the version of its key layout:

    (id, kind, options, layout, *more)    `more`: parts that a newer release of the same layout has appended

A definition of three parts has the layout of this release. A process that rewrites it keeps all other parts.
The layout says whether this release may touch the contents at all, so it is judged before anything else: in a
newer layout, kind and options may mean something else. A queue over a subspace has its layout beside it:

S[37]    layout    (layout, *more); missing: the layout of this release            each call

This release reads the key and never writes it. A release of a newer layout sets it before it changes any
other key. Each call relies on the key, with its first
reads: it meets that change, or raises LayoutNewer.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_text, writable
from fdbqueue.core.codec import type_name
from fdbqueue.core.database import at_pace, run
from fdbqueue.core.errors import (
    DefinitionUnreadable,
    ImportUnfinished,
    LayoutNewer,
    QueueDropped,
    QueueExists,
    QueueKindMismatch,
    QueueNotFound,
    SubspaceInUse,
)
from fdbqueue.core.once import run_in
from fdbqueue.core.root_keys import DEFAULT_ROOT, EVERY_EPOCH, LAST_ID_BYTES, LAYOUT, RootKeys
from fdbqueue.core.seam import EXACT, DatabaseOrTransaction, Transaction, Value

PLAIN = "queue"
"""The kind of recipe queues."""
FAIR_ITEMS = "fair-items"
"""The kind of named fair queues."""
PIECES = "elements"
"""The kind of element queues with pieces by name."""
SIMPLE = "simple-elements"
"""The kind of element queues with one piece of data."""
UNREADABLE = "unreadable"
"""The kind, in listings, of a queue with a definition that cannot be read."""
UNPACKING = (ValueError, IndexError, struct.error, RecursionError)
"""Errors of the tuple layer for bytes that it has not packed."""
ID_MAX = 2**62


@dataclass(frozen=True)
class Definition:
    """The definition of a named queue. `id` is never used again, not even after a drop."""

    name: str
    id: int
    kind: str
    options: Mapping[str, Any]
    version: tuple[Any, ...] = (LAYOUT,)
    """The layout, and the parts behind it that this release does not know; empty if none is stored."""

    def to_bytes(self) -> bytes:
        options = msgspec.json.encode(self.options, order="sorted")
        value: bytes = layer.pack((self.id, self.kind, options, *self.version))
        return value

    @classmethod
    def from_bytes(cls, name: str, value: bytes) -> "Definition":
        with _damage_told(name):
            id_, kind, options, *version = layer.unpack(value)
            if version:
                _require_known(name, version[0])
            parsed = _mapping(msgspec.json.decode(options))
            return cls(name, _checked_id(id_), _text(kind), parsed, tuple(version))

    @classmethod
    def listed(cls, name: str, value: bytes) -> "Definition":
        """For a listing: an unreadable definition has its name, and its id if that is readable."""
        try:
            return cls.from_bytes(name, value)
        except DefinitionUnreadable:
            return cls(name, _id_in(value), UNREADABLE, {})

    def is_same_queue(self, other: "Definition") -> bool:
        """True if both describe one queue, whatever their versions."""
        return (self.id, self.kind, self.options) == (other.id, other.kind, other.options)


def require_known_layout(name: str, value: bytes) -> None:
    """Judge the stored layout of a queue without a definition: the packed tuple (layout, *more)."""
    with _damage_told(name):
        _require_known(name, layer.unpack(value)[0])


@contextmanager
def _damage_told(name: str) -> Iterator[None]:
    try:
        yield
    except LayoutNewer:
        raise
    except (*UNPACKING, TypeError, msgspec.MsgspecError) as reason:
        raise DefinitionUnreadable(name=name, reason=f"{type_name(reason)}: {reason}") from reason


def _require_known(name: str, layout: Any) -> None:
    if not isinstance(layout, int) or layout < LAYOUT:
        raise TypeError("its layout is not valid")
    if layout > LAYOUT:
        raise LayoutNewer(name=name, layout=layout, known=LAYOUT)


def _checked_id(id_: Any) -> int:
    if not isinstance(id_, int) or not 0 < id_ < ID_MAX:
        raise TypeError("its id is not valid")
    return id_


def _text(kind: Any) -> str:
    if not isinstance(kind, str):
        raise TypeError("its kind is no text")
    return kind


def _mapping(options: Any) -> Mapping[str, Any]:
    if not isinstance(options, dict):
        raise TypeError("its options are none")
    return options


def _id_in(value: bytes) -> int:
    """The id in a definition that cannot be read as a whole; 0 without a readable id."""
    try:
        return _checked_id(layer.unpack(value)[0])
    except (*UNPACKING, TypeError):
        return 0


KEY_BYTES_SHOWN = 60
"""Bytes of a foreign key that an error message shows."""

IsOurs = Callable[[bytes], bool]


def ask_ends(tr: Any, prefix: bytes) -> Callable[[], list[bytes]]:
    """Ask for the first and the last key under `prefix`; the reply is a list, empty without keys."""
    snapshot, stripped = getattr(tr, "snapshot", tr), prefix.rstrip(b"\xff")
    end = stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff"
    first = snapshot.get_range(prefix, end, limit=1)
    last = snapshot.get_range(prefix, end, limit=1, reverse=True)
    return lambda: [bytes(row.key) for rows in (first, last) for row in rows]


def require_ours(prefix: bytes, keys: list[bytes], is_ours: IsOurs) -> None:
    """Raises SubspaceInUse for a key of another shape."""
    for key in keys:
        if not is_ours(key):
            raise SubspaceInUse(prefix=prefix, key=key, shown=key[:KEY_BYTES_SHOWN])


class Occupancy:
    """The subspace of a queue that is not registered; another program may use it.

    Keys of another layer sort before ours, between them or behind them. Keys in between are not seen, but no
    layer writes only there. The reads are snapshot reads: the answer of a call does not depend on our own
    keys.
    """

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
        return (lambda: None) if getattr(tr, "db", None) in self._known else self.ask(tr)

    def _judge(self, tr: Transaction, keys: list[bytes]) -> None:
        keys = [key for key in keys if self._root is None or not key.startswith(self._root)]
        require_ours(self._prefix, keys, self._is_ours)
        database = getattr(tr, "db", None)
        if keys and database is not None:
            self._known.add(database)


T = TypeVar("T")

Guard = Callable[[Transaction], Callable[[], None]]
"""Asks whether the queue still exists; the reply raises QueueDropped if it does not."""
IMPORTING = "importing"
"""The kind, until its last step, of a queue that an import of an export makes (exports/importing.py)."""


class Registry:
    """The named queues under one root. Every method takes a database or a transaction first."""

    def __init__(self, root: Any = DEFAULT_ROOT) -> None:
        """`root`: a prefix, or the keys of one, which cost some twenty keys to build."""
        self.keys = root if isinstance(root, RootKeys) else RootKeys(root)

    def create(
        self, target: DatabaseOrTransaction, name: str, kind: str, options: Mapping[str, Any]
    ) -> Definition:
        """Register a queue.

        Reads: the name's definition, the last id; by snapshot one key at each end of the root and of the
            new queue's prefix.
        Writes: the definition, the last id.
        Conflicts: any other create; calls on a queue of this name.
        Raises: QueueExists, InvalidArgument for the name, NotADatabase, SubspaceInUse.
        """
        return self.write(target, lambda tr: self._create(tr, checked_name(name), kind, options))

    def find_or_create(
        self, target: DatabaseOrTransaction, name: str, kind: str, options: Mapping[str, Any]
    ) -> Definition:
        """The queue of this name, registered now if there is none. Raises as `find` and `create` do."""
        found = self.look(target, name)
        if found is None:
            found = self.write(
                target, lambda tr: self._read(tr, name) or self._create(tr, name, kind, options)
            )
        return of_kind(found, kind)

    def find(self, target: DatabaseOrTransaction, name: str, kind: str | None = None) -> Definition:
        """The definition of the queue `name`.

        Reads: the definition.
        Conflicts: create, drop.
        Raises: QueueNotFound; ImportUnfinished; QueueKindMismatch if it is not of `kind`.
        """
        found = self.look(target, name)
        if found is None:
            raise QueueNotFound(name=name)
        return of_kind(found, found.kind if kind is None else kind)

    def look(self, target: DatabaseOrTransaction, name: str) -> Definition | None:
        """The definition of the queue `name`, or None. Reads it. Conflicts: create, drop."""
        return run(target, lambda tr: self._read(tr, checked_name(name)))

    def drop(self, target: DatabaseOrTransaction, name: str) -> None:
        """Remove the queue with its contents.

        Reads: the definition.
        Writes: clears the definition and the range of the contents.
        Conflicts: every call on the queue.
        Raises: QueueNotFound; LayoutNewer, as a newer layout may have keys elsewhere, too.
        """
        self.write(at_pace(target, "background"), lambda tr: self._drop(tr, checked_name(name)))

    def names(
        self, target: DatabaseOrTransaction, after: str = "", limit: int = limits.QUEUES_LISTED_MAX
    ) -> list[Definition]:
        """At most `limit` definitions after `after`, in order of names.

        Reads by snapshot. Conflicts: none.
        """
        return run(target, lambda tr: self._names(writable(tr), after, min(limit, limits.QUEUES_LISTED_MAX)))

    def ask_stored(
        self, tr: Transaction, begin: bytes, limit: int
    ) -> Callable[[], tuple[dict[str, bytes], bytes | None]]:
        """Ask for at most `limit` definitions from the key `begin` on, as stored, by snapshot.

        The reply has them by name, and the key from which on more may follow, or None.
        """
        stop = self.keys.definitions.stop
        found = tr.snapshot.get_range(begin, stop, limit=limit, streaming_mode=EXACT)

        def stored() -> tuple[dict[str, bytes], bytes | None]:
            rows = [(bytes(row.key), bytes(row.value)) for row in found.to_list()]
            named = {name: value for key, value in rows if (name := self.keys.name_of(key)) is not None}
            return named, rows[-1][0] + b"\x00" if len(rows) == limit else None

        return stored

    def contents(self, definition: Definition) -> Subspace:
        return self.keys.contents(definition.id)

    def guard(self, definition: Definition) -> Guard:
        """The guard that every call on the queue asks: its reply raises QueueDropped if another queue has the
        name, and LayoutNewer if a newer release has changed its layout.
        """
        key, expected = self.keys.definition(definition.name), definition.to_bytes()

        def ask(tr: Transaction) -> Callable[[], None]:
            return partial(_check, definition, tr.get(key), expected)

        return ask

    def write(self, target: DatabaseOrTransaction, body: Callable[[Transaction], T]) -> T:
        """Run `body` in a transaction; given a database, until its effect has happened once."""
        return run_in(target, self.keys, body)

    def _read(self, tr: Transaction, name: str) -> Definition | None:
        value = tr.get(self.keys.definition(name)).value
        return None if value is None else Definition.from_bytes(name, value)

    def _create(self, tr: Transaction, name: str, kind: str, options: Mapping[str, Any]) -> Definition:
        last, ends = tr.get(self.keys.last_id), ask_ends(tr, self.keys.prefix)
        found = self._read(tr, name)
        if found is not None:
            raise exists_already(name, found.kind, found.options, {"kind": kind, **options})
        id_ = self._next_id(last.value, ends)
        prefix = self.keys.contents(id_).key()
        require_ours(prefix, ask_ends(tr, prefix)(), lambda _: False)  # `truncate` would clear foreign keys
        created = Definition(name, id_, kind, options)
        tr.set(self.keys.last_id, id_.to_bytes(LAST_ID_BYTES, "little"))
        tr.set(self.keys.definition(name), created.to_bytes())
        return created

    def _next_id(self, last: bytes | None, ends: Callable[[], list[bytes]]) -> int:
        """Return the id of a new queue, unless it is the first one and other keys are below the root."""
        if last is None:
            require_ours(self.keys.prefix, ends(), self.keys.is_before_the_first_queue)
            return 1
        if len(last) != LAST_ID_BYTES:
            raise SubspaceInUse(prefix=self.keys.prefix, key=self.keys.last_id, shown=self.keys.last_id)
        id_ = int.from_bytes(last, "little") + 1
        if id_ >= ID_MAX:
            raise SubspaceInUse(prefix=self.keys.prefix, key=self.keys.last_id, shown=self.keys.last_id)
        return id_

    def _drop(self, tr: Transaction, name: str) -> None:
        value = tr.get(self.keys.definition(name)).value
        if value is None:
            raise QueueNotFound(name=name)
        found = _removable(name, value)
        tr.clear(self.keys.definition(name))
        if found.id:  # otherwise its contents would be unknown
            beside = (self.keys.imports_into, self.keys.purges_of, self.keys.trash_of)
            for keys in (*self._dropped(tr, found), *(of_queue(found.id) for of_queue in beside)):
                tr.clear_range(keys.start, keys.stop)

    def _dropped(self, tr: Transaction, found: Definition) -> tuple[slice, ...]:
        """The contents that go with a queue. The counts of members of groups stay for their sweeps."""
        contents, counts = self.contents(found).range(), self.keys.members_in(found.id)
        if not tr.get_range(counts.start, counts.stop, limit=1).to_list():
            return (contents,)
        tr.set(self.keys.lost_members(found.id), EVERY_EPOCH)
        return slice(contents.start, counts.start), slice(counts.stop, contents.stop)

    def _names(self, tr: Transaction, after: str, limit: int) -> list[Definition]:
        begin = self.keys.definition(after) + b"\x00" if after else self.keys.definitions.start
        found: list[tuple[str, bytes]] = []
        while True:
            rows = tr.snapshot.get_range(begin, self.keys.definitions.stop, limit=limit).to_list()
            named = [(self.keys.name_of(row.key), row.value) for row in rows]
            found += [(name, value) for name, value in named if name is not None]
            if len(rows) < limit or len(found) >= limit:
                return [Definition.listed(name, value) for name, value in found[:limit]]
            begin = rows[-1].key + b"\x00"


def checked_name(name: str) -> str:
    """Raises InvalidArgument unless `name` can name a queue."""
    return checked_text("name", name, limits.QUEUE_NAME_BYTES_MAX)


def of_kind(definition: Definition, kind: str) -> Definition:
    """Raises: QueueKindMismatch; ImportUnfinished for a queue that is not whole yet."""
    if definition.kind == IMPORTING:
        raise ImportUnfinished(name=definition.name)
    if definition.kind != kind:
        raise QueueKindMismatch(name=definition.name, found=definition.kind, wanted=kind)
    return definition


def require_options(definition: Definition, known: Collection[str]) -> None:
    """Raises DefinitionUnreadable for an option that a newer release has added."""
    unknown = sorted(set(definition.options) - set(known))
    if unknown:
        raise DefinitionUnreadable(name=definition.name, reason=f"unknown options: {', '.join(unknown)}")


def codec_of(definition: Definition) -> str:
    """The codec of a plain queue. Raises DefinitionUnreadable."""
    require_options(definition, ["codec", "partitions"])
    codec = definition.options.get("codec")
    if not isinstance(codec, str):
        raise DefinitionUnreadable(name=definition.name, reason="it names no codec")
    return codec


def exists_already(
    name: str, kind: str, options: Mapping[str, Any], asked: Mapping[str, Any], cure: str = ""
) -> QueueExists:
    """The error for a queue that is there. `asked`: the kind and the options that the caller gave.

    The error tells those in which the two differ, each with its value there and the one that is asked for.
    """
    there = _told_as_given({"kind": kind, **options})
    wanted = _told_as_given(asked) if "partitions" in asked else asked
    differing = {
        option: (there.get(option), value) for option, value in wanted.items() if there.get(option) != value
    }
    compared = _compared(differing) if differing else f"of kind {kind}"
    return QueueExists(
        name=name, kind=kind, options=dict(options), differing=differing, compared=compared, cure=cure
    )


def _told_as_given(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, with the number of partitions, which is the second value of a stored plan."""
    plan = options.get("partitions") or 1
    return {**options, "partitions": plan[1] if isinstance(plan, list | tuple) and len(plan) > 1 else plan}


def _compared(differing: Mapping[str, tuple[Any, Any]]) -> str:
    told = [[f"{option} = {told_option(value)}" for value in values] for option, values in differing.items()]
    there, asked = map(", ".join, zip(*told, strict=True))
    return f"with {there}; asked for was {asked}"


def _removable(name: str, value: bytes) -> Definition:
    """The definition of a queue that is to be dropped, readable or not. Raises: LayoutNewer."""
    try:
        return Definition.from_bytes(name, value)
    except LayoutNewer:
        raise
    except DefinitionUnreadable:
        return Definition.listed(name, value)


def told_option(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{part}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "none" if value is None else str(value)


def _check(definition: Definition, found: Value, expected: bytes) -> None:
    stored = found.value
    if stored == expected:
        return
    if stored is None or not Definition.from_bytes(definition.name, stored).is_same_queue(definition):
        raise QueueDropped(name=definition.name)


LAYOUT_COLUMN = 37
_COLUMN = layer.pack((LAYOUT_COLUMN,))


class SubspaceGuard:
    """The guards of a queue that is not registered: its layout is known, and its keys are its own."""

    def __init__(self, prefix: bytes, is_ours: IsOurs, root: bytes | None = None) -> None:
        """`root` is the prefix of receipts and sessions, which may lie in the subspace."""
        self._name = repr(prefix)
        self._key = key = prefix + _COLUMN
        self._occupancy = Occupancy(prefix, lambda found: found == key or is_ours(found), root)

    def ask(self, tr: Transaction) -> Callable[[], None]:
        """The reply raises LayoutNewer, DefinitionUnreadable, SubspaceInUse.

        Reads: the layout, serialisably; one key at each end of the subspace, by snapshot.
        """
        return self._judged(tr, self._occupancy.ask(tr))

    def ask_until_known(self, tr: Transaction) -> Callable[[], None]:
        """Like `ask`. Once a key of ours was seen in the database of `tr`, only the layout is read."""
        return self._judged(tr, self._occupancy.ask_until_known(tr))

    def _judged(self, tr: Transaction, require_ours: Callable[[], None]) -> Callable[[], None]:
        found = tr.get(self._key)

        def judge() -> None:
            if found.present():
                require_known_layout(self._name, bytes(found.value))
            require_ours()

        return judge
