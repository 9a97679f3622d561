"""ElementQueue: elements of several pieces, with a schema.

queue = ElementQueue(Subspace(("outbox",)), schema={"body": "string", "header": "table?"})
queue.add(db, {"body": "hello", "header": {"to": "ada"}})
for name in queue.names(db):
    if queue.lock(db, name):
        print(queue.get(db, name)["body"])
        queue.remove(db, name)
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fdbqueue.core.arguments import checked_count, checked_int
from fdbqueue.core.registry.definition import PIECES
from fdbqueue.core.registry.registry import Guard, Registry, require_options
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.queues.elements.base import ElementBase, LockToken
from fdbqueue.queues.elements.schema import Schema


class ElementQueue(ElementBase):
    """Named elements in a subspace; any process may lock, get and remove them (elements.md).

    `schema` maps the name of a piece to its type: "binary", "string" or "table", with "?" if it is optional;
    it belongs to the object, and only `add`, `get`, `dequeue` and `get_element` need one. `rndhex` is the
    last digit of new names, random if not given. A listing reads at most `maxelts` names at a time.
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
