"""Sessions that their process wants for a while, and dead sessions of which some cannot be ended."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from weakref import WeakSet

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.engine import DELAYING, Faults
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import play

HOLDERS = 8
SWEPT_EVERY_S = 2.0
LATE_S = 40.0
"""Then the processes that want their sessions have ended, and the dead ones are left to the last process."""
CURSED = b"cursed/"
"""Keys with the ids of sessions that cannot be ended."""
NAME = "unwanted"
SESSION_TTR_S = 3.0
HARMLESS = {"not_committed", "watch_spurious", "watch_late", "watch_very_late", "watch_missed"}


def refuse(database: Database, _: RootKeys, sessions: Sequence[bytes], __: bool) -> Collection[bytes]:
    """Raises: ValueError if one of the sessions is cursed."""
    if database in CONCERNED and any(database[CURSED + session] is not None for session in sessions):
        raise ValueError("a session is cursed")
    return ()


ending.ENDERS = (*ending.ENDERS, f"{refuse.__module__}:refuse")


CONCERNED: WeakSet[Database] = WeakSet()
"""The databases in which sessions may be cursed: the enders are those of all simulations."""


class Whim:
    """The `wanted` of a session: it changes its mind once, and may fail in between."""

    def __init__(self) -> None:
        self.is_wanted = True
        self.fails = False

    def __call__(self) -> bool:
        if self.fails:
            raise ValueError("the wish cannot be told")
        return self.is_wanted


@workload(clients=2, steps=3)
def unwanted(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    # Each process counts as one of a few, whatever the number of its sessions.
    simulation.limit(SESSION_TTR_S=SESSION_TTR_S, SESSIONS_SWEPT_EVERY_S=SWEPT_EVERY_S, SWEEPERS_MAX=1)

    def want(client: Client) -> None:
        """Want a session for a while; its process lives on."""
        q = opened(client)
        for _ in range(size.steps):
            whim = Whim()
            session = Session(client.db, ttr=SESSION_TTR_S, wanted=whim)
            hold(client, q, session)
            whim.fails = client.random.random() < 0.5
            client.runtime.sleep(client.random.choice((0.5, 1, 2)) * SESSION_TTR_S)
            client.call(NAME, "wanted", session.id, partial(is_stored, client, session.id))
            whim.fails = whim.is_wanted = False
            client.runtime.sleep(2 * limits.SWEEP_EVERY_S)
            client.call(NAME, "unwanted", session.id, partial(is_stored, client, session.id))

    def hold_and_die(client: Client) -> None:
        """Die with sessions that hold tasks; one of them is cursed."""
        q = opened(client)
        client.runtime.sleep(LATE_S)
        sessions = [Session(client.db, ttr=SESSION_TTR_S) for _ in range(HOLDERS)]
        for session in sessions:
            hold(client, q, session)
        cursed = client.random.choice(sessions)
        ids = {session.id: session is cursed for session in sessions}
        client.call(NAME, "die", ids, lambda: None)
        client.db[CURSED + cursed.id] = b""
        client.runtime.scheduler.die(client.runtime.host)

    def survive(client: Client) -> None:
        q = opened(client)
        with Session(client.db, ttr=300) as own:  # from now on this process sweeps
            q.take(client.db, 0, session=own)
            client.runtime.sleep(SESSION_TTR_S + 2 * limits.CLOCK_SKEW_S + 3 * SWEPT_EVERY_S)
            client.call(NAME, "unfinished", own.id, partial(unfinished, client))
            run(client.db, lambda tr: tr.clear_range(CURSED, CURSED + b"\xff" * 17))
            client.runtime.sleep(3 * SESSION_TTR_S)
            client.call(NAME, "unfinished at the end", own.id, partial(unfinished, client))

    play(simulation, size, {"owner-": want, "holder-": hold_and_die}, {"survivor": survive})
    return [exact_statistics(NAME), no_watch_left_behind, *checks(simulation.faults)]


def opened(client: Client) -> TaskQueue:
    CONCERNED.add(client.db)
    return TaskQueue.create(client.db, NAME, if_not_exists=True)


def hold(client: Client, q: TaskQueue, session: Session) -> None:
    q.put(client.db, client.name)
    with suppress(UnknownSession):
        q.take(client.db, 0, session=session)


def is_stored(client: Client, session: bytes) -> bool:
    return client.db[RootKeys(DEFAULT_ROOT).session(session)] is not None


def unfinished(client: Client) -> list[str]:
    """Return the sessions that are not ended to the last step, as texts in order."""
    keys = RootKeys(DEFAULT_ROOT)
    rows = client.db.get_range(keys.beats_due.start, keys.beats_due.stop)
    return sorted(beat[1].hex() for row in rows if (beat := keys.beat_of(row.key)) is not None)


# Checkers.


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (each_dead_session_is_ended, none_is_left_at_the_end)
    if not DELAYING & set(faults.active):
        yield a_wanted_session_stays
    if set(faults.active) <= HARMLESS:
        yield an_unwanted_session_ends


def a_wanted_session_stays(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session stays while it is wanted, and while its `wanted` fails."""
    for op in trace.of(NAME, "wanted"):
        if op.done and not op.result:
            yield f"the session {op.argument.hex()} of {op.client} is wanted, and is over"


def an_unwanted_session_ends(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session ends a moment after it is not wanted any more, though its process lives."""
    for op in trace.of(NAME, "unwanted"):
        if op.done and op.result:
            yield f"the session {op.argument.hex()} of {op.client} is not wanted, and goes on"


def each_dead_session_is_ended(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a dead session that cannot be ended holds up the end of no other."""
    dead = [entry for op in trace.of(NAME, "die") for entry in op.argument.items()]
    cursed = {session.hex() for session, is_cursed in dead if is_cursed}
    for op in trace.of(NAME, "unfinished"):
        for session in sorted(set(op.result or ()) - cursed - {op.argument.hex()}):
            yield f"the dead session {session} is not ended, beside one that cannot be ended"


def none_is_left_at_the_end(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an end that failed is tried again."""
    for op in trace.of(NAME, "unfinished at the end"):
        for session in sorted(set(op.result or ()) - {op.argument.hex()}):
            yield f"the dead session {session} is not ended, though it can be ended"
