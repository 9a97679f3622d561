"""Workers with a database that is away for longer than a lease: leases lost then count no attempt."""

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from fdbqueue.core.database import Database, run
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.fleet import KEYS, RUN, ended, left, supervise, work_until_empty
from tests.system.workloads.stage import Tasks, audit, effects_in, play, put_plain, succeed

NAME = "patient"
TTR_S = 2.0
SESSION_TTR_S = 3.0
FAULTY_S, QUIET_S = 30.0, 15.0
RUN_P = 0.5


# Without these faults: a worker that dies, stalls or has a wrong clock loses a lease itself, and that counts.
@workload(clients=2, steps=4, never=("die", "stall", "clock_skew_s"))
def outages(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    # A slow transaction of a handler counts as the handler's fault; with this limit, none is slow enough.
    simulation.limit(EFFECT_MAX_S=1000, SWEEP_EVERY_S=1)
    random = simulation.random
    kind = random.choice(("fifo", "fifottl", "fifottl", "utubettl"))
    queue = Tasks(NAME, kind, ttr=None if kind == "fifo" else TTR_S)
    # From other dice, so that all else of a seed is as it would be without.
    has_run = Random(f"{simulation.seed} run").random() < RUN_P
    supervised: list[bytes] = [] if has_run else [b""]
    for start_s in (random.uniform(0.1, 4), random.uniform(14, 18)):
        simulation.outage(start_s, random.choice((0.5, 1.5, 3, 5)) * TTR_S)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, size.steps):
            put_plain(client, q, value, key=client.name if kind == "utubettl" else None)
            client.runtime.sleep(client.random.uniform(0, 5))

    def supervise_for_a_while(client: Client) -> None:
        """End the run of the workers: what they count later must leave no row behind."""
        run(client.db, supervise)
        supervised.append(RUN)
        client.runtime.sleep(client.random.uniform(0, FAULTY_S))
        end_session(client.db, KEYS, RUN, lambda *_: True, died=False)

    def work(client: Client, _: TaskQueue) -> None:
        # As in a fleet: the end of a worker before the supervisor begins would clear the counts of the run.
        while not supervised:
            client.runtime.sleep(0.1)
        worker = hired(client, supervised[0])
        worker.start()
        client.runtime.sleep(FAULTY_S)
        client.calm()  # a worker can give tasks back at its end only if the database answers
        client.runtime.sleep(QUIET_S)
        worker.stop()
        ended(worker)

    roles = {
        "producer-": queue.using(produce),
        "worker-": queue.using(work),
        **({"operator": queue.using(operate)} if random.random() < 0.3 else {}),
        **({"supervisor": supervise_for_a_while} if has_run else {}),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), nothing_failed, no_watch_left_behind]


def survive(client: Client, q: TaskQueue) -> None:
    work_until_empty(hired(client))
    audit(client, q)
    client.call(NAME, "look at the remaining tasks", None, lambda: run(client.db, partial(left, q)))


def operate(client: Client, q: TaskQueue) -> None:
    """Kick buried tasks: a worker may excuse the attempt afterwards."""
    while client.runtime.monotonic() < FAULTY_S:
        client.runtime.sleep(client.random.uniform(0.2, 2))
        q.kick(client.db, 9)


def hired(client: Client, run_id: bytes = b"") -> Worker:
    """Return a worker that gives each task one attempt, so that a wrongly counted one shows."""

    def handler(task: HeldTask) -> None:
        client.runtime.sleep(client.random.choice((0, 0.5, 2, 5)))
        succeed(task)

    return Worker(
        client.db,
        NAME,
        handler,
        threads=2,
        max_attempts=1,
        grace_s=30.0,
        session_ttr_s=SESSION_TTR_S,
        run_id=run_id,
    )


def nothing_failed(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each task had its effect once, and none is left: a wrongly counted attempt leaves one."""
    effects = effects_in(database)
    for put in trace.of(NAME, "put"):
        if put.done and effects.get(put.argument) != 1:
            yield f"{effects.get(put.argument, 0)} effects of {put.argument!r}"
    for look in trace.of(NAME, "look at the remaining tasks"):
        for data, failures, outcomes in look.result or ():
            yield f"{data!r} is left after {failures} failures: {outcomes}"
