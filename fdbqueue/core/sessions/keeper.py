"""Keeper: one thread per process and root that renews heartbeats and sweeps.

Chores are work of rooms above that the keeper does. Kept, Tidied: the sessions and queues that it keeps.

Silence: for how long a database has not answered, although it was asked all the time.
"""

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from pkgutil import resolve_name
from typing import Protocol, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import require_finished
from fdbqueue.core.database import Database, is_away, run
from fdbqueue.core.errors import DatabaseClosed, DeferredResult, QueueNotFound
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Runtime, Thread
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.sessions.ending import (
    Gone,
    Overdue,
    Overdues,
    ask_overdue,
    count_others,
    end_overdue,
    end_the_dead,
)
from fdbqueue.core.visible import SURVIVED

T = TypeVar("T")


class Spells:
    """The last spells of something: the end of each, by the wall clock, and its length."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=limits.SPELLS_KEPT)

    def add(self, ended_at: float, seconds: float) -> None:
        self._ended.append((ended_at, seconds))

    def longest_s(self, since: float) -> float:
        """The longest of the spells that ended after `since`; zero if there was none."""
        return max((seconds for ended_at, seconds in tuple(self._ended) if ended_at >= since), default=0.0)

    def total_s(self, since: float) -> float:
        """The total length of the spells that ended after `since`."""
        return sum(seconds for ended_at, seconds in tuple(self._ended) if ended_at >= since)


class Silence:
    """For each asker, the time from its first unanswered question to the next answer."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._asked_at: dict[Hashable, float] = {}
        self._running: dict[object, Hashable] = {}
        self._spells = Spells()

    def ask(self, who: Hashable, question: Callable[[], T]) -> T:
        """Run one transaction, or several. An error is an answer, too, except that of a database that is
        away: then the question stays open.

        An asker may ask within a question, or in two threads: the answer to one leaves the other open.
        """
        mark, is_answered = object(), True
        self._running[mark] = who
        self.asked(who)
        try:
            return question()
        except BaseException as error:
            is_answered = not is_away(error)
            raise
        finally:
            del self._running[mark]
            if is_answered:
                self.answered(who)

    def asked(self, who: Hashable) -> None:
        self._asked_at.setdefault(who, self._now())

    def answered(self, who: Hashable) -> None:
        now = self._now()
        lasted_s = now - self._asked_at.pop(who, now)
        if lasted_s >= limits.SILENCE_MIN_S:
            self._spells.add(now, lasted_s)
        if who in tuple(self._running.values()):
            self._asked_at[who] = now

    def longest_s(self, since: float) -> float:
        """The longest silence that goes on, or that ended after `since` (wall clock)."""
        lasts_s = self._now() - min(tuple(self._asked_at.values()), default=self._now())
        return max(lasts_s, self._spells.longest_s(since))


class Kept(Protocol):
    """A session that the keeper renews, and ends as soon as it is not `wanted`."""

    id: bytes
    name: str | None
    lost: bool
    wanted: Callable[[], bool] | None

    def beat_if_due(self) -> None: ...
    def end_within(self, timeout_s: float | None) -> None: ...


class Tidied(Protocol):
    """A queue that the keeper sweeps, one batch at a time, when something is due."""

    @property
    def name(self) -> str: ...
    def guard(self, tr: Transaction) -> Callable[[], None]: ...
    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]: ...
    def tidy(self, tr: Transaction) -> bool: ...


class Round(Protocol):
    """One round of a keeper, as a chore sees it."""

    @property
    def sharers(self) -> int:
        """Number of processes that share the work under this root."""

    @property
    def is_stopping(self) -> bool:
        """True if the process ends: a chore returns at once."""

    def ask(self, body: Callable[[Transaction], T]) -> T:
        """Run a transaction with a time limit."""

    def ask_at_once(self, body: Callable[[Transaction], T]) -> T:
        """As `ask`, at default priority: a user waits for it."""

    def beat(self) -> None:
        """Renew the heartbeats that are due, in the middle of long work."""


class Chore(Protocol):
    @property
    def name(self) -> str: ...
    def do(self, round_: Round) -> None:
        """Do what is due. Called several times a second."""


MakeChore = Callable[[Database, RootKeys], Chore]

CHORES = ("fdbqueue.tasks.firing:pass_of",)
"""Names, imported by the first round: a process that uses one queue has not imported the rooms of others."""


def chores_for(database: Database, keys: RootKeys) -> list[Chore]:
    makers: list[MakeChore] = [resolve_name(name) for name in CHORES]
    return [make(database, keys) for make in makers]


_log = logger("fdbqueue")


