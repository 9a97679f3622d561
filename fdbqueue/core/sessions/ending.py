"""The processes behind a session, its end, and the row in which the ends of a fleet's leases are counted.

A session ends in bounded steps that are safe to repeat. First its record is cleared, so no task can be taken
for it any more; the entry of its heartbeat names its process from then on. Then the ENDERS release its
tasks. Last the entry of its heartbeat is cleared; until then a
sweep finds the session and goes on with its end.

The holder of a task is its session, with the processes behind that. A session without a name has one process,
and its record names it. Each opener of a session with a name writes its process beside its own heartbeat.
Behind the process stands the key layout that it writes, for processes of newer releases.

    R[6, session, opener]   (deadline_us, host, process id,   read by each heartbeat and each end of an
                            layout, from, to)                 opener

The session lives as long as one of its openers. Its own heartbeat, R[6, session], is the latest of their
deadlines. So a sweep need not know of openers, and a session without a name has no rows.

A deadline is a time of the process that beats, and clocks differ. So a heartbeat, and the row of an opener,
has a *hold* too: two counts of the database's clock, `from` and `to`. In between, no other process ends the
session, whatever its clock says. The clock of a cluster is its read version, and that of a directory the
monotonic clock of its machine. Outside of a hold the deadline decides. So versions that jump ahead, or
go back after a restore, hold up no end. A value of an earlier release has no hold.

A run is the ends of the tasks that one fleet has taken, counted in a row. It is named by the id of its
supervisor's session. The token of a lease ends in the run that the lease counts for. So each transaction that
ends a lease knows the row without a read: the ack, the burial, and a sweep in any process. It adds to the row
blindly. A lease without a run costs nothing.

The row is cleared with the supervisor's session. A later add makes the row anew. The sessions of the run's
workers outlast their last lease, so the last of them to end clears that row.
"""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.binding import is_gone, name_of_process
from fdbqueue.core.database import Database, is_away, run, ticks_of
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import LAYOUT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import KeyValue, ReadTransaction, Transaction, Value
from fdbqueue.core.task import Holder, HolderProcess

RUN_ENDS = ("done", "failed", "buried", "lost", "snoozed", "cancelled")
"""The counters of a row, in their order. New ones go to the end."""


def run_of(token: bytes) -> bytes:
    """The run that a lease counts for. Its token is limits.RANDOM_SUFFIX_BYTES random bytes, and the run."""
    return token[limits.RANDOM_SUFFIX_BYTES :]


def runs_on(tr: Transaction, keys: RootKeys, run: bytes) -> bool:
    """True if the run has not ended. Reads its session. Conflicts: its end."""
    return bool(run) and tr.get(keys.session(run)).present()


def ask_run_counted(tr: Transaction, keys: RootKeys, session: bytes, run: bytes) -> Callable[[], bool]:
    """Ask whether the end of a lease of `session` may still count for `run`: without a member and a
    supervisor, the row is gone, and a count would make it for ever.

    A line may deliver a task to a session that ends. No caller receives it, and its lease ends by time.
    Conflicts: the end of both.
    """
    asked = (tr.get(keys.membership(session)), tr.get(keys.session(run)))
    return lambda: any(key.present() for key in asked)


def leave_run(tr: Transaction, keys: RootKeys, membership: bytes, run: bytes | None) -> None:
    """Clear the membership of a session that has ended, and the row of a run that has ended too."""
    if run is None:
        return
    tr.clear(membership)
    if not runs_on(tr, keys, run):
        tr.clear(keys.run(run))


_UNREADABLE = (ValueError, IndexError, TypeError, struct.error)


Process = tuple[str, int, int]
"""Host, process id, key layout."""


def process_of(runtime: Runtime) -> Process:
    return runtime.host_name(), runtime.process_id(), LAYOUT


