"""Sessions with names: taken over from processes that died, and shared by several openers."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.engine import DELAYING, Faults
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import checker, cramped
from tests.system.workloads.stage import (
    EFFECTS,
    Tasks,
    audit,
    once_each,
    outlive,
    play,
    put_plain,
    taken,
    total,
)
from tests.system.workloads.tasks import NAME, finish

LIVES = 3
LONG_S = 300.0
TTRS_S = (2.0, LONG_S)
SESSION_TTR_S = 6.0
UNKNOWN = {"unknown_done", "unknown_not_done", "unknown_after_conflict"}
OF_SESSIONS = {
    columns.SESSION,
    columns.SESSION_NAME,
    columns.HEARTBEAT,
    columns.BEAT_DUE,
    columns.PRESENCE,
    columns.MEMBERSHIP,
}
SHARED = "shared"
TTR_S = 5.0


@workload(clients=2, steps=3)
def takeover(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Sessions with names, taken over from processes that died; sessions that ended without their owner's
    knowledge; renewals by leases of the past.
    """
    cramped(simulation)
    # With one beat in a ttr, each heartbeat comes at the moment at which others may end the session.
    simulation.limit(
        VERB_BATCH=1, TAKEN_READ_MAX=2, BEATS_PER_TTR=simulation.random.choice((1, limits.BEATS_PER_TTR))
    )
    ttr_s = simulation.random.choice(TTRS_S)
    if simulation.random.random() < 0.5:
        unwanted = simulation.random.choice((DELAYING, DELAYING - UNKNOWN))
        simulation.faults = simulation.faults.without(*unwanted)
    all_notes = [Notes(f"worker-{number}") for number in range(size.clients)]
    queue = Tasks(NAME, ttr=ttr_s)  # the checkers of the workload `tasks` hold here too

    def live(notes: Notes, number: int, client: Client) -> None:
        """Open the session of the process before this one, finish its tasks, and take others."""
        later_s = number * client.random.uniform(0.5, 2) * SESSION_TTR_S
        client.runtime.sleep(client.random.choice((0, later_s, later_s)))
        q = queue(client)
        with suppress(UnknownSession):
            session = client.call(NAME, "open", notes.name, partial(reopened, client, notes))
            notes.sessions.append(session.id)
            for id_ in list(notes.tasks):
                go_on(client, q, session, notes, id_)
            for _ in range(size.steps):
                work(client, q, session, notes)
            client.call(NAME, "end", session.id, session.end)
            client.call(NAME, "left", session.id, partial(left_of, client, q, session.id))
            notes.ended += 1

    def survive(client: Client) -> None:
        q = queue(client)
        for notes in all_notes:
            client.call(NAME, "sessions", notes.ended == LIVES, partial(stored, client, notes.sessions))
        client.runtime.sleep(2 * (SESSION_TTR_S + limits.CLOCK_SKEW_S))
        outlive(client, q, finish)
        audit(client, q)

    for number, notes in enumerate(all_notes):
        simulation.client(queue.putting(2 * size.steps, 1), f"producer-{number}")
        for life in range(LIVES):
            simulation.client(partial(live, notes, life), f"{notes.name}.{life}")
    simulation.afterwards(survive, "survivor")
    return list(checks(simulation.faults, ttr_s == LONG_S))


# Looks.


