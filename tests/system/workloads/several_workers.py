"""The workers of the workload `several`, and their handler."""

from functools import partial

from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Queues
from fdbqueue.fleet.worker import Worker
from fdbqueue.testing.simulation import Client
from tests.system.workloads.effects import Handled, succeed
from tests.system.workloads.fleet import ended
from tests.system.workloads.several_checks import GRACE_S, LIVES_S, NAME

TTR_S = 2.0
SESSION_TTR_S = 3.0


def hired(client: Client, queues: Queues, threads: int) -> Worker:
    return Worker(
        client.db,
        queues,
        partial(handle, client),
        threads=threads,
        max_attempts=None,
        grace_s=GRACE_S,
        session_ttr_s=SESSION_TTR_S,
    )


def handle(client: Client, task: HeldTask) -> None:
    seconds = client.random.choice((0, 0, 0.05, 0.5, 1.5 * TTR_S))
    handled = Handled(client.name, task.queue, task.data)
    client.call(NAME, "handle", handled, partial(client.runtime.sleep, seconds))
    succeed(task)


def live(client: Client, worker: Worker) -> None:
    """Let the worker work for a while, stop it, and wait for its end."""
    client.call(NAME, "start", None, worker.start)
    client.runtime.sleep(client.random.choice(LIVES_S))
    at_once = client.random.random() < 0.3
    client.call(NAME, "stop", at_once, partial(worker.stop, at_once=at_once))
    client.call(NAME, "join", at_once, partial(successes, worker))


def successes(worker: Worker) -> int:
    """Wait for the end of the worker, and return the number of tasks that it has done."""
    ended(worker)
    return worker.status().tally.done