def ask_holder(tr: ReadTransaction, keys: RootKeys, session: bytes) -> Callable[[], Holder]:
    """Ask for a session and its processes. Values that cannot be read are left out.

    Reads: its record, its heartbeat, and the rows of its first limits.OPENERS_READ_MAX openers.
    Round trips: 1.
    """
    record, heartbeat = tr.get(keys.session(session)), tr.get(keys.heartbeat(session))
    under = keys.openers(session)
    rows = tr.get_range(under.start, under.stop, limit=limits.OPENERS_READ_MAX)

    def holder() -> Holder:
        _, name, ttr_us, *process = _padded_parts(record.value, 3)
        deadline_us, *_ = _padded_parts(heartbeat.value, 1)
        openers = [_padded_parts(row.value, 1)[1:] for row in _listed(rows)]
        return Holder(
            session.hex(),
            name if isinstance(name, str) else None,
            tuple(HolderProcess(*parts[:2]) for parts in [process, *openers] if _is_process(parts)),
            _seconds(deadline_us, ttr_us),
            _seconds(deadline_us, 0),
        )

    return holder


def _listed(rows: Any) -> Sequence[KeyValue]:
    found: Sequence[KeyValue] = rows.to_list()
    return found


def _padded_parts(value: bytes | None, count: int) -> list[Any]:
    """The parts of a stored tuple, and None in place of the first `count` that are missing."""
    try:
        parts = [] if value is None else list(layer.unpack(value))
    except _UNREADABLE:
        parts = []
    return parts + [None] * (count - len(parts))


def _is_process(parts: Sequence[Any]) -> bool:
    return list(map(type, parts[:2])) == [str, int]


def _seconds(deadline_us: Any, ttr_us: Any) -> float | None:
    known = isinstance(deadline_us, int) and isinstance(ttr_us, int)
    return (deadline_us - ttr_us) / 1_000_000 if known else None


def deadline_of(heartbeat: bytes) -> int:
    deadline_us: int = layer.unpack(heartbeat)[0]
    return deadline_us


def deadline_if_readable(heartbeat: bytes) -> int | None:
    try:
        deadline_us = deadline_of(heartbeat)
    except (ValueError, IndexError, TypeError, struct.error):
        return None
    return deadline_us if isinstance(deadline_us, int) else None


Hold = tuple[int, int] | tuple[()]
"""The counts of the database's clock between which a session is not ended, see above."""


def hold_of(tr: ReadTransaction, ttr_us: int) -> Hold:
    """The hold of a heartbeat that is written now. Round trips: none, if the transaction has read."""
    ticks = ticks_of(tr)
    return ticks, ticks + round(ttr_us * limits.SESSION_HOLD_SHARE)


def _hold_in(value: bytes | None, place: int = 1) -> Hold:
    """That of a heartbeat; at `_PLACE_IN_ROW`, that of the row of an opener."""
    hold = _padded_parts(value, 0)[place : place + 2]
    return (hold[0], hold[1]) if list(map(type, hold)) == [int, int] else ()


def _holds(tr: ReadTransaction, hold: Hold) -> bool:
    return len(hold) == 2 and hold[0] <= ticks_of(tr) < hold[1]


def age_of(tr: ReadTransaction, heartbeat: bytes | None) -> float | None:
    """Seconds since a heartbeat by the clock of the database; None outside of its hold, and for one so old
    that versions of a cluster may have jumped since then.
    """
    hold = _hold_in(heartbeat)
    age_s = (ticks_of(tr) - hold[0]) / 1_000_000 if hold and _holds(tr, hold) else limits.AGE_TOLD_MAX_S
    return age_s if age_s < limits.AGE_TOLD_MAX_S else None


_PLACE_IN_ROW = 4


def renew(tr: Transaction, keys: RootKeys, session: bytes, last: Value, deadline_us: int, hold: Hold) -> None:
    """Move the deadline of a session from its `last` heartbeat, which has been asked for.

    A damaged heartbeat is written anew; a sweep clears the entry that belonged to it.
    Writes: the heartbeat and its entry.
    Conflicts: the end of the session.
    """
    last_us = deadline_if_readable(last.value) if last.present() else None
    if last_us is not None:
        tr.clear(keys.beat_due(last_us, session))
    tr.set(keys.heartbeat(session), layer.pack((deadline_us, *hold)))
    tr.set(keys.beat_due(deadline_us, session), b"")


