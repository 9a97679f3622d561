"""Sessions with names, taken over from processes that died; sessions that ended without their owner's
knowledge; renewals by leases of the past.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import DELAYING
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.effects import EFFECTS, taken
from tests.system.workloads.takeover_checks import UNKNOWN, checks
from tests.system.workloads.takeover_looks import (
    NAME,
    SESSION_TTR_S,
    Notes,
    beaten,
    left_of,
    seen_lease,
    seen_session,
    stored,
)
from tests.system.workloads.tasks import counted_and_found, finish, outlive

LIVES = 3
LONG_S = 300.0
TTRS_S = (2.0, LONG_S)


@workload(clients=2, steps=3)
def takeover(simulation: Simulation, size: Size) -> Sequence[Checker]:
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
    opened = partial(TaskQueue.create, name=NAME, kind="fifottl", ttr=ttr_s, if_not_exists=True)

    def produce(client: Client) -> None:
        q = opened(client.db)
        for value in values_of(client, 2 * size.steps):
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.pause(1)

    def live(notes: Notes, number: int, client: Client) -> None:
        """Open the session of the process before this one, finish its tasks, and take others."""
        later_s = number * client.random.uniform(0.5, 2) * SESSION_TTR_S
        client.runtime.sleep(client.random.choice((0, later_s, later_s)))
        q = opened(client.db)
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
        q = opened(client.db)
        for notes in all_notes:
            client.call(NAME, "sessions", notes.ended == LIVES, partial(stored, client, notes.sessions))
        client.runtime.sleep(2 * (SESSION_TTR_S + limits.CLOCK_SKEW_S))
        outlive(client, q, finish)
        client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    for number, notes in enumerate(all_notes):
        simulation.client(produce, f"producer-{number}")
        for life in range(LIVES):
            simulation.client(partial(live, notes, life), f"{notes.name}.{life}")
    simulation.afterwards(survive, "survivor")
    return list(checks(simulation.faults, ttr_s == LONG_S))


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
        with suppress(FDBError):  # too slow: the next heartbeat may be in time
            client.call(NAME, "beat", session.id, partial(beaten, session))
    client.call(NAME, "session", session.id, partial(seen_session, client, session))
    client.call(NAME, "sessions", False, partial(stored, client, notes.sessions))
    for task in notes.leases[-3:]:
        with suppress(TaskNotFound):
            client.call(NAME, "renew", task.data, partial(run, client.db, partial(seen_lease, q, task)))