class Notes:
    """The file in which the processes of one name note their tasks: it outlives them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: dict[str, str] = {}
        self.leases: list[Task] = []
        self.sessions: list[bytes] = []
        self.ended = 0
        """The number of processes that have ended the session."""
        self.died_s = float("-inf")

    def is_fresh(self, client: Client) -> bool:
        """True if the session of a process that has died cannot be over yet."""
        return client.runtime.monotonic() - self.died_s < SESSION_TTR_S / 2


def reopened(client: Client, notes: Notes) -> Session:
    return Session(client.db, notes.name, ttr=SESSION_TTR_S, must_exist=notes.is_fresh(client))


def go_on(client: Client, q: TaskQueue, session: Session, notes: Notes, id_: str) -> None:
    """Finish a task that an earlier process has taken, by its id, unless another process of the name does."""
    value = notes.tasks.pop(id_, None)
    if value is None:
        return
    key = EFFECTS + value.encode()

    def body(tr: Transaction) -> bool:
        try:
            q.ack(tr, id_, session=session)
        except NotTaken:
            return False
        tr.add(key, b"\x01")
        return True

    client.call(NAME, "go on", (value, notes.is_fresh(client)), partial(run, client.db, body))


def work(client: Client, q: TaskQueue, session: Session, notes: Notes) -> None:
    """Take a task and finish it, or die with it; a process that is slow may have lost its session."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is not None:
        notes.tasks[task.id] = task.data
        notes.leases.append(task)
        client.pause(client.random.choice((0.5, SESSION_TTR_S)))
    look(client, q, session, notes)
    if client.random.random() < 0.2:
        notes.died_s = client.runtime.monotonic()
        client.runtime.scheduler.die(client.runtime.host)
    if task is not None and client.random.random() < 0.7 and task.id in notes.tasks:
        del notes.tasks[task.id]
        finish(client, q, task)


def look(client: Client, q: TaskQueue, session: Session, notes: Notes) -> None:
    if client.random.random() < 0.5:
        with suppress(*engine_errors()):  # too slow: the next heartbeat may be in time
            client.call(NAME, "beat", session.id, partial(beaten, session))
    client.call(NAME, "session", session.id, partial(seen_session, client, session))
    client.call(NAME, "sessions", False, partial(stored, client, notes.sessions))
    for task in notes.leases[-3:]:
        with suppress(TaskNotFound):
            client.call(NAME, "renew", task.data, partial(run, client.db, partial(seen_lease, q, task)))


class Lease(NamedTuple):
    """A renewal of a lease that may be over: the task before and after it, and the answer."""

    is_held: bool
    is_renewed: bool
    before: Task
    after: Task


def stored(client: Client, sessions: Sequence[bytes]) -> dict[bytes, bool]:
    keys = RootKeys(DEFAULT_ROOT)
    return {id_: client.db.get(keys.session(id_)) is not None for id_ in sessions}


def left_of(client: Client, q: TaskQueue, session: bytes) -> tuple[bool, int]:
    """Return if a session is stored, and the number of tasks that it holds, both at one version."""
    keys = RootKeys(DEFAULT_ROOT)

    def body(tr: Transaction) -> tuple[bool, int]:
        taken = q.tasks(tr, TaskState.TAKEN, 1_000)
        return tr.get(keys.session(session)).present(), sum(task.session == session.hex() for task in taken)

    return run(client.db, body)


def seen_session(client: Client, session: Session) -> tuple[bool, bool]:
    """Return if a session counts as lost here, and if it is stored."""
    return session.lost, stored(client, [session.id])[session.id]


def beaten(session: Session) -> bool:
    """Renew the heartbeat; return if the session counts as lost then."""
    session.beat()
    return session.lost


def seen_lease(q: TaskQueue, task: Task, tr: Transaction) -> Lease:
    """Raises TaskNotFound."""
    before = q.peek(tr, task)
    is_renewed = task.id in q.renew(tr, [task])
    is_held = before.state == TaskState.TAKEN and before.token == task.token
    return Lease(is_held, is_renewed, before, q.peek(tr, task))


# Checkers.


