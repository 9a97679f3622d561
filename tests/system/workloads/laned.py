"""Laned: as `limited`, but the tasks name their limits, and wait in lanes of two queues."""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.limited_checks import (
    NAMES,
    PROMISES,
    SLOTS,
    STARTS,
    WAIT_S,
    starts_in_bounds,
)
from tests.system.workloads.limited_clients import Opened, start
from tests.system.workloads.limited_wakes import wake_across, wakes_reach_other_queues

KINDS = ("fifottl", "limfifottl")
SETS: Sequence[list[str] | None] = (None, [SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])
PASS = "take behind tasks over their limit"


@workload(clients=2, steps=4)
def laned(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    if random.random() < 0.7:
        simulation.limit(LANES_READ_MAX=random.randint(1, 2), LANES_KEPT=random.randint(0, 1))
    opened = Opened(random, KINDS, lambda: {"task_limits": [SLOTS, STARTS]})

    def produce(client: Client, q: TaskQueue) -> None:
        for _ in range(size.clients * size.steps):
            delay = client.random.choice((0, 0, 0.5))
            q.put(client.db, "x", delay=delay, limits=client.random.choice(SETS))
            client.pause(0.2)

    start(simulation, size, opened, produce, at_end=pass_by, at_last=wake)
    in_bounds = starts_in_bounds(lambda _, task: STARTS in task.limits)
    counted, ends = map(exact_statistics, NAMES), (none_is_held_up, wakes_reach_other_queues)
    return [*counted, *PROMISES, in_bounds, *ends, no_watch_left_behind]


def wake(client: Client, queues: Sequence[TaskQueue]) -> None:
    """Let a slot come back in each queue, and a take wait in the other one."""
    one, other = queues
    wake_across(client, one, other, [SLOTS], per_key=False)
    wake_across(client, other, one, [SLOTS], per_key=False)


def pass_by(client: Client, q: TaskQueue) -> None:
    """Take a task that names no limit, behind tasks over theirs."""
    db = client.db
    Limit.set(db, SLOTS, slots=1)
    q.truncate(db)
    with Session(db, ttr=1e6) as session:
        q.put_many(db, ["x", "x", "x"], limits=[SLOTS], ttr=1e6)
        q.take(db, 0, session=session)  # it holds the slot
        q.put(db, "free")
        client.call(q.name, PASS, None, partial(q.take, db, WAIT_S, session=session))
        q.truncate(db)


def none_is_held_up(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task without limits starts beside tasks that are over theirs."""
    for name in NAMES:
        for op in trace.of(name, PASS):
            if op.done and op.result is None:
                yield f"a task of {name!r} names no limit, and no take got it for {WAIT_S:g} s"
