"""The database of a broker: opened at its first use on an event loop, and closed with the broker."""

import asyncio
from typing import Protocol, runtime_checkable

from fdbqueue.aio import open as open_database
from fdbqueue.aio.database import Database
from fdbqueue.database import require_answer
from fdbqueue.open import checked_url, require_known

ANSWER_S = 5.0
"""Time that a cluster has to answer a new connection."""


@runtime_checkable
class Connected(Protocol):
    """A broker: its backends use its database."""

    @property
    def connection(self) -> "Connection": ...


Place = str | Database | None
"""A URL for `fdbqueue.open`, an open database, or None for the database of the environment."""


class Connection:
    def __init__(self, place: Place) -> None:
        """Raises: UnknownUrl."""
        self._place = place if isinstance(place, Database) else _checked(place)
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Task[Database]] = {}

    async def database(self) -> Database:
        """The open database of the running loop. Raises: as fdbqueue.open; DatabaseNotFound."""
        if isinstance(self._place, Database):
            return self._place
        loop = asyncio.get_running_loop()
        opening = self._opened.get(loop)
        if opening is None:
            for ended in [other for other in self._opened if other.is_closed()]:
                del self._opened[ended]
            opening = self._opened[loop] = loop.create_task(_open(self._place))
        try:
            return await asyncio.shield(opening)  # it may be that of other callers, too
        finally:
            if opening.done() and (opening.cancelled() or opening.exception()):
                self._opened.pop(loop, None)

    async def close(self) -> None:
        """Close the database that was opened on this loop. The next use opens it again."""
        opening = self._opened.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()


def connection_of(place: Place | Connected) -> tuple[Connection, bool]:
    """The connection of a broker, or a new one; True if it is new, and has to be closed."""
    if isinstance(place, Connected):
        return place.connection, False
    return Connection(place), True


def _checked(url: str | None) -> str | None:
    """The variables of the environment are read when the database is opened. Raises: UnknownUrl."""
    if url is not None:
        require_known(checked_url(url, False))
    return url


async def _open(url: str | None) -> Database:
    database = await open_database(url)
    try:
        await database.run_blocking(lambda db: require_answer(db, url or "", ANSWER_S))
    except BaseException:
        await database.close()
        raise
    return database
