"""Owners: clients with a name. A client that reopens a name gets back at once the items of the client before
it.

    S[14, owner]            claim   16 random bytes
    S[14, owner, session]   member  the claim it belongs to

S is the queue. The first fetch of a client reads the claim. The next opening of the name replaces the
claim, and reads the members. Opening in an owner's name *claims* it. Then the sessions of earlier claims
are ended, and their items are at the front of the queue. A session enrols before it takes anything, in a
transaction that reads the claim. If another client has claimed the name meanwhile, `enrol` raises
OwnerReplaced, and the session takes no item.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import OwnerReplaced
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.ending import end_in
from fdbqueue.tasks.records.keys import OWNERS
from fdbqueue.tasks.shape import Shape

CLAIM_BYTES = 16


class Owner:
    """A name, claimed."""

    def __init__(self, database: Database, shape: Shape, name: str) -> None:
        """Raises: OwnerReplaced if another client claims the name meanwhile."""
        self.name = name
        self._database = database
        self._shape = shape
        self._under: bytes = layer.pack((OWNERS, name), prefix=shape.keys.prefix)
        self._claim = database.runtime.random_bytes(CLAIM_BYTES)
        self._enrolled: list[Session] = []
        calls_of(database, shape).once(self._write_claim)
        self._end_earlier()

    def enrol(self, session: Session) -> None:
        run_once(self._database, self._shape.root, lambda tr: self._enrol(tr, session))
        # Sessions that ended in the background: without this their members would stay for ever.
        over = [former for former in self._enrolled if former.lost]
        self._enrolled.append(session)
        for former in over:
            self._end(former.id)
            self.strike(former)

    def strike(self, session: Session) -> None:
        run(self._database, lambda tr: tr.clear(self._member(session.id)))
        with suppress(ValueError):  # another thread has
            self._enrolled.remove(session)

    def _write_claim(self, change: Change) -> None:
        """Conflicts: a session that enrols in this name."""
        tr = change.tr
        bypass_storage_quota(tr)
        tr.set(self._under, self._claim)

    def _enrol(self, tr: Transaction, session: Session) -> None:
        self._require_mine(tr)  # a read, so another claim conflicts
        bypass_storage_quota(tr)  # also on a full disk: a fetch makes room
        tr.set(self._member(session.id), self._claim)

    def _end_earlier(self) -> None:
        while earlier := run(self._database, self._earlier):
            for session in filter(None, map(self._session_in, earlier)):
                self._end(session)
            run(self._database, lambda tr: self._clear(tr, earlier))

    def _end(self, session: bytes) -> None:
        end_session(self._database, self._shape.root, session, lambda *_: True, died=False)
        end_in(self._database, self._shape, session, died=False)  # for a session that was ended half way

    def _earlier(self, tr: Transaction) -> list[bytes]:
        """The keys of the first members. Reads: these keys, and the claim."""
        self._require_mine(tr)
        found = tr.get_range(self._under + b"\x00", self._under + b"\xff", limit=limits.DEAD_SESSIONS_MAX)
        return [bytes(entry.key) for entry in found]

    def _session_in(self, member: bytes) -> bytes | None:
        """The session of a member's key; None for a damaged key."""
        try:
            session = layer.unpack(member, prefix_len=len(self._under))[0]
        except (ValueError, IndexError, struct.error):
            return None
        return session if isinstance(session, bytes) else None

    def _clear(self, tr: Transaction, members: Sequence[bytes]) -> None:
        for member in members:
            tr.clear(member)

    def _member(self, session: bytes) -> bytes:
        key: bytes = layer.pack((session,), prefix=self._under)
        return key

    def _require_mine(self, tr: Transaction) -> None:
        if tr.get(self._under).value != self._claim:
            raise OwnerReplaced(name=self._shape.name, owner=self.name)


def claim_of(prefix: bytes, key: bytes) -> bytes | None:
    """The claim that a key of an owner belongs to: the key itself, or that of a member; None for another key.

    `prefix` is that of the queue.
    """
    try:
        parts = layer.unpack(key, prefix_len=len(prefix))
    except (ValueError, IndexError, struct.error):
        return None
    if list(map(type, parts)) not in ([int, str], [int, str, bytes]) or parts[0] != OWNERS:
        return None
    claim: bytes = layer.pack(parts[:2], prefix=prefix)
    return claim
