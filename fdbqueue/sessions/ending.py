"""The end of a session, in bounded steps, each safe to repeat.

First its record goes, so that no task can be taken for it any more. Then the registered enders release its
tasks. Last goes the entry of its heartbeat, by which a sweeper finds a session that is not ended yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.root_keys import RootKeys
from fdbqueue.runs import leave_run
from fdbqueue.seam import Range, Transaction
from fdbqueue.sessions.openers import deadline_of

Ender = Callable[[Database, RootKeys, bytes, bool], bool]
"""Gives the tasks of a session back, in bounded transactions that are safe to repeat. The flag is set if the
session `died`. False if a part was left to a process that knows more kinds of queue.
"""

_enders: list[Ender] = []


def register_ender(end: Ender) -> Ender:
    """Have `end` called at the end of each session. A decorator."""
    _enders.append(end)
    return end


May = Callable[[Transaction, bytes], bool]
"""True if the session with this heartbeat may be ended."""


def is_overdue(now_us: int) -> May:
    return lambda _, heartbeat: deadline_of(heartbeat) <= now_us


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
    now_us = now_us_of(database)
    begin = partial(_begin_end, keys=keys, session=session, may=may, now_us=now_us)
    if run(database, begin, timeout_s=timeout_s):
        _finish_end(database, keys, session, now_us, died)


def _begin_end(tr: Transaction, keys: RootKeys, session: bytes, may: May, now_us: int) -> bool:
    """From now on nothing can be taken for it, and sweepers know that there is something left to do."""
    found, heartbeat = tr.get(keys.session(session)), tr.get(keys.heartbeat(session))
    begun = tr.get(keys.beat_due(now_us, session))
    if not found.present():  # but an earlier attempt with an unknown result may have been this one
        return bool(begun.present())
    if not may(tr, heartbeat.value):
        return False
    name = layer.unpack(found.value)[1]
    if name is not None:
        tr.clear(keys.session_named(name))
        openers = keys.openers(session)
        tr.clear_range(openers.start, openers.stop)
    tr.clear(keys.session(session))
    tr.clear(keys.heartbeat(session))
    tr.clear(keys.presence(session))
    tr.clear(keys.run(session))
    tr.clear(keys.beat_due(deadline_of(heartbeat.value), session))
    tr.set(keys.beat_due(now_us, session), b"")
    return True


def _finish_end(database: Database, keys: RootKeys, session: bytes, deadline_us: int, died: bool) -> None:
    complete = [end(database, keys, session, died) for end in _enders]
    if all(complete):
        run(database, lambda tr: _forget(tr, keys, session, deadline_us))
    else:
        again_us = now_us_of(database) + round(limits.SESSION_TTR_S * 1_000_000)
        run(database, lambda tr: _leave_to_others(tr, keys, session, deadline_us, again_us))


def _forget(tr: Transaction, keys: RootKeys, session: bytes, deadline_us: int) -> None:
    """The last step: no lease of the session is left, so nothing is counted for it any more."""
    membership = keys.membership(session)
    leave_run(tr, keys, membership, tr.get(membership).value)
    tr.clear(keys.beat_due(deadline_us, session))


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


@dataclass(frozen=True)
class Overdue:
    """A session with a deadline that had passed at `now_us`; its end may have `begun`."""

    session: bytes
    deadline_us: int
    begun: bool
    now_us: int


def end_the_dead(database: Database, keys: RootKeys) -> bool:
    """End the first overdue sessions, at most limits.DEAD_SESSIONS_MAX; True if there may be more."""
    now_us = now_us_of(database)
    ask = partial(ask_overdue, keys=keys, now_us=now_us)
    found = run(database, lambda tr: ask(tr)(), timeout_s=limits.CLOSE_TIMEOUT_S)
    end_overdue(database, keys, found)
    return len(found) == limits.DEAD_SESSIONS_MAX


def ask_overdue(tr: Transaction, keys: RootKeys, now_us: int) -> Callable[[], list[Overdue]]:
    """Ask for the first overdue sessions, at most limits.DEAD_SESSIONS_MAX. Reads by snapshot.

    Round trips: one, and one more if there are any.
    """
    beats = keys.beats_due
    first = tr.snapshot.get_range(beats.start, beats.stop, limit=limits.DEAD_SESSIONS_MAX)

    def reply() -> list[Overdue]:
        found = [(due, session) for due, session in map(keys.beat_of, _keys_in(first)) if due <= now_us]
        asked = [(due, session, tr.snapshot.get(keys.session(session))) for due, session in found]
        return [Overdue(session, due, not record.present(), now_us) for due, session, record in asked]

    return reply


def _keys_in(entries: Range) -> list[bytes]:
    return [entry.key for entry in entries]


def end_overdue(database: Database, keys: RootKeys, found: Sequence[Overdue]) -> None:
    """End these sessions as dead, or finish an end that has begun."""
    for dead in found:
        if dead.begun:
            _finish_end(database, keys, dead.session, dead.deadline_us, died=True)
        else:
            end_session(database, keys, dead.session, is_overdue(dead.now_us), died=True)


def now_us_of(database: Database) -> int:
    return round(database.runtime.now() * 1_000_000)
