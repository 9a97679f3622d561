"""SimpleElementQueue: its elements are one byte string. NullQueue: it takes all (elements.md 7 and 9)."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fdbqueue.core.arguments import checked_int, checked_path
from fdbqueue.core.database import Handle, is_transaction
from fdbqueue.core.errors import InvalidArgument, UnreadableElement, WrongType
from fdbqueue.core.registry import SIMPLE, Guard, Registry, require_options
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.queues.elements.base import ElementBase, LockToken
from fdbqueue.queues.elements.keys import GRANULARITY_S
from fdbqueue.queues.elements.schema import NAMELESS, Pieces


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
