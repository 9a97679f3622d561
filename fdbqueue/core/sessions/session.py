"""Session: the name under which a process takes tasks. Its heartbeat is renewed in the background."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    checked_bytes,
    checked_function,
    checked_span,
    checked_text,
    checked_timeout,
)
from fdbqueue.core.binding import bypass_storage_quota, may_be_lost, name_of_process
from fdbqueue.core.database import Database, Handle, as_database, run
from fdbqueue.core.errors import InvalidArgument, UnknownSession
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase, Transaction, Value
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions.ending import end_session, is_overdue, process_of
from fdbqueue.core.sessions.keeper import keeper_of

SESSION_BYTES = 16


class Session(Handle):
    """A name under which this process takes tasks, renewed in the background. A context manager that ends it.

    Openers of one `name` share the session and its tasks, each with a heartbeat of its own. It ends when the
    last of them ends or dies. A restarted worker goes on with its tasks. For `ttr` seconds after the last
    heartbeat its tasks stay taken. If the openers give different ttrs, the largest counts for all.
    """

    __slots__ = (
        "_beat_at",
        "_database",
        "_keeper",
        "_key",
        "_keys",
        "_must_exist",
        "_opened_version",
        "_opener",
        "_runtime",
        "id",
        "lost",
        "name",
        "run_id",
        "ttr",
        "wanted",
    )

    def __init__(
        self,
        db: AnyDatabase,
        name: str | None = None,
        ttr: float | None = None,
        *,
        wanted: Callable[[], bool] | None = None,
        must_exist: bool = False,
        run_id: bytes = b"",
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """With `wanted`, the session ends as soon as this function returns false, and when the program ends.
        It is called every now and then, in any thread. With a `run_id`, the ends of its leases count for that
        run of a fleet.

        Raises: InvalidArgument for a `ttr` that is not above 0 (inf is for ever), or for a `name` that is not
        a text of 1 to limits.QUEUE_NAME_BYTES_MAX bytes; UnknownSession, with `must_exist`, if no session of
        that name is alive; DeferredBody for a `wanted` that is asynchronous or a generator.
        """
        self._database = as_database(db)
        ttr = self._database.session_ttr_s if ttr is None else checked_span("ttr", ttr)
        if name is not None:
            name = checked_text("name", name, limits.QUEUE_NAME_BYTES_MAX)
        if must_exist and name is None:
            raise InvalidArgument(name="name", wanted="the name of the session that must exist", got=name)
        self.name = name
        self.ttr = ttr
        self.wanted = None if wanted is None else checked_function("wanted", wanted)
        self.run_id = checked_bytes("run_id", run_id, limits.RUN_ID_BYTES_MAX)
        self.lost = False
        """True once it is known to have ended. An opener that comes or goes does not end it for others."""
        self._runtime = self._database.runtime
        self._keys = RootKeys(root)
        self._keeper = keeper_of(self._database, self._keys)
        self._must_exist = must_exist
        self._opener = self._runtime.random_bytes(SESSION_BYTES)
        self._beat_at = self._runtime.monotonic() + ttr / limits.BEATS_PER_TTR
        self._keeper.silence.asked(self)
        try:
            with self._database.waiter():  # closing waits until the keeper knows the session, and ends it
                id_, self.ttr = self._open()
                self.id = id_
                self._key = self._keys.session(self.id)
                self._opened_version: int = run(self._database, lambda tr: tr.get_read_version().wait())
                self._keeper.keep(self)
        finally:
            self._keeper.silence.answered(self)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def _shown(self) -> dict[str, Any]:
        return {"id": self.id.hex(), "name": self.name, **self._database._shown()}

    def end(self) -> None:
        """End it. Its tasks are released at once, unless another opener of its name lives. A second call does
        nothing.
        """
        self.end_within(None)

    def end_within(self, timeout_s: float | None) -> None:
        """End it within `timeout_s`, None for no limit.

        Raises: the engine's error if that takes longer: then the session dies after its ttr. InvalidArgument
        for a `timeout_s` that is neither None nor 0 or more seconds.
        """
        if timeout_s is not None:
            checked_timeout(timeout_s, "timeout_s")
        self.lost = True
        self._keeper.forget(self)
        end_session(self._database, self._keys, self.id, self._is_last, died=False, timeout_s=timeout_s)

    def ask(self, tr: Transaction) -> Callable[[], None]:
        """Ask if the session is alive; the reply raises UnknownSession if it is not."""
        found = tr.get(self._key)

        def check() -> None:
            # A transaction that began before the session was opened does not see it. It has read the key
            # by now, so it will conflict with the opening and be retried: no need to refuse it.
            if not found.present() and tr.get_read_version().wait() >= self._opened_version:
                self.lost = True
                raise UnknownSession(session=self.id.hex())

        return check

    def beat_if_due(self) -> None:
        if not self.lost and self._runtime.monotonic() >= self._beat_at:
            self.beat()

    def beat(self) -> None:
        """Renew the heartbeat. Reads: the keys of this session. Writes: the same keys. Conflicts: its end."""
        self._beat_at = self._runtime.monotonic() + self.ttr / limits.BEATS_PER_TTR
        ttr_s = self._keeper.ask_at_once(self._beat)
        if ttr_s is None:
            self.lost = True  # a later answer never undoes this: the session may have been ended meanwhile
        else:
            self.ttr = ttr_s

    def _open(self) -> tuple[bytes, float]:
        # A session with a name outlives the process that opens it first.
        start = name_of_process(self._database.engine) if self.name is None else b""
        fresh = start + self._runtime.random_bytes(SESSION_BYTES - len(start))
        if self.name is not None:
            name_key = self._keys.session_named(self.name)
            known = run(self._database, lambda tr: tr.get(name_key).value)
            if known is not None:  # one that is overdue is dead, even if no process has ended it yet
                end_session(self._database, self._keys, known, is_overdue(self._runtime.now_us()), died=True)
        return run_once(self._database, self._keys, lambda tr: self._register(tr, fresh))

    def _register(self, tr: Transaction, fresh: bytes) -> tuple[bytes, float]:
        known = None if self.name is None else tr.get(self._keys.session_named(self.name)).value
        id_: bytes = known or fresh
        last, found = tr.get(self._keys.heartbeat(id_)), tr.get(self._keys.session(id_)).value
        # The end of a session with a damaged record does not know its name, and leaves it.
        if self._must_exist and (known is None or found is None):
            raise UnknownSession(session=self.name)
        owner, ttr_us, more = self._known(found)
        ttr_us = max(ttr_us, round(self.ttr * 1_000_000))
        bypass_storage_quota(tr)  # also on a full disk: consumers make room
        tr.set(self._keys.session(id_), self._record(owner, ttr_us, more))
        if self.name is not None:
            tr.set(self._keys.session_named(self.name), id_)
        if self.run_id:
            tr.set(self._keys.membership(id_), self.run_id)
        self._renew(tr, id_, last, ttr_us)
        return id_, ttr_us / 1_000_000

    def _record(self, owner: bytes, ttr_us: int, more: Sequence[Any] = ()) -> bytes:
        # The processes of a session with a name are in the rows of its openers.
        process = () if self.name is not None else process_of(self._runtime)
        record: bytes = layer.pack((owner, self.name, ttr_us, *(process or more)))
        return record

    def _known(self, record: bytes | None) -> tuple[bytes, int, Sequence[Any]]:
        """The first opener, the ttr in microseconds, and the parts behind them, which an opener of a newer
        release may have appended; ours, 0 and none if no record can be read.
        """
        unknown = (self._opener, 0, ())
        try:
            owner, _, ttr_us, *more = (self._opener, None, 0) if record is None else layer.unpack(record)
        except (ValueError, IndexError, struct.error):
            return unknown
        sound = isinstance(owner, bytes) and isinstance(ttr_us, int) and ttr_us > 0
        return (owner, ttr_us, more) if sound else unknown

    def _beat(self, tr: Transaction) -> float | None:
        last, record = tr.get(self._keys.heartbeat(self.id)), tr.get(self._key).value
        if record is None:
            return None
        _, ttr_us, _ = self._known(record)
        if not ttr_us:  # a damaged record is made anew
            ttr_us = round(self.ttr * 1_000_000)
            tr.set(self._key, self._record(self._opener, ttr_us))
        elif self.name is None:
            may_be_lost(tr)  # a power cut ends this process, and so its session
        self._renew(tr, self.id, last, ttr_us)
        return ttr_us / 1_000_000

    def _renew(self, tr: Transaction, id_: bytes, last: Value, ttr_us: int) -> None:
        now_us, hold = self._runtime.now_us(), ending.hold_of(tr, ttr_us)
        if self.name is None:
            ending.renew(tr, self._keys, id_, last, now_us + ttr_us, hold)
        else:
            row = ending.row(now_us + ttr_us, process_of(self._runtime), hold)
            ending.beat(tr, self._keys, id_, self._opener, last, row, now_us)

    def _is_last(self, tr: Transaction, _: bytes) -> bool:
        if self.name is None:
            return True
        return not ending.leave(tr, self._keys, self.id, self._opener, self._runtime.now_us())


def ask_alive(tr: Transaction, keys: RootKeys, session: bytes) -> Callable[[], None]:
    """Ask if a session is alive; the reply raises UnknownSession if it is not."""
    found = tr.get(keys.session(session))

    def check() -> None:
        if not found.present():
            raise UnknownSession(session=session.hex())

    return check


class OwnSession:
    """The process's own session: one per database and root, opened by the first take without a session."""

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._opening = database.runtime.lock()
        self.session: Session | None = None
        """The session that was opened last; None before the first use. It may be lost."""

    def close(self) -> None:
        """Does nothing: the keeper ends every session."""

    def is_needed(self) -> bool:
        return True

    def get(self) -> Session:
        """The session, opened at first use, and again after it was lost."""
        with self._opening:
            if self.session is None or self.session.lost:
                self.session = Session(self._database, root=Subspace((), self._keys.prefix))
            return self.session

    def id(self) -> bytes:
        """The id of the session; empty before the first use."""
        return b"" if self.session is None else self.session.id


def own_session_of(database: Database, keys: RootKeys) -> OwnSession:
    key = ("own session", keys.prefix)
    found: OwnSession | None = database.known(key)
    if found is None:
        keeper_of(database, keys)  # first: services are made one at a time
        found = database.service(key, lambda owner: OwnSession(owner, keys))
    return found
