"""Where a command finds its queue: --url, --root, and the queue's name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fdb.subspace_impl import Subspace

from fdbqueue.cli.exits import Refused, Trouble
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.errors import QueueNotFound
from fdbqueue.open import open as open_database
from fdbqueue.open import url_from_environment
from fdbqueue.queue import Queue
from fdbqueue.root_keys import DEFAULT_ROOT

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Place:
    """Which database, and under which root in it."""

    url: str
    root: Subspace

    @classmethod
    def of(cls, url: str | None, root: str | None) -> "Place":
        return cls(url or url_from_environment(), Subspace(tuple(root.split("/"))) if root else DEFAULT_ROOT)

    @contextmanager
    def database(self, create: bool = True) -> Iterator[Database]:
        """The open database. Without `create`, a directory that is not there is not made: Refused."""
        scheme, _, path = self.url.partition(":")
        if scheme == "embedded" and not create and not Path(path).is_dir():
            raise Refused(f"there is no database at {self.url}")
        with open_database(self.url) as database:
            if scheme == "fdb":
                self._require_answer(database)
            yield database

    @contextmanager
    def queue(self, name: str, create: bool = False) -> Iterator[tuple[Database, Queue]]:
        """The queue of that name. Raises Refused if there is none and it is not to be created."""
        with self.database(create) as database:
            try:
                queue = Queue.named(database, name, create=create, root=self.root)
            except QueueNotFound:
                raise Refused(
                    f"there is no queue named {name!r} in {self.url}; its first `put` creates it"
                ) from None
            yield database, queue

    def _require_answer(self, database: Database) -> None:
        # The binding waits for an unreachable cluster for ever; a command line should not.
        try:
            run(database, lambda tr: tr.get_read_version().wait(), timeout_s=CONNECT_TIMEOUT_S)
        except engine_errors() as failure:
            raise Trouble(f"no answer from {self.url} in {CONNECT_TIMEOUT_S:.0f} s ({failure})") from None
