"""The classes of dirq, by its names, over a database: a program of dirq changes its imports only.

They are faces of element queues, with the arguments of dirq, and no database in a call. A `path` is the name
of a queue in the database of the environment, or in the one that is passed as `db`.
"""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Self

from fdbqueue.core.arguments import checked_int
from fdbqueue.core.database import Database, Handle, as_database
from fdbqueue.core.errors import InvalidArgument, QueueError, QueueLockError, WrongType
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.integrations.common import Opening
from fdbqueue.queues.elements.queue import ElementQueue, NullQueue, SimpleElementQueue
from fdbqueue.queues.elements.queue import QueueSet as ElementQueueSet
from fdbqueue.queues.elements.store import GRANULARITY_S

__all__ = ["Queue", "QueueError", "QueueLockError", "QueueNull", "QueueSet", "QueueSimple"]

_opening = Opening(None)


class _Face(Handle):
    """An element queue and its database. Each method of dirq is that of `elements`, given the database."""

    __slots__ = ("database", "elements", "path")

    def __init__(self, path: str, elements: Any, database: Database | None) -> None:
        self.path = path
        self.elements = elements
        """The element queue behind it, for calls in your transaction: `q.elements.add(tr, data)`."""
        self.database = database

    def _shown(self) -> dict[str, Any]:
        return {"path": self.path} | ({} if self.database is None else self.database._shown())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.elements, name)
        return partial(found, self.database) if callable(found) else found

    def __iter__(self) -> Iterator[str]:
        names: Iterator[str] = self.elements.names(self.database)
        return names

    def copy(self) -> Self:
        """An independent object on the same queue, without a pass."""
        return self._over(self.elements.copy())

    def _over(self, elements: Any) -> Self:
        face = object.__new__(type(self))
        _Face.__init__(face, self.path, elements, self.database)
        return face


class Queue(_Face):
    """dirq's Queue: elements of several pieces, with a schema. `umask` has no effect: there are no files."""

    __slots__ = ()

    def __init__(
        self,
        path: str | bytes,
        umask: int | None = None,
        rndhex: int | None = None,
        maxelts: int = 16_000,
        schema: Mapping[str, str] | None = None,
        *,
        db: AnyDatabase | None = None,
    ) -> None:
        """Raises: as ElementQueue.named; WrongType, a TypeError, for an argument of another type."""
        name, database = _opened(path, umask, db)
        elements = ElementQueue.named(database, name, schema, maxelts=maxelts, rndhex=rndhex)
        super().__init__(name, elements, database)


class QueueSimple(_Face):
    """dirq's QueueSimple: an element is bytes. `umask` has no effect: there are no files."""

    __slots__ = ()

    def __init__(
        self,
        path: str | bytes,
        umask: int | None = None,
        rndhex: int | None = None,
        granularity: int = GRANULARITY_S,
        *,
        db: AnyDatabase | None = None,
    ) -> None:
        """Raises: as SimpleElementQueue.named; WrongType, a TypeError, for an argument of another type."""
        name, database = _opened(path, umask, db)
        elements = SimpleElementQueue.named(database, name, rndhex=rndhex, granularity=granularity)
        super().__init__(name, elements, database)


class QueueNull(_Face):
    """dirq's QueueNull: takes everything, has nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        null = NullQueue()
        super().__init__(null.path, null, None)


class QueueSet(Handle):
    """dirq's QueueSet: several queues of one database, browsed as one in order of time."""

    __slots__ = ("_faces", "_set")

    def __init__(self, *queues: Any) -> None:
        """Raises: WrongType, a TypeError; QueueInSet, a QueueError; InvalidArgument for several databases."""
        self._faces: dict[str, _Face] = {}
        self._set = ElementQueueSet()
        self.add(*queues)

    def add(self, *queues: Any) -> None:
        """Add copies of more queues; a new pass begins. Raises: as the constructor."""
        given = [one for some in queues for one in (some if isinstance(some, list | tuple) else [some])]
        faces = [one for one in given if isinstance(one, _Face)]
        known = [*self._faces.values(), *faces]
        if len({id(face.database) for face in known if face.database is not None}) > 1:
            raise InvalidArgument(name="queues", wanted="queues of one database", got=queues)
        self._set.add(*map(_elements_of, given))
        self._faces |= {face.id: face for face in faces}

    def _shown(self) -> dict[str, Any]:
        return self._set._shown()

    def remove(self, queue: Any) -> None:
        """Take a queue out; no effect if it is not in. Raises: WrongType."""
        self._set.remove(_elements_of(queue))

    def count(self) -> int:
        return self._set.count(self._database)

    def first(self) -> tuple[Any, Any]:
        """Start a pass: the first element of all queues, with its queue; (None, None) if there is none."""
        return self._pair(self._set.first(self._database))

    def next(self) -> tuple[Any, Any]:
        """The next element of the pass; (None, None) at its end, or if there is no pass."""
        return self._pair(self._set.next(self._database))

    def names(self) -> Iterator[tuple[Any, Any]]:
        return map(self._pair, self._set.names(self._database))

    __iter__ = names

    @property
    def _database(self) -> Any:
        return next((face.database for face in self._faces.values() if face.database is not None), None)

    def _pair(self, found: tuple[Any, Any]) -> tuple[Any, Any]:
        elements, name = found
        return (None, None) if elements is None else (self._faces[elements.id]._over(elements), name)


def _opened(path: Any, umask: Any, db: AnyDatabase | None) -> tuple[str, Database]:
    """The name of a queue, and its database. Raises: WrongType; as fdbqueue.open."""
    if not isinstance(path, str | bytes):
        raise WrongType(name="path", wanted="a str or bytes", got=path)
    if umask is not None:
        checked_int("umask", umask)
    return os.fsdecode(path), _opening.database() if db is None else as_database(db)


def _elements_of(queue: Any) -> Any:
    """The element queue behind a face; another object as it is, which a set refuses."""
    return queue.elements if isinstance(queue, _Face) else queue
