"""A session that several clients open by its name, and leave or die in: it ends with the last of them."""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import (
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

SHARED = "shared"
TTR_S = 5.0


@workload(clients=2, steps=3, never=("stall", "slow_reply", "clock_skew_s"))
def sharing(simulation: Simulation, size: Size) -> Sequence[Checker]:
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


def none_lost(trace: Trace, _: Database) -> Iterator[str]:
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
    none_lost,
    no_name_left,
    no_false_nothing,
]