def row(deadline_us: int, process: Process, hold: Hold) -> bytes:
    value: bytes = layer.pack((deadline_us, *process, *hold))
    return value


def beat(
    tr: Transaction, keys: RootKeys, session: bytes, opener: bytes, last: Value, row: bytes, now_us: int
) -> None:
    """Renew one opener by its new `row`, and the session with it. Clear openers that are dead.

    An opener that was only slow writes its row again at its next heartbeat, and has lost nothing.
    Reads: the rows of the openers.
    Writes: these rows.
    Conflicts: the heartbeats and ends of the openers.
    """
    live, dead = _ask_others(tr, keys, session, opener, now_us)()
    for key in dead:
        tr.clear(key)
    tr.set(keys.opener(session, opener), row)
    until_us = max([deadline_of(row), *(one.deadline_us for one in live)])
    renew(tr, keys, session, last, until_us, _hold_in(row, _PLACE_IN_ROW))


def leave(tr: Transaction, keys: RootKeys, session: bytes, opener: bytes, now_us: int) -> bool:
    """Remove an opener. False if no other opener lives: then the session has to be ended.

    Reads: the rows of the openers.
    Conflicts: the heartbeats and ends of the openers.
    """
    last, (live, dead) = tr.get(keys.heartbeat(session)), _ask_others(tr, keys, session, opener, now_us)()
    tr.clear(keys.opener(session, opener))
    if not live and len(dead) < limits.OPENERS_READ_MAX - 1:
        return False
    if live:  # else an opener behind those that were read may live, and its beats count
        # The hold of the one that leaves would keep the session after the others have died.
        hold = max((one.hold for one in live), key=lambda hold: hold[1:])
        renew(tr, keys, session, last, max(one.deadline_us for one in live), hold)
    return True


class _Opener(NamedTuple):
    deadline_us: int
    hold: Hold


def _ask_others(
    tr: Transaction, keys: RootKeys, session: bytes, opener: bytes, now_us: int
) -> Callable[[], tuple[list[_Opener], list[bytes]]]:
    """Ask for the other openers, the first limits.OPENERS_READ_MAX: those that live, and the keys of the
    dead ones.
    """
    under, own = keys.openers(session), keys.opener(session, opener)
    rows = tr.get_range(under.start, under.stop, limit=limits.OPENERS_READ_MAX)

    def others() -> tuple[list[_Opener], list[bytes]]:
        live, dead = list[_Opener](), list[bytes]()
        for row in (row for row in rows if row.key != own):
            # A damaged one counts as dead: the next heartbeat of its opener makes it anew.
            deadline_us = deadline_if_readable(row.value) or 0
            hold = _hold_in(row.value, _PLACE_IN_ROW)
            if deadline_us > now_us or _holds(tr, hold):
                live.append(_Opener(deadline_us, hold))
            else:
                dead.append(row.key)
        return live, dead

    return others


_log = logger("fdbqueue")

Ender = Callable[[Database, RootKeys, Mapping[bytes, str], bool], Collection[bytes]]
"""Gives the tasks of sessions back, in bounded transactions that are safe to repeat. Each session has the
text of its process, empty if that is unknown. The flag is set if they `died`.
Returns the sessions that still hold something, for a later try: in queues of a kind that is
unknown here, or in a queue that fails.
"""

ENDERS: tuple[str, ...] = ("fdbqueue.tasks.ending:end_in_all_queues",)
"""Names, imported by the first end: a process that has used no task queue ends the dead, too."""


def _enders() -> list[Ender]:
    return [resolve_name(name) for name in ENDERS]


SESSIONLESS = frozenset({"queue", "fair-items", "elements", "simple-elements", "importing"})
"""Kinds of queues that hold nothing for a session. The tasks of an import come without leases."""


