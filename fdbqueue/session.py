"""Sessions: in whose name tasks are taken. One that ends, ends its leases; one that dies, after its grace.

A session is a record under the root, with a heartbeat beside it that its process renews; whoever sweeps and
finds the heartbeat's time over takes the session for dead. It ends in steps, each bounded, and each safe to
repeat: its record goes first, so that nothing can be taken for it any more; then its tasks are released,
queue by queue; then its heartbeat's entry goes, by which a sweeper would have found what was left to do.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.database import Database, as_database, engine_errors, is_away, run
from fdbqueue.errors import FdbQueueError, InvalidArgument, QueueNotFound, UnknownSession
from fdbqueue.receipts import run_once
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.runtime import Runtime, Thread
from fdbqueue.seam import Transaction
from fdbqueue.silence import Silence

SESSION_BYTES = 16

T = TypeVar("T")

_log = logging.getLogger("fdbqueue")


class Session:
    """A name under which this process takes tasks, kept alive in the background.

    With a `name`, the session of that name is taken over if there is one, with all it holds: a worker that
    is started again goes on where it was. `ttr` is the grace in seconds: so long after its last heartbeat
    its tasks stay taken. A context manager that ends it.
    """

    def __init__(
        self,
        db: Any,
        name: str | None = None,
        ttr: float = limits.SESSION_TTR_S,
        *,
        wanted: Callable[[], bool] | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """With `wanted`, which is asked every now and then in whatever thread, it is ended as soon as that
        says no, and when the program ends. Raises InvalidArgument for a `ttr` that is no positive number of
        seconds, or a `name` that is empty.
        """
        if not isinstance(ttr, int | float) or not 0 < ttr < limits.SPAN_MAX_S:
            raise InvalidArgument(name="ttr", wanted="a positive number of seconds", got=ttr)
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidArgument(name="name", wanted="a text that is not empty", got=name)
        self.name = name
        self.ttr = ttr
        self.wanted = wanted
        self.lost = False
        """Whether it has been found to be over, or in other hands."""
        self._database = as_database(db)
        self._runtime = self._database.runtime
        self._keys = RootKeys(root)
        self._keeper = keeper_of(self._database, self._keys)
        self._owner = self._runtime.random_bytes(SESSION_BYTES)
        self._beat_at = self._runtime.monotonic() + ttr / limits.BEATS_PER_TTR
        self._keeper.silence.asked(self)
        try:
            self.id = self._open()
            self._opened_version: int = run(self._database, lambda tr: tr.get_read_version().wait())
        finally:
            self._keeper.silence.answered(self)
        self._keeper.keep(self)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"Session({self.id.hex()}{'' if self.name is None else f', name={self.name!r}'})"

    def end(self) -> None:
        """End it: what it holds is released at once. Not if somebody has taken it over; twice is once."""
        self.end_within(None)

    def end_within(self, timeout_s: float | None) -> None:
        """End it, unless the database does not answer in time; then it dies after its grace."""
        self.lost = True
        self._keeper.forget(self)
        end_session(self._database, self._keys, self.id, self._is_mine, died=False, timeout_s=timeout_s)

    def ask(self, tr: Transaction) -> Callable[[], None]:
        """Ask whether the session is alive; the reply raises UnknownSession if it is not."""
        found = tr.get(self._keys.session(self.id))

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
        """Renew the heartbeat. Reads and writes keys of this session only; conflicts with its end."""
        self._beat_at = self._runtime.monotonic() + self.ttr / limits.BEATS_PER_TTR
        if not self._keeper.ask(self._beat):
            self.lost = True  # and never the other way: it may have been ended meanwhile

    def _open(self) -> bytes:
        fresh = self._runtime.random_bytes(SESSION_BYTES)
        if self.name is not None:
            self._end_if_overdue(self.name)
        return run_once(self._database, self._keys, lambda tr: self._register(tr, fresh))

    def _end_if_overdue(self, name: str) -> None:
        """A session whose grace is over is dead, whether or not anybody has swept."""
        known = run(self._database, lambda tr: tr.get(self._keys.session_named(name)).value)
        if known is not None:
            end_session(self._database, self._keys, known, _is_overdue(_now_us(self._database)), died=True)

    def _register(self, tr: Transaction, fresh: bytes) -> bytes:
        known = None if self.name is None else tr.get(self._keys.session_named(self.name)).value
        id_: bytes = known or fresh
        tr.set(self._keys.session(id_), layer.pack((self._owner, self.name, round(self.ttr * 1_000_000))))
        if self.name is not None:
            tr.set(self._keys.session_named(self.name), id_)
        self._renew(tr, id_, tr.get(self._keys.heartbeat(id_)).value)
        return id_

    def _beat(self, tr: Transaction) -> bool:
        found, last = tr.get(self._keys.session(self.id)), tr.get(self._keys.heartbeat(self.id))
        if not found.present() or not self._is_mine(found.value, b""):
            return False
        self._renew(tr, self.id, last.value)
        return True

    def _renew(self, tr: Transaction, id_: bytes, last: bytes | None) -> None:
        deadline_us = _now_us(self._database) + round(self.ttr * 1_000_000)
        if last is not None:
            tr.clear(self._keys.beat_due(_deadline_of(last), id_))
        tr.set(self._keys.heartbeat(id_), layer.pack((deadline_us,)))
        tr.set(self._keys.beat_due(deadline_us, id_), b"")

    def _is_mine(self, record: bytes, _: bytes) -> bool:
        return bool(layer.unpack(record)[0] == self._owner)


def ask_alive(tr: Transaction, keys: RootKeys, session: bytes) -> Callable[[], None]:
    """Ask whether a session is alive; the reply raises UnknownSession if it is not."""
    found = tr.get(keys.session(session))

    def check() -> None:
        if not found.present():
            raise UnknownSession(session=session.hex())

    return check


May = Callable[[bytes, bytes], bool]
"""Whether a session with this record and this heartbeat may be ended."""


def _is_overdue(now_us: int) -> May:
    return lambda _, heartbeat: _deadline_of(heartbeat) <= now_us


def end_session(
    database: Database,
    keys: RootKeys,
    session: bytes,
    may: May,
    died: bool,
    timeout_s: float | None = None,
) -> None:
    """End `session` if `may` says so of it; does nothing otherwise, or if it is over. If it `died`, what it
    was at has failed.
    """
    now_us = _now_us(database)
    begin = partial(_begin_end, keys=keys, session=session, may=may, now_us=now_us)
    if run(database, begin, timeout_s=timeout_s):
        _finish_end(database, keys, session, now_us, died)


def _begin_end(tr: Transaction, keys: RootKeys, session: bytes, may: May, now_us: int) -> bool:
    """From now on nothing can be taken for it, and sweepers know that there is something left to do."""
    found, heartbeat = tr.get(keys.session(session)), tr.get(keys.heartbeat(session))
    begun = tr.get(keys.beat_due(now_us, session))
    if not found.present():  # but an earlier attempt with an unknown result may have been this one
        return bool(begun.present())
    if not may(found.value, heartbeat.value):
        return False
    name = layer.unpack(found.value)[1]
    if name is not None:
        tr.clear(keys.session_named(name))
    tr.clear(keys.session(session))
    tr.clear(keys.heartbeat(session))
    tr.clear(keys.presence(session))
    tr.clear(keys.beat_due(_deadline_of(heartbeat.value), session))
    tr.set(keys.beat_due(now_us, session), b"")
    return True


def _finish_end(database: Database, keys: RootKeys, session: bytes, deadline_us: int, died: bool) -> None:
    # Tasks are held in the name of sessions, so their module knows this one.
    from fdbqueue.tasks.ending import end_in_all_queues

    if end_in_all_queues(database, keys, session, died):
        run(database, lambda tr: tr.clear(keys.beat_due(deadline_us, session)))
    else:
        again_us = _now_us(database) + round(limits.SESSION_TTR_S * 1_000_000)
        run(database, lambda tr: _leave_to_others(tr, keys, session, deadline_us, again_us))


def _leave_to_others(
    tr: Transaction, keys: RootKeys, session: bytes, deadline_us: int, again_us: int
) -> None:
    """Somebody may know the kinds of queue that we do not: later, so that the dead behind it get their turn.

    Reads and moves its entry; conflicts with whoever does so, too.
    """
    entry = tr.get(keys.beat_due(deadline_us, session))
    if entry.present():
        tr.clear(keys.beat_due(deadline_us, session))
        tr.set(keys.beat_due(again_us, session), b"")


def end_the_dead(database: Database, keys: RootKeys) -> None:
    """End sessions whose grace is over, a few; go on with those that somebody has begun to end."""
    now_us = _now_us(database)
    overdue = run(database, lambda tr: _overdue(tr, keys, now_us), timeout_s=limits.CLOSE_TIMEOUT_S)
    for deadline_us, session, begun in overdue:
        if begun:
            _finish_end(database, keys, session, deadline_us, died=True)
        else:
            end_session(database, keys, session, _is_overdue(now_us), died=True)


def _overdue(tr: Transaction, keys: RootKeys, now_us: int) -> list[tuple[int, bytes, bool]]:
    beats = keys.beats_due
    first = tr.snapshot.get_range(beats.start, beats.stop, limit=limits.DEAD_SESSIONS_MAX)
    found = [keys.beat_of(entry.key) for entry in first]
    asked = [
        (due, session, tr.snapshot.get(keys.session(session))) for due, session in found if due <= now_us
    ]
    return [(due, session, not record.present()) for due, session, record in asked]


class Tidied(Protocol):
    """A queue that the keeper looks after: something to tidy, a batch at a time, when it is due."""

    def guard(self, tr: Transaction) -> Callable[[], None]: ...
    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]: ...
    def tidy(self, tr: Transaction) -> bool: ...


class Keeper:
    """What one process does in the background, in one thread: heartbeats of its sessions, and sweeping."""

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._keys = keys
        self._lock = database.runtime.lock()
        self._opening = database.runtime.lock()
        self._stop = database.runtime.event()
        self._sessions: list[Session] = []
        self._own: Session | None = None
        self._queues: list[Tidied] = []
        self._ending = database.runtime.lock()
        self._process_id = database.runtime.process_id()
        self._forget_exit: Callable[[], None] | None = None
        self._thread: Thread | None = None
        self._sweep_at = float("-inf")
        self.silence = Silence(database.runtime)
        """When the database has left questions of this process unanswered."""

    def close(self) -> None:
        """End the sessions. Best effort: the cluster may be gone."""
        self._rest()
        if self._forget_exit is not None:
            self._forget_exit()
        for session in list(self._sessions):
            with suppress(*_failures()):
                session.end_within(limits.CLOSE_TIMEOUT_S)

    def _rest(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limits.CLOSE_TIMEOUT_S)

    def own(self) -> Session:
        """This process's own session, opened at first use, and again when it has been lost."""
        with self._opening:
            if self._own is None or self._own.lost:
                self._own = Session(self._database, root=Subspace((), self._keys.prefix))
            return self._own

    def own_id(self) -> bytes:
        """The id of the process's own session; of no session, if it has taken nothing yet."""
        return b"" if self._own is None else self._own.id

    def keep(self, session: Session) -> None:
        with self._lock:
            self._sessions.append(session)
            if self._thread is None:
                self._thread = self._runtime.spawn(self._run, "fdbqueue-keeper")
                self._forget_exit = self._runtime.at_exit(partial(_end_at_exit, weakref.ref(self)))

    def forget(self, session: Session) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def look_after(self, queue: Tidied) -> None:
        with self._lock:
            self._queues = [*self._queues, queue]

    def end_unwanted(self) -> None:
        """End the sessions that nobody wants any more."""
        # Asked, not told: a finalizer runs in any thread, with any lock held, and could do nothing itself.
        with self._ending:  # whoever comes second waits until it is done
            unwanted = [
                session for session in self._sessions if session.wanted is not None and not session.wanted()
            ]
            for session in unwanted:
                self._end_or_let_die(session)

    def _end_or_let_die(self, session: Session) -> None:
        # Not the concern of whoever happens to have asked.
        try:
            session.end_within(limits.CLOSE_TIMEOUT_S)
        except _failures() as error:
            _log.warning("%r cannot be ended, and dies after its grace: %s", session, error)

    def end_at_exit(self) -> None:
        """What is wanted ends with the program. Best effort: what is left here dies after its grace."""
        if self._process_id != self._runtime.process_id() or self._database.closed:
            return
        self._rest()  # an engine may be closed at exit, too, and a sweep that meets that would complain
        with suppress(*_failures()):
            for session in [session for session in self._sessions if session.wanted is not None]:
                session.end_within(limits.CLOSE_TIMEOUT_S)

    def tick(self) -> None:
        """One round: heartbeats first, so that nobody takes his own sessions for dead."""
        for session in list(self._sessions):
            session.beat_if_due()
            if session.lost:
                self.forget(session)
        self.end_unwanted()
        try:
            self._tidy_all()
        finally:  # a queue that cannot be tidied, as its payloads cannot be read, keeps nobody alive
            self._end_the_dead()

    def _end_the_dead(self) -> None:
        if self._runtime.monotonic() >= self._sweep_at:
            self._sweep_at = self._runtime.monotonic() + limits.SESSIONS_SWEPT_EVERY_S
            # Its transactions wait for as long as it takes: a session of ours may die meanwhile.
            self.silence.ask(self, partial(end_the_dead, self._database, self._keys))

    def _tidy_all(self) -> None:
        queues, step = self._queues, limits.QUEUES_PER_TRANSACTION
        for start in range(0, len(queues), step):
            for queue in self.ask(partial(self._due_among, queues[start : start + step])):
                self._tidy(queue)

    def _due_among(self, queues: Sequence[Tidied], tr: Transaction) -> list[Tidied]:
        """Those that have something to tidy. Reads definitions, first timers by snapshot; writes nothing."""
        now_us = _now_us(self._database)
        asked = [(queue, queue.guard(tr), queue.ask_next_due(tr)) for queue in queues]
        return [
            queue for queue, check, due in asked if self._exists(queue, check) and _is_past(due(), now_us)
        ]

    def _exists(self, queue: Tidied, check: Callable[[], None]) -> bool:
        try:
            check()
        except QueueNotFound:
            with self._lock:
                self._queues = [other for other in self._queues if other is not queue]
            return False
        return True

    def _tidy(self, queue: Tidied) -> None:
        with suppress(QueueNotFound):
            while self.ask(queue.tidy):
                if self._stop.is_set():
                    return

    def ask(self, body: Callable[[Transaction], T]) -> T:
        """Run it in a transaction, for a bounded time; `silence` knows for how long nothing was answered."""
        return self.silence.ask(self, partial(run, self._database, body, timeout_s=limits.CLOSE_TIMEOUT_S))

    def _run(self) -> None:
        try:
            self._tick_until_stopped()
        finally:
            self.silence.answered(self)  # nobody waits for an answer any more

    def _tick_until_stopped(self) -> None:
        trouble = _Trouble(self._runtime)
        while not self._stop.wait(limits.SWEEP_EVERY_S * (0.5 + self._runtime.random() / 2)):
            try:
                self.tick()
            except _failures() as error:
                if self._database.closed:
                    return
                trouble.met(error)
                if is_away(error):
                    continue
            self.silence.answered(self)


