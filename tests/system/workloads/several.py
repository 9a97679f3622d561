"""Workers with several queues: each queue is served by its weight, and a stop loses nothing."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.calls.once import run_once
from fdbqueue.core.database import run
from fdbqueue.core.errors import QueueBusy, QueueDropped, QueueNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.fleet import ended
from tests.system.workloads.leftovers import look, nothing_left
from tests.system.workloads.several_checks import (
    CHOOSER_THREADS,
    DOOMED,
    FIRST,
    HARMLESS,
    NAME,
    QUEUES,
    SECOND,
    THREADS,
    WEIGHTS,
    each_has_its_effect,
    each_is_handled_once,
    none_waits_beside_an_idle_thread,
    weights_are_kept,
)
from tests.system.workloads.several_drains import (
    a_stop_ends_promptly,
    nothing_begins_after_a_stop,
    tallies_are_right,
)
from tests.system.workloads.several_failing import (
    ODD,
    a_failing_queue_is_tried_again,
    failing,
    failing_takes_are_few,
)
from tests.system.workloads.several_workers import TTR_S, hired, live
from tests.system.workloads.tasks import counted_and_found, total

BACKLOG = {FIRST: 21, SECOND: 9}
EARLY = 12


# A batch above the bound is refused.
@workload(clients=2, steps=4, wide=("BATCH_BYTES_MAX",))
def several(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    if simulation.random.random() < 0.5:
        simulation.faults = simulation.faults.only(*HARMLESS)

    def produce(client: Client) -> None:
        opened(client, *QUEUES)
        for value in values_of(client, size.steps):
            q = TaskQueue.open(client.db, client.random.choice(QUEUES))
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.runtime.sleep(client.random.choice((0, 0, 0.3, 3)))

    def work(client: Client) -> None:
        for _ in range(2):
            queues = [*opened(client, *QUEUES, DOOMED), failing(client)]
            live(client, hired(client, queues, THREADS))

    def choose(client: Client) -> None:
        """Work on one of two queues while the other is empty, and then on a backlog in both."""
        first, second = opened(client, FIRST, SECOND)
        worker = hired(client, WEIGHTS, threads=CHOOSER_THREADS)
        first.put_many(client.db, [f"early {number}" for number in range(EARLY)])
        worker.start()
        wait_until_empty(client, first)
        run_once(client.db, RootKeys(DEFAULT_ROOT), partial(fill, (first, second)))
        wait_until_empty(client, first)
        wait_until_empty(client, second)
        worker.stop()
        ended(worker)

    def survive(client: Client) -> None:
        queues = opened(client, *QUEUES, FIRST, SECOND, ODD)
        for q in queues[: len(QUEUES)]:
            look(client, NAME, q)
        worker = hired(client, queues, THREADS)
        worker.start(until_empty=True)
        ended(worker)
        for q in queues:
            client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    def drop(client: Client) -> None:
        """Drop a queue of the workers as soon as none of them waits for its tasks, or holds one."""
        (q,) = opened(client, DOOMED)
        q.put_many(client.db, values_of(client, size.steps))
        for _ in range(10 * size.steps):
            client.runtime.sleep(client.random.choice((0, 0.05, 0.3)))
            with suppress(QueueBusy, QueueNotFound, QueueDropped):
                q.drop(client.db)

    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.client(choose, "chooser")
    simulation.client(drop, "dropper")
    simulation.afterwards(survive, "survivor")
    is_calm = set(simulation.faults.active) <= {*HARMLESS}
    checkers = [exact_statistics(NAME), each_has_its_effect, no_watch_left_behind]
    return [*checkers, a_failing_queue_is_tried_again, *(CALM if is_calm else ())]


def opened(client: Client, *names: str) -> list[TaskQueue]:
    return [TaskQueue.create(client.db, name, "fifottl", ttr=TTR_S, if_not_exists=True) for name in names]


def fill(queues: Sequence[TaskQueue], tr: Transaction) -> None:
    for q in queues:
        for number in range(BACKLOG[q.name]):
            q.put(tr, f"{q.name} {number}")


def wait_until_empty(client: Client, q: TaskQueue) -> None:
    while total(q, client.db):
        client.runtime.sleep(0.5)


CALM: tuple[Checker, ...] = (
    weights_are_kept,
    none_waits_beside_an_idle_thread,
    nothing_begins_after_a_stop,
    a_stop_ends_promptly,
    nothing_left(NAME),
    each_is_handled_once,
    tallies_are_right,
    failing_takes_are_few,
)
