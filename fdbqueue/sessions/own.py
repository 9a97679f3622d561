"""The process's own session: one per database and root, opened by the first take without a session."""

from fdb.subspace_impl import Subspace

from fdbqueue.database import Database
from fdbqueue.root_keys import RootKeys
from fdbqueue.sessions.keeper import keeper_of
from fdbqueue.sessions.session import Session


class OwnSession:
    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._opening = database.runtime.lock()
        self._session: Session | None = None

    def close(self) -> None:
        """Does nothing: the keeper ends every session."""

    def is_needed(self) -> bool:
        return True

    def get(self) -> Session:
        """The session, opened at first use, and again after it was lost."""
        with self._opening:
            if self._session is None or self._session.lost:
                self._session = Session(self._database, root=Subspace((), self._keys.prefix))
            return self._session

    def id(self) -> bytes:
        """The id of the session; empty before the first use."""
        return b"" if self._session is None else self._session.id


def own_session_of(database: Database, keys: RootKeys) -> OwnSession:
    keeper_of(database, keys)  # first: services are made one at a time
    return database.service(("own session", keys.prefix), lambda owner: OwnSession(owner, keys))
