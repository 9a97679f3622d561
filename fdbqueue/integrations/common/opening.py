"""The database of a broker or a backend: opened at its first use in a process, and open until its end.

`Within` is the transaction of the program, in which a block of code puts its messages.

A program declares its tasks as it is imported, and may fork after that; an import should not wait for a
cluster. The embedded engine goes on in a forked child. The client library of a cluster does not: its calls
would wait for ever.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from fdbqueue.core.database import Database, as_database
from fdbqueue.core.errors import heals
from fdbqueue.core.open import open as open_database
from fdbqueue.core.open import url_from_environment
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase

Place = str | AnyDatabase | None
"""A URL for `fdbqueue.open`, an open database, or None for the database of the environment."""


class Opening:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = RealRuntime.lock()
        self._opened: Database | None = None
        self._is_cluster = False
        _all.add(self)

    def database(self) -> Database:
        """Raises: ClusterForked in a child of a process that had opened a cluster; as fdbqueue.open."""
        if self._place is not None and not isinstance(self._place, str):
            return as_database(self._place)
        with self._lock:
            if self._opened is None:
                url = url_from_environment() if self._place is None else self._place
                self._opened, self._is_cluster = open_database(url), url.startswith("fdb:")
            return self._opened

    def close(self) -> None:
        """Close the database that was opened here. The next use opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def after_fork(self) -> None:
        """A thread of the parent may hold the lock for ever. To open a cluster again is refused."""
        self._lock = RealRuntime.lock()
        if self._is_cluster:
            self._opened = None


_all: "WeakSet[Opening]" = WeakSet()


def _after_fork_in_child() -> None:
    for opening in list(_all):
        opening.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@contextmanager
def passing_what_does_not_heal() -> Iterator[None]:
    """Around the end of a connection or a session, which such an error has ended already."""
    try:
        yield
    except Exception as error:
        if heals(error):
            raise


class Within:
    """The blocks of one broker, in each thread and each task of asyncio."""

    def __init__(self) -> None:
        self._current: ContextVar[Any] = ContextVar("fdbqueue_transaction", default=None)

    @contextmanager
    def block(self, tr: Any) -> Iterator[None]:
        """Put the messages that this block sends within `tr`: they are there if and only if `tr` commits.
        `tr` is a transaction of the database of the broker. The block may run again, with the whole body of
        `tr`: then the messages of the earlier run are gone, and the new ones have new ids.
        """
        token = self._current.set(tr)
        try:
            yield
        finally:
            self._current.reset(token)

    def current(self) -> Any:
        """The transaction of the block around the caller; None outside."""
        return self._current.get()
