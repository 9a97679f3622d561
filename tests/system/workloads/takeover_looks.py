"""The looks of the workload `takeover`: its processes compare sessions and leases with the database."""

from collections.abc import Sequence
from typing import NamedTuple

from fdbqueue.core.database import run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads import tasks

NAME = tasks.NAME  # the checkers of the workload `tasks` hold here too
SESSION_TTR_S = 6.0


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


class Lease(NamedTuple):
    """A renewal of a lease that may be over: the task before and after it, and the answer."""

    is_held: bool
    is_renewed: bool
    before: Task
    after: Task


def stored(client: Client, sessions: Sequence[bytes]) -> dict[bytes, bool]:
    """Return for each session whether it is stored."""
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