def checks(faults: Faults, has_long_leases: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with these faults."""
    yield from (exact_statistics(NAME), partial(once_each, NAME), no_watch_left_behind, no_session_left)
    yield from (lost_is_true, an_old_lease_renews_nothing, none_comes_back)
    yield beats_hold(SESSION_TTR_S - faults.clock_skew_s)
    if limits.BEATS_PER_TTR > 1 and not DELAYING - UNKNOWN & set(faults.active):
        yield ended_in_whole
    if not DELAYING & set(faults.active):
        yield ended_at_once
        if limits.BEATS_PER_TTR > 1:
            yield none_lost
            if has_long_leases:
                yield each_goes_on


def no_session_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that no key is left of a session that is over: it was ended, or all of its processes are dead."""
    keys = RootKeys(DEFAULT_ROOT)
    for entry in database.get_range_startswith(DEFAULT_ROOT.key()):
        if keys.shape_of(entry.key)[0] in OF_SESSIONS:
            yield f"left of a session: {entry.key!r} = {entry.value!r}"


def lost_is_true(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session that counts as lost is over."""
    for op in trace.of(NAME, "session"):
        if op.result == (True, True):
            yield f"{op.client} takes its session for lost, and it is stored"


def none_comes_back(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session that is over stays over, and that its owner learns of it by a heartbeat."""
    over: dict[bytes, Operation] = {}
    for op in (op for op in trace.of(NAME, "sessions", "beat") if op.done):
        seen = op.result if op.name == "sessions" else {op.argument: not op.result}
        for session, is_stored in seen.items():
            if not is_stored:
                over.setdefault(session, op)
            elif session in over and over[session].before(op):
                yield f"the session {session.hex()} was over, and {op.client} finds it alive"


@checker
def beats_hold(trace: Trace, _: Database, ttr_s: float) -> Iterator[str]:
    """Check that a session lives for `ttr_s` after a heartbeat that was in time."""
    beaten_s: dict[tuple[str, bytes], float] = {}
    for op in (op for op in trace.of(NAME, "beat", "session") if op.done):
        at = op.client, op.argument
        if op.name == "beat" and not op.result:
            beaten_s[at] = op.began_s
        elif op.name == "session" and op.result == (op.result[0], False):
            age_s = (op.ended_s or 0) - beaten_s.get(at, float("-inf"))
            if age_s < ttr_s:
                yield f"{op.client} has lost its session {age_s:.1f} s after a heartbeat"


def ended_in_whole(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session holds nothing once a call has ended it, unless another opener is ending it."""
    for op in trace.of(NAME, "left"):
        ends = [end for end in trace.of(NAME, "end") if end.argument == op.argument]
        is_going_on = any(not end.before(op) and not op.before(end) for end in ends)
        if op.done and op.result[1] and not op.result[0] and not is_going_on:
            yield f"{op.client} has ended the session {op.argument.hex()}, which holds {op.result[1]} tasks"


def ended_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a session is over as soon as all of its processes have ended it."""
    for op in trace.of(NAME, "sessions"):
        if op.argument and any(op.result.values()):
            yield f"all processes have ended their sessions, and one goes on: {op.result}"


def none_lost(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no live process loses its session, and each that comes in time finds it."""
    for op in trace.of(NAME, "session", "open"):
        if op.error is not None or op.result in ((True, False), (False, False)):
            yield f"{op.client} has lost its session, though it is alive: {op.error or op.result}"


def an_old_lease_renews_nothing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a renewal by an old lease gives nothing, and leaves the task as it was."""
    for op in trace.of(NAME, "renew"):
        if op.done and not op.result.is_held and (op.result.is_renewed or changed(op.result)):
            yield f"{op.client} has renewed {op.argument!r} by an old lease: {op.result.after}"


def changed(lease: Lease) -> bool:
    """True if the lease in between is another one now. (A peek shows a lease that is over as ended.)"""
    return lease.after.state == TaskState.TAKEN and lease.before != lease.after


def each_goes_on(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a process finishes the tasks of the one before it, if that died a moment ago."""
    for op in trace.of(NAME, "go on"):
        value, is_fresh = op.argument
        if op.done and is_fresh and not op.result:
            yield f"{op.client} has lost {value!r}, which an earlier process of its session had taken"


@workload(clients=2, steps=3, never=("stall", "slow_reply", "clock_skew_s"))
def sharing(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A session that several clients open by its name, and leave or die in: it ends with the last of them."""
    cramped(simulation)
    queue = Tasks(NAME, ttr=2)  # the checkers of the workload `tasks` hold here too
    work = queue.using(partial(work_in_two, steps=size.steps))
    roles = {
        "producer-": queue.putting(size.steps, 1, partial(put_plain, ttr=300)),
        "worker-": work,
        "another-": work,
    }
    play(simulation, size, roles, {"survivor": survive})
    return CHECKS


def work_in_two(client: Client, q: TaskQueue, steps: int) -> None:
    """Open the session twice, one after the other."""
    for _ in range(2):
        session = Session(client.db, SHARED, ttr=client.random.choice((TTR_S, 2 * TTR_S)))
        try:
            several(client, q, session, steps)
        except UnknownSession:
            client.call(NAME, "lost", session.id, lambda: None)
        session.end()
        client.pause(1)


def survive(client: Client) -> None:
    client.runtime.sleep(3 * TTR_S)  # meanwhile no process ends the dead sessions
    q = Tasks(NAME, ttr=2)(client)
    first = client.call(NAME, "first take", total(q, client.db), lambda: q.take(client.db, 0))
    if first is not None:
        finish(client, q, first)
    outlive(client, q, finish)
    audit(client, q)
    client.runtime.sleep(2 * limits.SESSIONS_SWEPT_EVERY_S)


def several(client: Client, q: TaskQueue, session: Session, steps: int) -> None:
    """Take a task, work on it for longer than a ttr, and finish it: the session must still be alive."""
    for _ in range(steps):
        task = taken(client, q, client.random.choice((0, 2)), session)
        client.pause(client.random.choice((0.5, TTR_S, 3 * TTR_S)))
        if task is not None:
            finish(client, q, task)
        session.beat_if_due()
        if session.lost:
            raise UnknownSession(session=session.id.hex())


def no_false_nothing(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the first take of a process finds a task that only dead sessions hold."""
    for op in trace.of(NAME, "first take"):
        if op.done and op.argument and op.result is None:
            yield f"nothing to take, with {op.argument} tasks held by dead sessions"


def no_opener_loses_it(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no live opener loses the session when others open it, end or die."""
    yield from (f"{op.client} lost the session that it had opened" for op in trace.of(NAME, "lost"))


def no_name_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that the session's name ends with the session."""
    keys = RootKeys(DEFAULT_ROOT)
    if database[keys.session_named(SHARED)] is not None:
        yield "the shared session outlives its openers"


CHECKS: Sequence[Checker] = [
    exact_statistics(NAME),
    partial(once_each, NAME),
    no_watch_left_behind,
    no_opener_loses_it,
    no_name_left,
    no_false_nothing,
]


AHEAD_S = (0.0, 60.0, 3_600.0)


@workload(clients=3, steps=3, never=("die", "clock_skew_s", *sorted(DELAYING)))
def skewed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Sessions of processes with clocks that are up to an hour apart, and are set in between."""
    cramped(simulation)
    simulation.limit(REQUEST_DEADLINE_S=2 * AHEAD_S[-1])  # a request in the line has no hold
    queue = Tasks(NAME)

    def hold(client: Client) -> None:
        """Hold tasks for longer than a ttr, in a session of its own and in one that others share."""
        q, choice = queue(client), client.random.choice
        client.runtime.skew_s = choice(AHEAD_S)
        sessions = [Session(client.db, name, SESSION_TTR_S) for name in (None, SHARED)]
        for _ in range(size.steps):
            task = taken(client, q, 0, choice(sessions))
            client.pause(choice((0.5, 2)) * SESSION_TTR_S)
            client.runtime.skew_s = choice(AHEAD_S)
            client.pause(SESSION_TTR_S)
            for session in sessions:
                client.call(NAME, "session", session.id, partial(seen_session, client, session))
            if task is not None:
                finish(client, q, task)
        for session in sessions:
            session.end()

    def hold_and_die(client: Client) -> None:
        client.runtime.sleep(1)  # a take that waits in the line would be dropped by a clock that is ahead
        taken(client, queue(client), 0, Session(client.db, ttr=SESSION_TTR_S))
        client.runtime.scheduler.die(client.runtime.host)

    def survive_all(client: Client) -> None:
        client.runtime.sleep(2 * SESSION_TTR_S)
        q = queue(client)
        outlive(client, q, finish)
        audit(client, q)

    simulation.client(hold_and_die, "dead")
    roles = {"producer-": queue.putting(size.steps, 1), "holder-": hold}
    play(simulation, size, roles, {"survivor": survive_all})
    return [exact_statistics(NAME), partial(once_each, NAME), none_lost]
