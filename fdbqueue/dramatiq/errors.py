"""Errors of a database, as Dramatiq knows them: its worker tries again after those of a connection."""

from collections.abc import Iterator
from contextlib import contextmanager

from dramatiq.errors import ConnectionClosed

from fdbqueue.database import is_away
from fdbqueue.errors import UnknownSession


@contextmanager
def as_dramatiq() -> Iterator[None]:
    """Raises: ConnectionClosed for a database that is away, and for a session that has ended meanwhile."""
    try:
        yield
    except UnknownSession as error:
        raise ConnectionClosed(error) from error
    except Exception as error:
        if is_away(error):
            raise ConnectionClosed(error) from error
        raise