May = Callable[[Transaction, bytes], bool]
"""True if the session with this heartbeat may be ended."""


def is_overdue(now_us: int) -> May:
    """True for a heartbeat with a deadline at or before `now_us`, and for one that cannot be read, but for
    one that holds.
    """
    return lambda tr, heartbeat: (
        (deadline_if_readable(heartbeat) or 0) <= now_us and not _holds(tr, _hold_in(heartbeat))
    )


def end_session(
    database: Database,
    keys: RootKeys,
    session: bytes,
    may: May,
    died: bool,
    timeout_s: float | None = None,
) -> None:
    """End `session` if `may` allows it. Does nothing for a session that has ended.

    If it `died`, the attempts at its tasks have failed.
    """
    now_us = database.runtime.now_us()

    def begin(tr: Transaction) -> bytes | None:
        return _ask_end(tr, keys, session, now_us)(may)

    process = run(database, begin, timeout_s=timeout_s)
    if process is not None:
        _finish(database, keys, {session: (now_us, process)}, died)


def _ask_end(tr: Transaction, keys: RootKeys, session: bytes, now_us: int) -> Callable[[May], bytes | None]:
    """Ask for the keys that an end depends on. The reply begins the end, and tells the process;
    None if there is nothing to finish.
    """
    found, heartbeat = tr.get(keys.session(session)), tr.get(keys.heartbeat(session))
    begun = tr.get(keys.beat_due(now_us, session))

    def begin(may: May) -> bytes | None:
        if not found.present():  # an earlier attempt with an unknown result may have begun it
            process: bytes | None = begun.value
            return process
        if not may(tr, heartbeat.value):
            return None
        return _begin_end(tr, keys, session, found.value, heartbeat.value, now_us)

    return begin


def _begin_end(
    tr: Transaction, keys: RootKeys, session: bytes, record: bytes, heartbeat: bytes, now_us: int
) -> bytes:
    """Let no task be taken for the session, and let sweeps know that its end has begun, and its process."""
    name = _name_in(record)
    if name is not None:
        tr.clear(keys.session_named(name))
        openers = keys.openers(session)
        tr.clear_range(openers.start, openers.stop)
    tr.clear(keys.session(session))
    tr.clear(keys.heartbeat(session))
    shown = keys.presence_and_orders(session)
    tr.clear_range(shown.start, shown.stop)
    tr.clear(keys.run(session))
    deadline_us = deadline_if_readable(heartbeat)
    if deadline_us is not None:
        tr.clear(keys.beat_due(deadline_us, session))
    process = _process_in(record)
    tr.set(keys.beat_due(now_us, session), process)
    return process


def _process_in(record: bytes) -> bytes:
    """Host and process of a session; empty for a session with a name, whose processes stand elsewhere."""
    parts = _padded_parts(record, 3)[3:]
    return f"{parts[0]}:{parts[1]}".encode() if _is_process(parts) else b""


def _name_in(record: bytes) -> str | None:
    """The name of the session. None for a damaged record: the next session of that name writes its key."""
    try:
        name = layer.unpack(record)[1]
    except (ValueError, IndexError, struct.error):
        return None
    return name if isinstance(name, str) else None


def _finish(
    database: Database, keys: RootKeys, entries: Mapping[bytes, tuple[int, bytes]], died: bool
) -> None:
    """Finish the ends of sessions. `entries`: the deadline in the entry of each session, and its process."""
    holders = {session: process.decode(errors="replace") for session, (_, process) in entries.items()}
    left = {session for end in _enders() for session in end(database, keys, holders, died)}
    done = {session: deadline_us for session, (deadline_us, _) in entries.items() if session not in left}
    run(database, lambda tr: _forget(tr, keys, done))
    if left:
        put_off = {session: entries[session][0] for session in left}
        _put_off(database, keys, put_off)


def _forget(tr: Transaction, keys: RootKeys, done: Mapping[bytes, int]) -> None:
    """The last step. The sessions have no lease left, so nothing is counted for them any more."""
    memberships = {session: tr.get(keys.membership(session)) for session in done}
    for session, deadline_us in done.items():
        leave_run(tr, keys, keys.membership(session), memberships[session].value)
        tr.clear(keys.beat_due(deadline_us, session))


