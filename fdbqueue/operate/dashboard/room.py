"""Room: the database of a dashboard, each of its calls in a thread and with a bound.

A page is one transaction, so all its figures have one version. A look gives up after limits.LOOK_TIMEOUT_S,
as does each transaction of an action.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DatabaseClosed, StorageReplaced
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.visible import text_of

T = TypeVar("T")


class DatabaseSilent(Exception):
    """The database has not answered in time, is closed or was replaced. Its text is the reason."""


class Room:
    """A database and a root, for the pages and actions of one dashboard."""

    def __init__(self, database: Database, root: Any = DEFAULT_ROOT) -> None:
        self.runtime = database.runtime
        self.root = root
        self.database = database.service("dashboard", _BoundedDatabase).database
        self.troubles = database.troubles
        self._threads = anyio.CapacityLimiter(limits.DASHBOARD_THREADS)

    async def look(self, body: Callable[[Transaction], T]) -> T:
        """Run `body` in one transaction that only reads. Raises DatabaseSilent."""
        return await self.call(partial(run, self.database, body, timeout_s=limits.LOOK_TIMEOUT_S))

    async def call(self, action: Callable[[], T]) -> T:
        """Run `action` in a thread. Raises DatabaseSilent."""
        with anyio.move_on_after(limits.LOOK_TIMEOUT_S) as waiting:
            await self._threads.acquire()
        if waiting.cancelled_caught:
            raise DatabaseSilent("other calls wait for it")
        try:
            return await to_thread.run_sync(partial(_silence_told, action), abandon_on_cancel=False)
        finally:
            self._threads.release()


def _silence_told(action: Callable[[], T]) -> T:
    try:
        return action()
    except _silences() as error:
        raise DatabaseSilent(text_of(error)) from error


def _silences() -> tuple[type[Exception], ...]:
    return (DatabaseClosed, StorageReplaced, OSError, *engine_errors())


class _BoundedDatabase:
    """A service: the same database, with transactions that end in time, and closed with it."""

    def __init__(self, database: Database) -> None:
        bounded = _Bounded(database)
        self.database = Database(bounded, database.runtime, session_ttr_s=database.session_ttr_s)

    def close(self) -> None:
        self.database.close()

    def is_needed(self) -> bool:
        return True


class _Bounded:
    """The engine of a database, each transaction with a timeout."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_transaction(self) -> Transaction:
        transaction = self._database.create_transaction()
        transaction.options.set_timeout(round(limits.LOOK_TIMEOUT_S * 1000))
        return transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
