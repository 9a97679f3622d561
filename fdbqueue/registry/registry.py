"""Named queues: a registry under the root that maps a name to a kind, options, and a short key prefix.

Every call on a named queue reads its definition serialisably, in the round trip of its other reads. So it
notices that the queue was dropped, or dropped and created again, and puts nothing below an orphaned prefix.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.arguments import checked_text, writable
from fdbqueue.calls.once import run_once
from fdbqueue.database import as_database, is_transaction, run
from fdbqueue.errors import (
    DefinitionUnreadable,
    ImportUnfinished,
    LayoutNewer,
    QueueDropped,
    QueueExists,
    QueueKindMismatch,
    QueueNotFound,
    SubspaceInUse,
)
from fdbqueue.occupancy import ask_ends, require_ours
from fdbqueue.registry.definition import ID_MAX, Definition
from fdbqueue.root_keys import DEFAULT_ROOT, EVERY_EPOCH, LAST_ID_BYTES, RootKeys
from fdbqueue.seam import EXACT, DatabaseOrTransaction, Transaction, Value

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
        self.write(target, lambda tr: self._drop(tr, checked_name(name)))

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
        """The subspace of the queue's contents."""
        return self.keys.contents(definition.id)

    def guard(self, definition: Definition) -> Guard:
        """The guard that every call on the queue asks: its reply raises QueueDropped if another queue has the
        name, and LayoutNewer if an upgrade has changed its layout to one that is unknown here.
        """
        key, expected = self.keys.definition(definition.name), definition.to_bytes()

        def ask(tr: Transaction) -> Callable[[], None]:
            return partial(_check, definition, tr.get(key), expected)

        return ask

    def write(self, target: DatabaseOrTransaction, body: Callable[[Transaction], T]) -> T:
        """Run `body` in a transaction; given a database, until its effect has happened once."""
        if is_transaction(target):
            return body(writable(target))
        return run_once(as_database(target), self.keys, body)

    def _read(self, tr: Transaction, name: str) -> Definition | None:
        value = tr.get(self.keys.definition(name)).value
        return None if value is None else Definition.from_bytes(name, value)

    def _create(self, tr: Transaction, name: str, kind: str, options: Mapping[str, Any]) -> Definition:
        last, ends = tr.get(self.keys.last_id), ask_ends(tr, self.keys.prefix)
        found = self._read(tr, name)
        if found is not None:
            raise exists_already(name, found.kind, found.options, kind, options)
        id_ = self._next_id(last.value, ends)
        self._require_free(tr, id_)
        created = Definition(name, id_, kind, options)
        tr.set(self.keys.last_id, id_.to_bytes(LAST_ID_BYTES, "little"))
        tr.set(self.keys.definition(name), created.to_bytes())
        return created

    def _next_id(self, last: bytes | None, ends: Callable[[], list[bytes]]) -> int:
        """Raises SubspaceInUse for the first queue of a root that holds keys of something else."""
        if last is None:
            require_ours(self.keys.prefix, ends(), self.keys.is_before_the_first_queue)
            return 1
        if len(last) != LAST_ID_BYTES:
            raise SubspaceInUse(prefix=self.keys.prefix, key=self.keys.last_id, shown=self.keys.last_id)
        id_ = int.from_bytes(last, "little") + 1
        if id_ >= ID_MAX:
            raise SubspaceInUse(prefix=self.keys.prefix, key=self.keys.last_id, shown=self.keys.last_id)
        return id_

    def _require_free(self, tr: Transaction, id_: int) -> None:
        """Raises SubspaceInUse for a new queue's prefix that is not empty: `truncate` would clear it."""
        prefix = self.keys.contents(id_).key()
        require_ours(prefix, ask_ends(tr, prefix)(), lambda _: False)

    def _drop(self, tr: Transaction, name: str) -> None:
        value = tr.get(self.keys.definition(name)).value
        if value is None:
            raise QueueNotFound(name=name)
        found = _removable(name, value)
        tr.clear(self.keys.definition(name))
        if found.id:  # otherwise its contents would be unknown
            tr.clear(self.keys.upgrade(found.id))
            for keys in (*self._dropped(tr, found), self.keys.imports_into(found.id)):
                tr.clear_range(keys.start, keys.stop)

    def _dropped(self, tr: Transaction, found: Definition) -> tuple[slice, ...]:
        """The contents that go with a queue. The counts of members of groups stay for the sweeps of groups.

        Reads: the first of these counts, serialisably.
        """
        contents, counts = self.contents(found).range(), self.keys.members_in(found.id)
        if not tr.get_range(counts.start, counts.stop, limit=1).to_list():
            return (contents,)
        tr.set(self.keys.lost_members(found.id), EVERY_EPOCH)
        return slice(contents.start, counts.start), slice(counts.stop, contents.stop)

    def _rows(self, tr: Transaction, begin: bytes, limit: int) -> list[tuple[str, bytes]]:
        """Names and values of the next definitions; a key that ends in no name is passed over."""
        rows: list[tuple[str, bytes]] = []
        while True:
            found = tr.snapshot.get_range(begin, self.keys.definitions.stop, limit=limit).to_list()
            named = [(self.keys.name_of(entry.key), entry.value) for entry in found]
            rows += [(name, value) for name, value in named if name is not None]
            if len(found) < limit or len(rows) >= limit:
                return rows[:limit]
            begin = found[-1].key + b"\x00"

    def _names(self, tr: Transaction, after: str, limit: int) -> list[Definition]:
        begin = self.keys.definition(after) + b"\x00" if after else self.keys.definitions.start
        found = self._rows(tr, begin, limit)
        return [Definition.listed(name, value) for name, value in found]


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
    name: str, kind: str, options: Mapping[str, Any], asked_kind: str, asked: Mapping[str, Any]
) -> QueueExists:
    """The error for a `create` of an existing name, with the options in which the two definitions differ."""
    there, wanted = (
        {"kind": one, **given, "partitions": _partitions_in(given)}
        for one, given in ((kind, options), (asked_kind, asked))
    )
    compared = _compared(there, wanted)
    return QueueExists(name=name, kind=kind, options=dict(options), asked=dict(asked), compared=compared)


def _partitions_in(options: Mapping[str, Any]) -> Any:
    """The number of partitions, from itself or from a plan, as whose second value it is stored."""
    found = options.get("partitions") or 1
    return found[1] if isinstance(found, list | tuple) and len(found) > 1 else found


def _compared(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    # Options that only one of them can have follow from the kind.
    differing = [option for option in asked if option in there and there[option] != asked[option]]
    if not differing:
        return ", just as it was asked for"
    told, wanted = (
        ", ".join(f"{option} = {_told(options[option])}" for option in differing)
        for options in (there, asked)
    )
    return f", with {told}; asked for was {wanted}"


def _removable(name: str, value: bytes) -> Definition:
    """The definition of a queue that is to be dropped, readable or not. Raises: LayoutNewer."""
    try:
        return Definition.from_bytes(name, value)
    except LayoutNewer:
        raise
    except DefinitionUnreadable:
        return Definition.listed(name, value)


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{part}" for key, part in value.items())
    return "none" if value is None else str(value)


def _check(definition: Definition, found: Value, expected: bytes) -> None:
    stored = found.value
    if stored == expected:
        return
    if stored is None or not Definition.from_bytes(definition.name, stored).is_same_queue(definition):
        raise QueueDropped(name=definition.name)
