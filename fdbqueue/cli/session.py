"""Where a command finds its queue: --url, --root, and the queue's name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fdb.subspace_impl import Subspace

from fdbqueue.cli.exits import Trouble
from fdbqueue.database import Database, engine_errors, require_answer
from fdbqueue.elements.queue import KIND as PIECES
from fdbqueue.elements.simple import KIND as SIMPLE
from fdbqueue.errors import DatabaseNotFound, FdbQueueError, QueueNotFound
from fdbqueue.open import open as open_database
from fdbqueue.open import url_from_environment
from fdbqueue.recipe.queue import KIND as PLAIN
from fdbqueue.recipe.queue import Queue
from fdbqueue.registry import Definition, Registry
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.queue import TaskQueue

ELEMENT_KINDS = (PIECES, SIMPLE)
CONNECT_TIMEOUT_S = 10.0
COMPLETION_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Place:
    """Which database, and under which root in it."""

    url: str
    root: Subspace

    @classmethod
    def of(cls, url: str | None, root: str | None) -> "Place":
        return cls(url or url_from_environment(), Subspace(tuple(root.split("/"))) if root else DEFAULT_ROOT)

    @contextmanager
    def database(self, create: bool = True, timeout_s: float = CONNECT_TIMEOUT_S) -> Iterator[Database]:
        """The open database. Without `create`, a directory that is not there is not made: Trouble."""
        scheme, _, path = self.url.partition(":")
        if scheme == "embedded" and not create and not Path(path).is_dir():
            raise Trouble(f"there is no database at {self.url}")
        with open_database(self.url) as database:
            if scheme == "fdb":
                self._require_answer(database, timeout_s)
            yield database

    @contextmanager
    def queue(self, name: str, create: bool = False) -> Iterator[tuple[Database, Queue]]:
        """The plain queue of that name. Raises Trouble if there is none and it is not to be created."""
        with self.database(create) as database:
            try:
                queue = Queue.named(database, name, create=create, root=self.root)
            except QueueNotFound:
                raise self._missing(name, "its first `put` creates it") from None
            yield database, queue

    @contextmanager
    def tasks(self, name: str) -> Iterator[tuple[Database, TaskQueue]]:
        """The task queue of that name. Raises Trouble if there is none, or it has no tasks."""
        with self.database(create=False) as database:
            yield database, self.tasks_in(database, name)

    def tasks_in(self, database: Database, name: str) -> TaskQueue:
        """The task queue of that name. Raises Trouble."""
        found = self.definition(database, name)
        if found.kind == PLAIN:
            raise Trouble(f"{name!r} is a plain queue, of items without leases: put, get, peek, size, clear")
        if found.kind in ELEMENT_KINDS:
            raise Trouble(f"{name!r} is an element queue: `fdbqueue elements --help` tells what can be done")
        if not is_kind(found.kind):
            raise Trouble(f"{name!r} is of kind {found.kind}, which is no kind of task queue here")
        return TaskQueue(database, self.registry, found)

    def definition(self, database: Database, name: str) -> Definition:
        """What is registered as `name`. Raises Trouble."""
        try:
            return self.registry.find(database, name)
        except QueueNotFound:
            raise self._missing(name, f"`fdbqueue create {name}` makes one") from None

    def definitions(self, database: Database) -> Iterator[Definition]:
        """Every queue under the root, in the order of their names; a bounded read at a time."""
        after = ""
        while found := self.registry.names(database, after):
            yield from found
            after = found[-1].name

    @property
    def registry(self) -> Registry:
        return Registry(self.root)

    def _missing(self, name: str, cure: str) -> Trouble:
        return Trouble(f"there is no queue named {name!r} in {self.url}; {cure}")

    def _require_answer(self, database: Database, timeout_s: float) -> None:
        try:
            require_answer(database, self.url, timeout_s)
        except DatabaseNotFound as failure:
            raise Trouble(f"no answer from {self.url} in {timeout_s:g} s ({failure.__cause__})") from None


def names_for_completion(place: Place, prefix: str) -> list[str]:
    """Names of queues that begin with `prefix`; none if the database does not tell: a shell is waiting."""
    try:
        with place.database(create=False, timeout_s=COMPLETION_TIMEOUT_S) as database:
            return [found.name for found in place.definitions(database) if found.name.startswith(prefix)]
    except (Trouble, FdbQueueError, OSError):
        return []
    except engine_errors():
        return []
