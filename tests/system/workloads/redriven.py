"""Redrives of tasks that fail: begun, run, paused and stopped by several operators."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotBuried, NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.effects import taken
from tests.system.workloads.redrive_checks import (
    EFFECTS,
    NAME,
    audited,
    edits_hold,
    never_twice,
    once_each,
    paced,
    pauses_hold,
)
from tests.system.workloads.redrive_operator import OTHER, step, turn
from tests.system.workloads.tasks import ENOUGH_S, total

ERRORS = ("A", "B", None)


@workload(clients=1, steps=3)
def redriven(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(DUE_BATCH=3, VERB_BATCH=random.choice((1, 3)), PAYLOAD_PIECE_BYTES_MAX=8)
    simulation.limit(RECORD_PAYLOAD_BYTES_MAX=random.choice((0, limits.RECORD_PAYLOAD_BYTES_MAX)))
    kind = random.choice(("fifo", "fifottl", "utube", "fair"))
    other_kind = random.choice(("fifottl", "limfifottl", "utube"))

    def opened(client: Client) -> tuple[TaskQueue, TaskQueue, DeadLetters]:
        q = TaskQueue.create(client.db, NAME, kind, if_not_exists=True)
        capacity = 9 if other_kind == "limfifottl" else None
        other = TaskQueue.create(client.db, OTHER, other_kind, capacity=capacity, if_not_exists=True)
        return q, other, DeadLetters.open(client.db, NAME)

    def produce(client: Client) -> None:
        q, _, _ = opened(client)
        for value in values_of(client, 2 * size.steps):
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.pause(0.2)

    def fail(client: Client) -> None:
        q, _, letters = opened(client)
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for step in range(4 * size.steps):
                bury(client, q, session)
                if client.random.random() < 0.3:
                    edit(client, letters, f"{client.name}.{step}")
                client.pause(0.3)

    def operate(client: Client) -> None:
        q, _, letters = opened(client)
        for _ in range(3 * size.steps):
            turn(client, letters)
            for _ in range(client.random.randint(1, 4)):
                step(client, letters)
                client.pause(0.2)
            if client.random.random() < 0.2:
                client.call(NAME, "audit", None, lambda: run(client.db, partial(audited, q, letters)))
            client.runtime.sleep(client.random.choice((0, 0.2, 1)))

    def survive(client: Client) -> None:
        q, other, letters = opened(client)
        client.call(NAME, "audit", None, lambda: run(client.db, partial(audited, q, letters)))
        until = client.runtime.monotonic() + ENOUGH_S
        while total(q, client.db) + total(other, client.db) and client.runtime.monotonic() < until:
            letters.kick_matching(client.db)
            for queue in (q, other):
                if (task := queue.take(client.db, 0.5)) is not None:
                    finish(client, queue, task)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(fail, f"failer-{number}")
    for number in range(size.clients + 1):
        simulation.client(operate, f"operator-{number}")
    simulation.afterwards(survive, "survivor")
    skew_s = simulation.faults.clock_skew_s
    checks: list[Checker] = [once_each, never_twice, pauses_hold, edits_hold, partial(paced, skew_s=skew_s)]
    return [exact_statistics(NAME), *checks, no_watch_left_behind]


def bury(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, and bury it with a failure or without one, or hold it."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is None or client.random.random() < 0.1:
        return
    error = client.random.choice(ERRORS)
    with suppress(NotTaken):
        q.bury(client.db, task, failure=None if error is None else Failure(error, client.random.choice("xy")))


def edit(client: Client, letters: DeadLetters, tag: str) -> None:
    found = letters.tasks(client.db, 1000)
    if found:
        task, length = client.random.choice(found).task, client.random.randint(1, 30)
        value = str(task.data).partition("+")[0]
        with suppress(NotBuried, TaskNotFound):
            data = f"{value}+{tag}{'.' * length}"
            client.call(NAME, "edit", (value, data), lambda: letters.edit(client.db, task, data).id)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Transaction) -> None:
        q.ack(tr, task)
        value, _, edited = str(task.data).partition("+")
        tr.add(EFFECTS + value.encode(), b"\x01")
        tr[EFFECTS + b"edited/" + value.encode()] = edited.encode()

    with suppress(NotTaken):
        client.call(NAME, "finish", task.data, lambda: run(client.db, body))
