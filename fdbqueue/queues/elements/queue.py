"""ElementQueue: elements of several pieces, with a schema.

queue = ElementQueue(Subspace(("outbox",)), schema={"body": "string", "header": "table?"})
queue.add(db, {"body": "hello", "header": {"to": "ada"}})
for name in queue.names(db):
    if queue.lock(db, name):
        print(queue.get(db, name)["body"])
        queue.remove(db, name)

QueueSet: several element queues browsed as one, in order of time (elements.md 8).
SimpleElementQueue: its elements are one byte string. NullQueue: it takes all (elements.md 7 and 9).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fdbqueue.core.arguments import checked_count, checked_int, checked_path
from fdbqueue.core.database import Handle, is_transaction
from fdbqueue.core.errors import InvalidArgument, QueueInSet, UnreadableElement, WrongType
from fdbqueue.core.registry import PIECES, SIMPLE, Guard, Registry, require_options
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.queues.elements.base import ElementBase, LockToken
from fdbqueue.queues.elements.store import GRANULARITY_S, NAMELESS, Pieces, Schema, by_time


class SimpleElementQueue(ElementBase):
    """An element queue without a schema: an element is bytes.

    A malformed name is not refused: it names no element. Names of one period of `granularity` seconds have
    the same first part.
    """

    __slots__ = ("granularity",)

    _names_are_checked = False

    def __init__(
        self,
        subspace: Any,
        rndhex: int | None = None,
        granularity: int = GRANULARITY_S,
        umask: int | None = None,
        *,
        root: Any = DEFAULT_ROOT,
        guard: Guard | None = None,
    ) -> None:
        """Raises WrongType."""
        checked_int("granularity", granularity)
        super().__init__(subspace, rndhex=rndhex, umask=umask, root=root, guard=guard)
        self.granularity = granularity

    @classmethod
    def named(
        cls,
        target: DatabaseOrTransaction,
        name: str,
        *,
        create: bool = True,
        rndhex: int | None = None,
        granularity: int = GRANULARITY_S,
        root: Any = DEFAULT_ROOT,
    ) -> "SimpleElementQueue":
        """The simple element queue registered as `name`. If there is none and `create`, registers it.

        After a drop of the queue, calls on the object raise QueueDropped.
        Raises: WrongType, QueueNotFound, QueueKindMismatch.
        """
        cls(
            DEFAULT_ROOT, rndhex, granularity
        )  # all that a handle refuses: afterwards the queue would be there
        registry = Registry(root)
        options: Mapping[str, Any] = {}
        found = (
            registry.find_or_create(target, name, SIMPLE, options)
            if create
            else registry.find(target, name, SIMPLE)
        )
        require_options(found, ())
        guard = registry.guard(found)
        return cls(registry.contents(found), rndhex, granularity, root=root, guard=guard)

    def add(self, tr: DatabaseOrTransaction, data: str | bytes) -> str:
        """Add an element, a text as UTF-8, and return its name.

        Given a transaction: if its loop retries after an unknown result (1021), the element may come twice.
        Reads: the new name.
        Conflicts: an add of the same name.
        Raises: WrongType, InvalidArgument, PayloadTooLarge, before anything is written.
        """
        return self._add(tr, {NAMELESS: _bytes_of(data)})

    enqueue = add_ref = add

    def add_path(self, db: AnyDatabase, path: str | Path) -> str:
        """Add the contents of the file, unlink the file after the commit, and return the element's name.

        A crash in between leaves both the file and the element.
        Raises: OSError; InvalidArgument for a transaction, because its caller commits later.
        """
        if is_transaction(db):
            raise InvalidArgument(name="db", wanted="a database, to unlink after the commit", got=db)
        file = checked_path("path", path)
        name = self.add(db, file.read_bytes())
        file.unlink()
        return name

    def get(self, tr: DatabaseOrTransaction, name: str, *, token: LockToken | str | None = None) -> bytes:
        """The data of a locked element; given a `token`, only under that very lock.

        Reads: the lock; the payload by snapshot.
        Conflicts: any change of the lock.
        Raises: ElementNotLocked (also if the element is gone), LockLost; both are OSErrors.
        """
        return _data(name, self._get(tr, name, token))

    get_ref = get

    def get_path(self, tr: DatabaseOrTransaction, name: str) -> NoReturn:
        """Raises NotImplementedError: an element has no file."""
        raise NotImplementedError("unsupported method: get_path()")

    def dequeue(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> bytes:
        """Remove an unlocked element, and return its data.

        Reads: the element, its lock; its payload by snapshot.
        Conflicts: any change of the element or its lock.
        Raises: QueueLockError if the element is locked or gone (CannotLock, an OSError, if not `permissive`).
        """
        take = partial(self._take, tr, name, permissive, self._dequeue, wrote=True)
        return self._setting_aside(tr, name, take)

    def get_element(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> bytes:
        """The data of an unlocked element. Reads, conflicts and raises like `dequeue`."""
        return self._take(tr, name, permissive, self._peek, wrote=False)

    def _dequeue(self, tr: Transaction, name: str) -> bytes:
        data = self._peek(tr, name)
        self.store.discard(tr, name)
        return data

    def _peek(self, tr: Transaction, name: str) -> bytes:
        return _data(name, self.store.peek(tr, name))


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, bytes):
        return bytes(data)
    if not isinstance(data, str):
        raise WrongType(name="data", wanted="a str or bytes", got=data)
    try:
        return str.encode(data)
    except UnicodeEncodeError:
        raise InvalidArgument(name="data", wanted="a text that UTF-8 can encode", got=data) from None


def _data(name: str, pieces: Pieces) -> bytes:
    if NAMELESS not in pieces:
        raise UnreadableElement(reason="not a single byte string", name=name)
    return pieces[NAMELESS]


class NullQueue(Handle):
    """An element queue that is always empty, for tests, or as a /dev/null."""

    __slots__ = ("id", "path")

    def __init__(self) -> None:
        self.id = self.path = f"null:{id(self)}"

    def _shown(self) -> dict[str, Any]:
        return {"path": self.path}

    def copy(self) -> "NullQueue":
        twin = NullQueue()
        twin.id = twin.path = self.id
        return twin

    def add(self, tr: DatabaseOrTransaction, data: Any) -> str:  # noqa: ARG002  # the interface of element queues
        """Discard `data`."""
        return ""

    enqueue = add_ref = add

    def add_path(self, db: AnyDatabase, path: str | Path) -> str:  # noqa: ARG002  # the interface of element queues
        """Unlink the file. Raises OSError, InvalidArgument."""
        checked_path("path", path).unlink()
        return ""

    def count(self, tr: DatabaseOrTransaction) -> int:  # noqa: ARG002  # the interface of element queues
        return 0

    def first(self, tr: DatabaseOrTransaction) -> str:  # noqa: ARG002  # the interface of element queues
        return ""

    next = first

    def names(self, tr: DatabaseOrTransaction) -> Iterator[str]:  # noqa: ARG002  # the interface of element queues
        return iter(())

    def touch(self, tr: DatabaseOrTransaction, name: str) -> None:
        """Nothing to touch."""

    def purge(self, tr: DatabaseOrTransaction, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Nothing to purge."""

    def get(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("get")

    get_ref = get

    def get_path(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("get_path")

    def lock(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("lock")

    def acquire(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("acquire")

    def unlock(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("unlock")

    def remove(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("remove")


def _unsupported(method: str) -> NotImplementedError:
    return NotImplementedError(f"unsupported method: {method}()")


class ElementQueue(ElementBase):
    """Named elements in a subspace; any process may lock, get and remove them (elements.md).

    `schema` maps the name of a piece to its type: "binary", "string" or "table", with "?" if it is optional;
    it belongs to the object, and only `add`, `get`, `dequeue` and `get_element` need one. `rndhex` is the
    last digit of new names, random if not given. A listing reads at most `maxelts` names, and 1,000, at a
    time.
    """

    __slots__ = ("_schema",)

    def __init__(
        self,
        subspace: Any,
        schema: Mapping[str, str] | None = None,
        maxelts: int = 16_000,
        rndhex: int | None = None,
        umask: int | None = None,
        *,
        root: Any = DEFAULT_ROOT,
        guard: Guard | None = None,
    ) -> None:
        """Raises WrongType, InvalidSchema, InvalidArgument for a `maxelts` below 1."""
        checked_count("maxelts", checked_int("maxelts", maxelts))
        super().__init__(subspace, rndhex=rndhex, umask=umask, batch_max=maxelts, root=root, guard=guard)
        self._schema = Schema(schema)

    @classmethod
    def named(
        cls,
        target: DatabaseOrTransaction,
        name: str,
        schema: Mapping[str, str] | None = None,
        *,
        create: bool = True,
        maxelts: int = 16_000,
        rndhex: int | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "ElementQueue":
        """The element queue registered as `name`. If there is none and `create`, registers it with `schema`.

        Without a `schema` the object uses the registered one. After a drop of the queue, calls on the object
        raise QueueDropped.
        Raises: InvalidSchema, WrongType, InvalidArgument, QueueNotFound, QueueKindMismatch.
        """
        cls(
            DEFAULT_ROOT, schema, maxelts, rndhex
        )  # all that a handle refuses: afterwards the queue would be there
        registry = Registry(root)
        options = {"schema": dict(schema or {})}
        found = (
            registry.find_or_create(target, name, PIECES, options)
            if create
            else registry.find(target, name, PIECES)
        )
        require_options(found, ["schema"])
        types = schema or found.options.get("schema")
        guard = registry.guard(found)
        return cls(registry.contents(found), types, maxelts, rndhex, root=root, guard=guard)

    def add(self, tr: DatabaseOrTransaction, data: Mapping[str, Any]) -> str:
        """Add an element, and return its name.

        Given a transaction: if its loop retries after an unknown result (1021), the element may come twice.
        Reads: the new name.
        Conflicts: an add of the same name.
        Raises: UnknownSchema, InvalidElement, PayloadTooLarge, before anything is written.
        """
        return self._add(tr, self._schema.encode(data))

    enqueue = add

    def get(
        self, tr: DatabaseOrTransaction, name: str, *, token: LockToken | str | None = None
    ) -> dict[str, Any]:
        """The pieces of a locked element; given a `token`, only under that very lock.

        Reads: the lock; the payload by snapshot.
        Conflicts: any change of the lock.
        Raises: UnknownSchema, InvalidElementName, ElementNotLocked (also if the element is gone), LockLost,
            UnreadableElement.
        """
        self._schema.require()
        return self._schema.decode(name, self._get(tr, name, token))

    def dequeue(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> dict[str, Any]:
        """Remove an unlocked element, and return its pieces.

        Reads: the element, its lock; its payload by snapshot.
        Conflicts: any change of the element or its lock.
        Raises: QueueLockError if the element is locked or gone (CannotLock, an OSError, if not `permissive`),
            UnknownSchema, InvalidElementName, UnreadableElement.
        """
        self._schema.require()
        take = partial(self._take, tr, name, permissive, self._dequeue, wrote=True)
        return self._setting_aside(tr, name, take)

    def get_element(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> dict[str, Any]:
        """The pieces of an unlocked element. Reads, conflicts and raises like `dequeue`."""
        self._schema.require()
        return self._take(tr, name, permissive, self._peek, wrote=False)

    def _dequeue(self, tr: Transaction, name: str) -> dict[str, Any]:
        data = self._peek(tr, name)  # before the first write: an element that cannot be read stays
        self.store.discard(tr, name)
        return data

    def _peek(self, tr: Transaction, name: str) -> dict[str, Any]:
        return self._schema.decode(name, self.store.peek(tr, name))


AnyQueue = ElementBase | NullQueue
Pair = tuple[AnyQueue, str] | tuple[None, None]
_END: Pair = (None, None)


class QueueSet(Handle):
    """`QueueSet(q1, q2)` or `QueueSet([q1, q2])`. It has copies of the queues, with cursors of their own."""

    __slots__ = ("_heads", "_members")

    def __init__(self, *queues: Any) -> None:
        """Raises WrongType unless all are element queues, QueueInSet if one comes twice."""
        self._members: list[AnyQueue] = []
        # The next name of each member, "" at its end. Empty at the begin of a pass, None without a pass.
        self._heads: list[str] | None = None
        self._join(queues)

    def _shown(self) -> dict[str, Any]:
        return {"paths": [member.path for member in self._members]}

    def add(self, *queues: Any) -> None:
        """Add copies of more queues, all or none; a new pass begins. Raises WrongType, QueueInSet."""
        self._join(queues)
        self._rewind()

    def remove(self, queue: AnyQueue) -> None:
        """Take a queue out, also in the middle of a pass; no effect if it is not in. Raises WrongType."""
        self._require_queues([queue])
        for at, member in enumerate(self._members):
            if member.id == queue.id:
                del self._members[at]
                if self._heads:
                    del self._heads[at]
                return

    def count(self, tr: DatabaseOrTransaction) -> int:
        """The number of elements of all queues. Reads one key of each by snapshot."""
        return sum(member.count(tr) for member in self._members)

    def first(self, tr: DatabaseOrTransaction) -> Pair:
        """Start a pass: the first element of all queues, with its queue; (None, None) if there is none.

        Elements are in order of the times in their names. Reads like `first` of each queue.
        """
        self._rewind()
        return self.next(tr)

    def next(self, tr: DatabaseOrTransaction) -> Pair:
        """The next element of the pass; (None, None) at its end, or if there is no pass."""
        if self._heads is None:
            return _END
        heads = self._heads = self._heads or [member.first(tr) for member in self._members]
        waiting = [at for at, name in enumerate(heads) if name]
        if not waiting:
            return _END
        at = min(waiting, key=lambda at: by_time(heads[at]))
        name, heads[at] = heads[at], self._members[at].next(tr)
        return self._members[at], name

    def names(self, tr: DatabaseOrTransaction) -> Iterator[Pair]:
        """Every element: a pass, with the same cursor as `first` and `next`."""
        self._rewind()
        return iter(lambda: self.next(tr), _END)

    def _rewind(self) -> None:
        self._heads = []

    def _join(self, queues: Sequence[Any]) -> None:
        flat = [
            queue for given in queues for queue in (given if isinstance(given, list | tuple) else [given])
        ]
        self._require_queues(flat)
        known = {member.id for member in self._members}
        for queue in flat:
            if queue.id in known:
                raise QueueInSet(path=queue.path)
            known.add(queue.id)
        self._members += [queue.copy() for queue in flat]

    @staticmethod
    def _require_queues(queues: Sequence[Any]) -> None:
        for queue in queues:
            if not isinstance(queue, AnyQueue):
                raise WrongType(name="queue", wanted="an element queue, or a list of them", got=queue)