def _put_off(database: Database, keys: RootKeys, entries: Mapping[bytes, int]) -> None:
    """Put off the ends: another process may know the unknown kinds, or a later try may succeed."""
    again_us = database.runtime.now_us() + round(limits.SESSION_TTR_S * 1_000_000)

    def move(tr: Transaction) -> None:
        found = {session: tr.get(keys.beat_due(was_us, session)) for session, was_us in entries.items()}
        for session, was_us in entries.items():
            if found[session].present():
                tr.clear(keys.beat_due(was_us, session))
                tr.set(keys.beat_due(again_us, session), found[session].value)

    run(database, move)


@dataclass(frozen=True)
class Overdue:
    """A session with a deadline before `now_us`, that no hold keeps. `begun`: its end has begun, and its
    entry has its `process`.
    """

    session: bytes
    deadline_us: int
    begun: bool
    now_us: int
    process: bytes = b""


@dataclass(frozen=True)
class Overdues:
    """A batch of overdue sessions; `next` is the place behind it, None at the end."""

    dead: list[Overdue]
    next: bytes | None


def end_the_dead(database: Database, keys: RootKeys, after: bytes | None = None) -> bytes | None:
    """End the first overdue sessions behind the place `after`, at most limits.DEAD_SESSIONS_MAX.

    Only the look may wait for batch priority: an end takes some transactions for each queue, and the living
    wait for the tasks.
    Returns the place behind them, None at the end.
    """
    now_us = database.runtime.now_us()

    def look(tr: Transaction) -> Overdues:
        return ask_overdue(tr, keys, now_us, after)()

    found = run(database.at("upkeep"), look, timeout_s=limits.CLOSE_TIMEOUT_S)
    end_overdue(database, keys, found.dead)
    return found.next


def ask_overdue(
    tr: Transaction, keys: RootKeys, now_us: int, after: bytes | None = None
) -> Callable[[], Overdues]:
    """Ask for the first overdue sessions, at most limits.DEAD_SESSIONS_MAX.

    Reads: by snapshot.
    Round trips: 1; 2 if there are any.
    """
    beats, most = keys.beats_due_until(now_us), limits.DEAD_SESSIONS_MAX
    start = beats.start if after is None else after + b"\x00"
    first = tr.snapshot.get_range(start, beats.stop, limit=most)

    def reply() -> Overdues:
        entries = [(entry.key, entry.value) for entry in first]
        beaten = [(*beat, value) for key, value in entries if (beat := keys.beat_of(key)) is not None]
        get = tr.snapshot.get
        asked = [
            (due, one, process, get(keys.session(one)), get(keys.heartbeat(one)))
            for due, one, process in beaten
        ]
        dead = [
            Overdue(one, due, not record.present(), now_us, process)
            for due, one, process, record, beat in asked
            # An entry with an old deadline is for a sweep to clear.
            if due != deadline_if_readable(beat.value) or not _holds(tr, _hold_in(beat.value))
        ]
        return Overdues(dead, entries[-1][0] if len(entries) == most else None)

    return reply


def count_others(tr: Transaction, keys: RootKeys, own: Collection[bytes], now_us: int) -> int:
    """Number of live sessions beside `own`, at most limits.SWEEPERS_MAX - 1. Reads by snapshot."""
    beats, most = keys.beats_due_after(now_us), limits.SWEEPERS_MAX - 1
    limit = min(most + len(own), limits.BATCH_ITEMS_MAX)
    found = tr.snapshot.get_range(beats.start, beats.stop, limit=limit)
    sessions = (beat[1] for entry in found if (beat := keys.beat_of(entry.key)) is not None)
    return min(most, sum(session not in own for session in sessions))