class _Trouble:
    """Failures of sweeping: told of at once, and then once in a while, with their number."""

    # Not "until it succeeds": under load, every other round does.

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._untold = 0
        self._tell_at = float("-inf")

    def met(self, error: Exception) -> None:
        self._untold += 1
        now = self._runtime.monotonic()
        if now >= self._tell_at:
            _log.warning(
                "sweeping fails, and will go on trying (failures since this was last told: %d): %s",
                self._untold,
                error,
            )
            self._untold, self._tell_at = 0, now + limits.TROUBLE_TOLD_EVERY_S


def _end_at_exit(keeper: weakref.ref[Keeper]) -> None:
    still_there = keeper()
    if still_there is not None:
        still_there.end_at_exit()


def keeper_of(database: Database, keys: RootKeys) -> Keeper:
    return database.service(("keeper", keys.prefix), lambda owner: Keeper(owner, keys))


def _is_past(time_us: int | None, now_us: int) -> bool:
    return time_us is not None and time_us <= now_us


def _deadline_of(heartbeat: bytes) -> int:
    deadline_us: int = layer.unpack(heartbeat)[0]
    return deadline_us


def _now_us(database: Database) -> int:
    return round(database.runtime.now() * 1_000_000)


def _failures() -> tuple[type[Exception], ...]:
    return (FdbQueueError, *engine_errors())
