"""The database of a broker or backend, opened at its first use in each process.

A program declares its actors as it is imported, and may fork after that. A client of FoundationDB does not
outlive a fork, and an import should not wait for a cluster. So nothing is opened before it is used.
"""

from typing import Protocol

from fdbqueue.database import Database, as_database
from fdbqueue.open import open as open_database
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
        self._runtime = RealRuntime()
        self._lock = self._runtime.lock()
        self._opened: Database | None = None
        self._process_id = 0

    @classmethod
    def of(cls, place: Place) -> "Opening":
        """The opening of a broker, or a new one."""
        shared = getattr(place, "opening", None)
        return shared if isinstance(shared, Opening) else cls(place)  # type: ignore[arg-type]  # no broker

    def database(self) -> Database:
        """Raises: as fdbqueue.open."""
        if self._place is not None and not isinstance(self._place, str):
            return as_database(self._place)
        with self._lock:
            if self._opened is None or self._process_id != self._runtime.process_id():
                self._opened = open_database(self._place)
                self._process_id = self._runtime.process_id()
            return self._opened

    def close(self) -> None:
        """Close the database that was opened here. The next use opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None and self._process_id == self._runtime.process_id():
                opened.close()
