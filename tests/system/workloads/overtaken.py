"""Takes that may leave older tasks or items behind: never more than they may, and none for ever."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, never_nothing, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.audit.rules import TAKE
from tests.system.workloads.common import (
    Items,
    audit,
    checks,
    cramped,
    dequeue,
    drain,
    draw_limits,
    lacks,
)
from tests.system.workloads.refilled import hired
from tests.system.workloads.stage import Tasks, by_chance, nothing_left, play, put_plain, threaded

TASKS, ITEMS = "overtaken", "overtaken-items"
ENDS = ("ack", "ack", "ack", "release", "bury", "leave")


def overtaking(simulation: Simulation) -> int:
    """Let the takes of a run leave a few behind, soon and far, and go to the line early or late."""
    cramped(simulation)
    draw_limits(
        simulation,
        simulation.random,
        OVERTAKE_FIRST=(1, 4),
        OVERTAKING_ATTEMPTS_MAX=(1, limits.OVERTAKING_ATTEMPTS_MAX),
        LINE_TIDIED_EVERY_S=(limits.LINE_TIDIED_EVERY_S, 1e6),
    )
    simulation.overtake = simulation.random.choice((1, 2, 4))
    return simulation.overtake


@workload(clients=3, steps=6)
def overtaken(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Consumers that may overtake, beside strict ones that wait, and workers."""
    most = overtaking(simulation)
    has_priorities = simulation.random.random() < 0.5
    queue = Tasks(TASKS, "fifottl", ttr=2.0) if has_priorities else Tasks(TASKS, "fifo")

    def put(client: Client, q: TaskQueue, value: str) -> None:
        put_plain(client, q, value)
        if client.random.random() < 0.5:
            pri = client.random.choice((None, 3)) if has_priorities else None
            values = [f"{value}.{number}" for number in range(3)]
            client.call(TASKS, "put many", values, partial(q.put_many, client.db, values, pri=pri))

    def take(client: Client, q: TaskQueue) -> None:
        overtake, count = client.random.choice((0, 1, most)), client.random.choice((1, 1, 3))
        timeout_s = client.random.choice((0, 0, 1))
        take_many = partial(q.take_many, client.db, count, timeout_s, overtake=overtake)
        for task in client.call(TASKS, TAKE, None, take_many, timeout_s=timeout_s):
            by_chance(client, q, task, ENDS)

    def work(client: Client, _: TaskQueue) -> None:
        worker = hired(client, 2, TASKS, most)
        worker.start()
        client.runtime.sleep(client.random.uniform(1, 5))
        worker.stop()
        worker.join()

    roles = {
        "producer-": queue.putting(size.steps, 0.2, put),
        "consumer-": threaded(dict.fromkeys("ab", queue.repeating(size.steps, take, 0.01))),
        "worker": queue.using(work),
    }
    survivor = queue.outliving(lambda client, q, task: q.ack(client.db, task))
    play(simulation, size, roles, {"survivor": survivor})
    return [exact_statistics(TASKS), nothing_left(TASKS), no_watch_left_behind]


@workload(clients=3, steps=6)
def overtaken_items(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `overtaken`, with items: no value is lost, taken twice, or left behind by too many."""
    most, items = overtaking(simulation), Items(ITEMS)
    # An item may lie ready for a call that has just given up its wait; others are told of nothing then.
    timeouts_s = simulation.random.choice(((0,), (0, 0, 1)))

    def take(client: Client, q: Queue) -> None:
        overtake, count = client.random.choice((0, 1, most)), client.random.choice((1, 1, 3))
        if count == 1:
            dequeue(client, q, ITEMS, client.random.choice(timeouts_s), overtake=overtake)
            return
        dequeue_many = partial(q.dequeue_many, client.db, count, overtake=overtake)
        client.call(ITEMS, "dequeue", count, dequeue_many)

    roles = {
        "producer-": items.putting(2 * size.steps, 0.05),
        "consumer-": threaded(dict.fromkeys("ab", items.repeating(size.steps, take, 0.01))),
        "auditor": items.repeating(size.steps, partial(audit, name=ITEMS), 0.1),
    }
    play(simulation, size, roles, {"survivor": drain(ITEMS)})
    more = [never_nothing(ITEMS)] if lacks(simulation, "die", "stall") and not any(timeouts_s) else []
    return [*checks(ITEMS), *more]