class Keeper:
    """The background work of one process, in one thread: heartbeats of its sessions, and sweeps."""

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._keys = keys
        self._lock = database.runtime.lock()
        self._stop = database.runtime.event()
        self._sessions: list[Kept] = []
        self._queues: list[weakref.ref[Tidied]] = []
        self._of_root: dict[str, Tidied | None] = {}
        """By the names of their classes; None before the first round, which imports them."""
        self._ending = database.runtime.lock()
        self._burying = database.runtime.lock()
        self._process_id = database.runtime.process_id()
        self._forget_exit: Callable[[], None] | None = None
        self._thread: Thread | None = None
        self._is_exiting = False
        self._sweep_at = self._tidy_at = self._count_at = float("-inf")
        self._upkeep, self._liveness = database.at("upkeep"), database.at("liveness")
        self._gone = Gone(self._liveness, keys)
        self.sharers = 1
        """Number of processes that sweep under this root, as far as this one knows."""
        self._chores: list[Chore] = []
        self._added: list[Chore] = []
        """Those of workers, for as long as these run."""
        self.silence = Silence(database.runtime)
        """The times for which the database did not answer this process."""

    def close(self) -> None:
        """End the sessions. Best effort: the cluster may be gone."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limits.CLOSE_TIMEOUT_S)
        if self._forget_exit is not None:
            self._forget_exit()
        for session in list(self._sessions):
            with suppress(Exception):
                session.end_within(limits.CLOSE_TIMEOUT_S)

    def is_needed(self) -> bool:
        return True

    def start(self) -> None:
        """Start the thread. From now on this process also ends dead sessions."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = self._runtime.spawn(self._run, "fdbqueue-keeper")
                self._forget_exit = self._runtime.at_exit(partial(_end_at_exit, weakref.ref(self)))

    def keep(self, session: Kept) -> None:
        """Renew the session from now on. DatabaseClosed while the process ends: nothing would end it."""
        if self._is_exiting:
            raise DatabaseClosed
        with self._lock:
            self._sessions.append(session)
        self.start()

    def forget(self, session: Kept) -> None:
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def look_after(self, queue: Tidied) -> None:
        """Sweep the queue for as long as another object refers to it."""
        with self._lock:
            self._queues.append(weakref.ref(queue))
        self.start()

    def sweep_root(self, name: str) -> None:
        """Sweep something of the root for as long as this keeper lives. `name`: that of its class."""
        with self._lock:
            self._of_root.setdefault(name, None)
        self.start()

    def add_chore(self, chore: Chore) -> None:
        with self._lock:
            self._added.append(chore)
        self.start()

    def end_chore(self, chore: Chore) -> None:
        with self._lock:
            self._added = [one for one in self._added if one is not chore]

    def end_unwanted(self) -> None:
        # `wanted` is polled: a finalizer may hold any lock in any thread, so it cannot end a session.
        with self._ending:  # a second caller waits until the first is done
            for session in [session for session in self._sessions if not self._is_wanted(session)]:
                self._end_or_let_die(session)

    def _is_wanted(self, session: Kept) -> bool:
        """False if the session's `wanted` is; one that returns a coroutine is not called again."""
        if session.wanted is None:
            return True
        try:
            return bool(require_finished("wanted", session.wanted()))
        except DeferredResult as error:
            session.wanted = None
            _log.error("%r stays open until it is ended: %s", session, error)
        except SURVIVED as error:  # a call about another session may have caused this, and must not fail
            self._database.troubles.met(
                _log, "the `wanted` of a session fails, and the session stays open", error
            )
        return True

    def _end_or_let_die(self, session: Kept) -> None:
        # A call about another session may have caused this: it must not fail.
        try:
            session.end_within(limits.CLOSE_TIMEOUT_S)
        except Exception as error:
            self._database.troubles.met(_log, f"{session!r} cannot be ended, and dies after its grace", error)

    def end_at_exit(self, began: float) -> None:
        """End the sessions of a process that `began` to end, by runtime.monotonic(). A second call does
        nothing.

        It waits at most limits.CLOSE_TIMEOUT_S, because the database may be unreachable. A session with a
        name stays for its ttr, so a restarted process goes on with it.
        """
        if self._process_id != self._runtime.process_id() or self._database.closed:
            return
        self._is_exiting = True
        self._stop.set()
        if self._thread is not None:  # this thread ends them: no thread can be started this late
            self._thread.join(max(0.0, began + limits.CLOSE_TIMEOUT_S - self._runtime.monotonic()))

    def _end_those_of_this_process(self) -> None:
        for session in list(self._sessions):
            if session.name is None or session.wanted is not None:
                self._end_or_let_die(session)

    def tick(self) -> None:
        """Run one round: heartbeats first, so that no process ends its own sessions as dead.

        The error of one session, queue or definition is logged, and stops no other.
        Raises: the error of a database that is away.
        """
        self._beat()
        self.end_unwanted()
        self._untroubled(self._count_sweepers)
        try:
            self._tidy_all()
        finally:  # one queue may be too slow to be swept
            try:
                self._end_the_dead()
            finally:
                self._do_chores()

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def _do_chores(self) -> None:
        if not self._chores:  # not before: services are made one at a time
            self._chores = chores_for(self._database, self._keys)
        for chore in (*self._chores, *self._added):
            try:
                chore.do(self)
            except Exception as error:
                self._require_open()
                if is_away(error):
                    raise
                self._database.troubles.met(_log, f"{chore.name} fails, and will be tried again", error)

    def beat(self) -> None:
        """Renew the heartbeats that are due, in the middle of long work."""
        self._untroubled(self._beat)

    def _beat(self) -> None:
        away: Exception | None = None
        for session in list(self._sessions):
            try:
                session.beat_if_due()
            except Exception as error:
                self._require_open()
                if is_away(error):
                    away = error
                    if self._stop.is_set():
                        break
                else:
                    self._database.troubles.met(_log, "a heartbeat fails, and will be tried again", error)
            if session.lost:
                self.forget(session)
        if away is not None:
            raise away

    def _require_open(self) -> None:
        """Refuse a database that is gone, or whose engine is."""
        # The engine may go first: a raw one that the program has closed or dropped.
        self._database.create_transaction()

    def _end_the_dead(self) -> None:
        if self._runtime.monotonic() >= self._sweep_at:
            self._sweep_at = self._runtime.monotonic() + self.sharers * limits.SESSIONS_SWEPT_EVERY_S
            for session in self.silence.ask(self, self._gone.batch):
                self._untroubled(partial(self._gone.end, session))
            after: bytes | None = None
            while True:
                # Its transactions wait for as long as it takes: a session of ours may die meanwhile.
                batch = partial(end_the_dead, self._liveness, self._keys, after)
                after = self.silence.ask(self, batch)
                if after is None or self._stop.is_set():
                    return
                self._beat()

    def ended_overdue(self, ask_there: Callable[[Transaction], Callable[[], bool]]) -> bool:
        """End a batch of overdue sessions, before a call answers that there is nothing, or no room.

        It looks behind those that a hold keeps, too: for a wrong clock, these may be any number.
        Returns true if the call should try again: sessions were ended, or `ask_there` found something in the
        transaction that looked for them. If false, there was nothing at that version, not even held by a dead
        session.
        Round trips: 1 if there are no overdue sessions.
        """
        self._untroubled(self._beat)  # after a standstill of this process its own sessions look dead
        now_us = self._database.runtime.now_us()
        after: bytes | None = None

        def look(tr: Transaction) -> tuple[Overdues, bool]:
            overdue, there = ask_overdue(tr, self._keys, now_us, after), ask_there(tr)
            return overdue(), there()

        while True:
            overdue, there = run(self._database, look)
            if there or self._end(overdue.dead):
                return True
            after = overdue.next
            if after is None:
                return False

    def _end(self, overdue: Sequence[Overdue]) -> bool:
        """False if there is nothing to end, or the end failed."""
        if not overdue:
            return False
        end = partial(end_overdue, self._database, self._keys, overdue)
        with self._burying:  # threads that end the same sessions would only meet in conflicts
            return self._untroubled(end)

    def _untroubled(self, act: Callable[[], bool | None]) -> bool:
        """The answer of `act`; False after an error, which is logged, unless the database is gone."""
        try:
            return act() is not False
        except Exception as error:
            if self._database.closed:  # or closing, while the engine still answers
                raise DatabaseClosed from error
            self._require_open()
            self._database.troubles.met(_log, "sweeping fails, and will go on trying", error)
            return False

    def try_again(
        self,
        attempt: Callable[[], T | None],
        ask_there: Callable[[Transaction], Callable[[], bool]],
        until: float = float("inf"),
    ) -> T | None:
        """Repeat an `attempt` that has found nothing while overdue sessions are ended before it.

        None if no session was overdue afterwards, or if it is `until` (runtime.monotonic()) after at least
        one batch.
        """
        while self.ended_overdue(ask_there):
            found = attempt()
            if found is not None or self._runtime.monotonic() >= until:
                return found
        return None

    def _count_sweepers(self) -> None:
        """Count the processes that sweep under this root. A session of another process stands for one."""
        now = self._runtime.monotonic()
        if now < self._count_at:
            return
        self._count_at = now + limits.SWEEPERS_COUNTED_EVERY_S
        own, now_us = {session.id for session in self._sessions}, self._database.runtime.now_us()
        self.sharers = 1 + self.ask(lambda tr: count_others(tr, self._keys, own, now_us))

    def _tidy_all(self) -> None:
        now = self._runtime.monotonic()
        if now < self._tidy_at:
            return
        self._tidy_at = now + (self.sharers - 1) * self._pause_s()
        queues, step = self._living(), limits.QUEUES_PER_TRANSACTION
        for start in range(0, len(queues), step):
            for queue in self.ask(partial(self._due_among, queues[start : start + step])):
                self._tidy(queue)

    def _living(self) -> list[Tidied]:
        for name in [name for name, made in list(self._of_root.items()) if made is None]:
            self._of_root[name] = made = resolve_name(name)(self._database, self._keys)
            with self._lock:
                self._queues.append(weakref.ref(made))
        with self._lock:
            found = [(known, known()) for known in self._queues]
            self._queues = [known for known, queue in found if queue is not None]
        return [queue for _, queue in found if queue is not None]

    def _due_among(self, queues: Sequence[Tidied], tr: Transaction) -> list[Tidied]:
        """The queues with something to sweep. Reads: definitions; first timers, by snapshot."""
        now_us = self._database.runtime.now_us()
        asked = [(queue, queue.guard(tr), queue.ask_next_due(tr)) for queue in queues]
        return [queue for queue, check, due in asked if self._is_due(queue, check, due, now_us)]

    def _is_due(
        self, queue: Tidied, check: Callable[[], None], due: Callable[[], int | None], now_us: int
    ) -> bool:
        try:
            return self._exists(queue, check) and (due_us := due()) is not None and due_us <= now_us
        except engine_errors():
            raise
        except Exception as error:
            self._cannot_tidy(queue, error)
            return False

    def _cannot_tidy(self, queue: Tidied, error: Exception) -> None:
        self._database.troubles.met(
            _log, f"the queue {queue.name!r} is not swept, and will be tried again", error
        )

    def _exists(self, queue: Tidied, check: Callable[[], None]) -> bool:
        try:
            check()
        except QueueNotFound:
            with self._lock:
                self._queues = [other for other in self._queues if other() is not queue]
            return False
        return True

    def _tidy(self, queue: Tidied) -> None:
        try:
            while self.ask(queue.tidy):
                if self._stop.is_set():
                    return
                self._beat()  # there may be a million to tidy
        except QueueNotFound:
            return
        except Exception as error:
            self._require_open()
            if is_away(error):
                with self._lock:  # others get their turn: the database may be too slow for this queue only
                    self._queues.sort(key=lambda other: other() is queue)
                raise
            self._cannot_tidy(queue, error)

    def ask(self, body: Callable[[Transaction], T]) -> T:
        """Run a transaction with a time limit; `silence` measures how long the database does not answer."""
        self.beat()  # each question of a round may wait for batch priority
        return self._ask(self._upkeep, body)

    def ask_at_once(self, body: Callable[[Transaction], T]) -> T:
        """As `ask`, for a heartbeat or a promised time: neither batch priority nor an option delays it."""
        return self._ask(self._liveness, body)

    def _ask(self, database: Database, body: Callable[[Transaction], T]) -> T:
        return self.silence.ask(self, partial(run, database, body, timeout_s=limits.CLOSE_TIMEOUT_S))

    def _run(self) -> None:
        try:
            self._tick_until_stopped()
            if self._is_exiting:
                self._end_those_of_this_process()
        except BaseException:
            self._go_on_in_another_thread()
            raise
        finally:
            self.silence.answered(self)  # this thread waits for no answer any more

    def _tick_until_stopped(self) -> None:
        while not self._stop.wait(self._pause_s()):
            try:
                self.tick()
            except Exception as error:
                if self._is_gone():
                    self._lose_all()
                    return
                if not self._database.closed:  # or closing: that ends this thread, and the sessions
                    self._database.troubles.met(_log, "sweeping fails, and will go on trying", error)
                if is_away(error):
                    continue
            self.silence.answered(self)

    def _pause_s(self) -> float:
        return limits.SWEEP_EVERY_S * (0.5 + self._runtime.random() / 2)

    def _is_gone(self) -> bool:
        try:
            self._require_open()
        except (DatabaseClosed, ReferenceError):
            return True
        return False

    def _go_on_in_another_thread(self) -> None:
        """Start another thread: this one was told to end (GreenletExit), and the sessions need one."""
        try:
            with self._lock:
                if not self._stop.is_set():
                    self._thread = self._runtime.spawn(self._run, "fdbqueue-keeper")
        except Exception as error:  # no thread to be had
            self._database.troubles.met(
                _log, "no thread renews heartbeats any more: the sessions are lost", error
            )
            self._lose_all()

    def _lose_all(self) -> None:
        """Nothing renews the heartbeats of the sessions any more."""
        for session in list(self._sessions):
            session.lost = True


def _end_at_exit(keeper: weakref.ref[Keeper], began: float) -> None:
    still_there = keeper()
    if still_there is not None:
        still_there.end_at_exit(began)


def keeper_of(database: Database, keys: RootKeys) -> Keeper:
    return database.service(("keeper", keys.prefix), lambda owner: Keeper(owner, keys))
