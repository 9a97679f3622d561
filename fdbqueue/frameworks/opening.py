"""The database of a broker or a backend: opened at its first use in a process, and open until its end.

A program declares its tasks as it is imported, and may fork after that; an import should not wait for a
cluster. The embedded engine goes on in a forked child. The client library of a cluster does not: its calls
would wait for ever.
"""

import os
from typing import Protocol
from weakref import WeakSet

from fdbqueue.database import Database, as_database
from fdbqueue.open import open as open_database
from fdbqueue.open import url_from_environment
from fdbqueue.runtime import RealRuntime
from fdbqueue.seam import AnyDatabase


class Opens(Protocol):
    """A broker: its backends use its database."""

    @property
    def opening(self) -> "Opening": ...


Place = str | AnyDatabase | Opens | None
"""A URL for `fdbqueue.open`, an open database, a broker, or None for the database of the environment."""


class Opening:
    def __init__(self, place: str | AnyDatabase | None) -> None:
        self._place = place
        self._lock = RealRuntime.lock()
        self._opened: Database | None = None
        self._is_cluster = False
        _all.add(self)

    @classmethod
    def of(cls, place: Place) -> "Opening":
        """The opening of a broker, or a new one."""
        shared = getattr(place, "opening", None)
        return shared if isinstance(shared, Opening) else cls(place)  # type: ignore[arg-type]  # no broker

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
