"""An engine that tells how many round trips in a row a call has waited for."""

from collections.abc import Callable, Iterator
from typing import Any

from fdbqueue import Database, transactional


class Trips:
    """An engine that tells how many of its replies were waited for one after the other.

    Requests issued before a wait for a reply travel together with the request of that reply.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.count = 0
        self.reads = 0

    def create_transaction(self) -> "Tripping":
        return Tripping(self, self._engine.create_transaction())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Tripping:
    """A transaction, or its snapshot."""

    def __init__(self, trips: Trips, tr: Any, asked: dict[bytes, int] | None = None) -> None:
        """`asked`: the round trips before the first read of each key; the client keeps its value."""
        self._trips = self.db = trips
        self._tr = tr
        self._asked: dict[bytes, int] = {} if asked is None else asked

    @property
    def snapshot(self) -> "Tripping":
        return Tripping(self._trips, self._tr.snapshot, self._asked)

    def get(self, key: Any) -> "Reply":
        return Reply(self._trips, self._tr.get(key), self._asked.setdefault(key, self._trips.count))

    def get_range(self, *args: Any, **kwargs: Any) -> "Reply":
        return Reply(self._trips, self._tr.get_range(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)


class Reply:
    def __init__(self, trips: Trips, reply: Any, asked_at: int | None = None) -> None:
        self._trips = trips
        self._reply = reply
        self._asked_at = trips.count if asked_at is None else asked_at
        trips.reads += 1

    def _arrived(self) -> Any:
        self._trips.count = max(self._trips.count, self._asked_at + 1)
        return self._reply

    @property
    def value(self) -> Any:
        return self._arrived().value

    def present(self) -> bool:
        return bool(self._arrived().present())

    def to_list(self) -> list[Any]:
        return list(self._arrived())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._arrived())


def trips_of(engine: Trips, db: Database, body: Callable[[Any], Any]) -> tuple[int, Any]:
    before = engine.count
    result = transactional(body, parameter="tr")(db)
    return engine.count - before, result


def reads_of(engine: Trips, db: Database, body: Callable[[Any], Any]) -> tuple[int, int, Any]:
    """The round trips in a row, the reads, and the answer."""
    before = engine.reads
    waits, answer = trips_of(engine, db, body)
    return waits, engine.reads - before, answer