def end_overdue(database: Database, keys: RootKeys, found: Sequence[Overdue]) -> bool:
    """End these sessions as dead, or finish an end that has begun. True if any was ended.

    All share three transactions. If those fail, the sessions are ended in two halves, so that one session
    that cannot be ended holds up no other.
    Raises: the error of a database that is away.
    """
    # One time for all tries: it is in the entries of ends that an earlier try has begun.
    return _end_each(database, keys, found, database.runtime.now_us())


def _end_each(database: Database, keys: RootKeys, found: Sequence[Overdue], now_us: int) -> bool:
    try:
        _end_together(database, keys, found, now_us)
        return True
    except Exception as error:
        if is_away(error):
            raise
        if len(found) == 1:
            database.troubles.met(_log, "a dead session cannot be ended, and will be tried again", error)
            for deadline_us in (found[0].deadline_us, now_us):  # before the begin of its end, and after it
                _put_off(database, keys, {found[0].session: deadline_us})
            return False
    middle = len(found) // 2
    halves = [_end_each(database, keys, half, now_us) for half in (found[:middle], found[middle:])]
    return any(halves)


def _end_together(database: Database, keys: RootKeys, found: Sequence[Overdue], now_us: int) -> None:
    entries = {dead.session: (dead.deadline_us, dead.process) for dead in found if dead.begun}
    alive = [dead for dead in found if not dead.begun]
    if alive:
        begun = run(database, lambda tr: _begin_ends(tr, keys, alive, now_us))
        entries |= {session: (now_us, process) for session, process in begun.items()}
    if entries:
        _finish(database, keys, entries, died=True)


def _begin_ends(tr: Transaction, keys: RootKeys, found: Sequence[Overdue], now_us: int) -> dict[bytes, bytes]:
    """Begin the ends of dead sessions. Return those that have to be finished, with their processes."""
    asked = [(dead, _ask_end(tr, keys, dead.session, now_us)) for dead in found]
    begun = ((dead.session, begin(_is_dead(keys, dead))) for dead, begin in asked)
    return {session: process for session, process in begun if process is not None}


def _is_dead(keys: RootKeys, dead: Overdue) -> May:
    """True if the heartbeat is overdue and does not hold, or cannot be read. Clears an entry with an old
    deadline.
    """

    def may(tr: Transaction, heartbeat: bytes) -> bool:
        deadline_us = deadline_if_readable(heartbeat)
        if deadline_us is None:
            return True
        if deadline_us != dead.deadline_us:
            tr.clear(keys.beat_due(dead.deadline_us, dead.session))
        return deadline_us <= dead.now_us and not _holds(tr, _hold_in(heartbeat))

    return may


class Gone:
    """The sessions of processes that are gone, a batch at a time.

    In a directory the kernel knows them, long before their deadlines. Sessions with a name stay: another
    process may go on with them.
    """

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._after: bytes | None = None

    @property
    def is_at_end(self) -> bool:
        return self._after is None

    def batch(self) -> Sequence[bytes]:
        """Those among the next limits.BATCH_ITEMS_MAX sessions; on a cluster there are none.

        Reads: the entries of their heartbeats, by snapshot.
        """
        if not name_of_process(self._database.engine):
            return ()
        entries = run(self._database, self._entries)
        self._after = entries[-1] if len(entries) == limits.BATCH_ITEMS_MAX else None
        sessions = [session for _, session in filter(None, map(self._keys.beat_of, entries))]
        return [session for session in sessions if is_gone(self._database.engine, session)]

    def end(self, session: bytes) -> None:
        end_session(self._database, self._keys, session, lambda *_: True, died=True)

    def _entries(self, tr: Transaction) -> list[bytes]:
        beats = self._keys.beats_due
        start = beats.start if self._after is None else self._after + b"\x00"
        return [entry.key for entry in tr.snapshot.get_range(start, beats.stop, limit=limits.BATCH_ITEMS_MAX)]


def end_the_gone(database: Database, keys: RootKeys) -> None:
    gone = Gone(database, keys)
    while True:
        for session in gone.batch():
            gone.end(session)
        if gone.is_at_end:
            return
