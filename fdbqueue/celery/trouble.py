"""Errors of the database as those that kombu and Celery know: they connect again, and go on."""

from collections.abc import Iterator
from contextlib import contextmanager

from kombu.exceptions import OperationalError

from fdbqueue.celery.puts import current
from fdbqueue.database import is_away
from fdbqueue.errors import DatabaseNotFound, StorageInUse, UnknownSession

_LOST = (DatabaseNotFound, StorageInUse, UnknownSession, OSError)


class BrokerLost(OperationalError):
    """The database has not answered, or has ended the session of the connection."""


@contextmanager
def told_to_kombu() -> Iterator[None]:
    """Raises BrokerLost for the error of a database that is away, or cannot be opened now.

    In a transaction of the program, errors pass as they are: its retry loop needs them.
    """
    try:
        yield
    except Exception as error:
        if current() is None and (is_away(error) or isinstance(error, _LOST)):
            raise BrokerLost(str(error)) from error
        raise
