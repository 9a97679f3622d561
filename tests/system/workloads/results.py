"""Results: workers that ack, bury and lose tasks, beside calls that wait for the results of these tasks."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NoResult, NotTaken, ResultTimeout, TaskFailed, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.effects import taken
from tests.system.workloads.result_checks import (
    COMMITTED,
    HARMLESS,
    KEPT_S,
    NAME,
    PROMPT_S,
    SHORT_S,
    VALUE,
    Answer,
    acked_by_holders,
    answer_of,
    ends_are_told,
    left,
    one_answer,
    results_are_kept,
    swept_when_over,
    told_at_once,
)
from tests.system.workloads.tasks import outlive


@workload(clients=2, steps=3)
def results(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(VERB_BATCH=2, PAYLOAD_PIECE_BYTES_MAX=random.choice((8, limits.PAYLOAD_PIECE_BYTES_MAX)))
    is_calm = set(simulation.faults.active) <= HARMLESS
    if is_calm:  # a wait that no watch wakes is then late
        simulation.limit(LOOK_EVERY_S=10 * PROMPT_S)
    kind, partitions = random.choice(("fifottl", "utubettl", "fair")), random.choice((1, 1, 3))
    ids: list[str] = []
    result_ttl = random.choice((KEPT_S, KEPT_S, SHORT_S))

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, kind, ttr=2, partitions=partitions, if_not_exists=True)

    def ask(client: Client) -> None:
        q = opened(client)
        for _ in range(2 * size.steps):
            ttl = client.random.choice((None, None, None, 1))
            ids.append(q.put(client.db, "x", ttl=ttl, result_ttl=result_ttl).id)
            wait(client, q, ids[-1], client.random.choice((0, 1, 5)))

    def watch(client: Client) -> None:
        q = opened(client)
        for _ in range(2 * size.steps):
            client.pause(0.5)
            found = [task.id for state in "rt!" for task in q.tasks(client.db, state, 9)]
            if found:
                wait(client, q, client.random.choice(found), client.random.choice((0, 5, 20)))

    def work(client: Client) -> None:
        q = opened(client)
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for step in range(3 * size.steps):
                if (task := taken(client, q, 1, session)) is not None:
                    client.pause(1.0)
                    end(client, q, task, f"{client.name}.{step}")

    def operate(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            client.pause(1.0)
            kick_and_drop(client, q)

    def survive(client: Client) -> None:
        q = opened(client)
        outlive(client, q, lambda client, q, task: end(client, q, task, "survivor"))
        for id_ in ids:
            wait(client, q, id_, 0)
        client.runtime.sleep(SHORT_S + 2 * limits.CLOCK_SKEW_S + 3 * limits.SWEEP_EVERY_S)
        client.call(NAME, "left", result_ttl, lambda: run(client.db, partial(left, q)))

    for number in range(size.clients):
        simulation.client(ask, f"asker-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(watch, "watcher")
    simulation.client(operate, "operator")
    simulation.afterwards(survive, "survivor")
    kept = [results_are_kept, swept_when_over, *([told_at_once] if is_calm else [])]
    return [one_answer, acked_by_holders, ends_are_told, *kept, no_watch_left_behind]


def kick_and_drop(client: Client, q: TaskQueue) -> None:
    """Kick two tasks, and delete or cancel another one."""
    q.kick(client.db, 2)
    found = list(q.tasks(client.db, client.random.choice("rt!"), 3))
    if found:
        verb, id_ = client.random.choice(("delete", "cancel")), found[0].id
        with suppress(TaskNotFound):
            client.call(NAME, verb, id_, partial(getattr(q, verb), client.db, id_))


def wait(client: Client, q: TaskQueue, id_: str, timeout_s: float) -> None:
    def answer() -> Answer:
        try:
            return Answer(VALUE, q.result(client.db, id_, timeout_s))
        except (TaskFailed, NoResult, ResultTimeout) as error:
            return answer_of(error)

    client.call(NAME, "wait", id_, answer, timeout_s=timeout_s)


def end(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
    """Ack the task, or bury or release it, or let its lease end."""
    dice = client.random.random()
    with suppress(NotTaken, TaskNotFound):
        if dice < 0.6:
            ack(client, q, task, tag)
        elif dice < 0.8:
            failure = Failure("Odd", f"{task.attempts} {tag}")
            bury = partial(q.bury, client.db, task, failure=failure)
            client.call(NAME, "bury", (task.id, failure.message), bury)
        elif dice < 0.9:
            q.release(client.db, task)


def ack(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
    """Ack the task. The same transaction writes its result under a key of its own."""
    value = f"{task.attempts} {tag}"

    def body(tr: Transaction) -> None:
        q.ack(tr, task, result=value)
        tr[COMMITTED + task.id.encode()] = value.encode()

    client.call(NAME, "ack", (task.id, value), lambda: run(client.db, body))
