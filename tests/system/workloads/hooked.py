"""Workers with transactional handlers and hooks: tasks move on with their acks, events follow commits."""

from collections.abc import Callable, Sequence
from functools import partial

from fdbqueue.core.database import run
from fdbqueue.core.seam import Transaction
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.hooks import Hooks
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.fleet import ended
from tests.system.workloads.hooked_checks import DONE, END, NAME, SECOND, checks
from tests.system.workloads.hooked_deeds import TIMEOUT_S, Log, handle, hooks, mark
from tests.system.workloads.tasks import counted_and_found

TTR_S = 2.0
SESSION_TTR_S = 3.0
LIVES = 2


@workload(clients=2, steps=4)
def hooked(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    timeout_s = simulation.random.choice((None, TIMEOUT_S))

    def produce(client: Client) -> None:
        first, _ = opened(client)
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(first.put, client.db, value))
            client.pause(0.5)

    def work(client: Client) -> None:
        for _ in range(LIVES):
            first, second = opened(client)
            log = Log()
            worker = Worker(
                client.db,
                first,
                partial(handle, client, first, second),
                hooks=hooks(client, log),
                transactional=True,
                threads=2,
                max_attempts=4,
                backoff=Backoff(first_s=0.2, cap_s=1.0),
                timeout_s=timeout_s,
                grace_s=5.0,
                session_ttr_s=SESSION_TTR_S,
            )
            worker.start()
            client.runtime.sleep(client.random.uniform(1, 8))
            at_once = client.random.random() < 0.2
            worker.stop(at_once=at_once)
            ended(worker)
            client.call(NAME, "tally", at_once, partial(told_and_tallied, log, worker))

    def survive(client: Client) -> None:
        first, second = opened(client)
        first.kick(client.db, 1_000)
        finish(client, first, partial(pass_on, second), hooks(client, Log()))
        finish(client, second, partial(mark, END), Hooks())
        for q in (first, second):
            client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return [exact_statistics(NAME), no_watch_left_behind, *checks(simulation.faults)]


def told_and_tallied(log: Log, worker: Worker) -> tuple[Log, Tally]:
    return Log(log), worker.status().tally


def opened(client: Client) -> tuple[TaskQueue, TaskQueue]:
    first, second = (
        TaskQueue.create(client.db, name, "fifottl", ttr=TTR_S, if_not_exists=True) for name in (NAME, SECOND)
    )
    return first, second


def pass_on(second: TaskQueue, tr: Transaction, task: HeldTask) -> None:
    second.put(tr, task.data)
    mark(DONE, tr, task)


def finish(client: Client, q: TaskQueue, handler: Callable[..., object], hooks: Hooks) -> None:
    worker = Worker(
        client.db,
        q,
        handler,
        hooks=hooks,
        transactional=True,
        max_attempts=None,
        session_ttr_s=SESSION_TTR_S,
    )
    worker.start(until_empty=True)
    ended(worker)
