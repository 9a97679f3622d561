"""Small fleets: machines that die and stall, databases that are away, and a task that kills its process."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import RUN_ENDS, end_session
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Backoff, Bury, Retry
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.failures import BURIED, EXCUSED, EXHAUSTED
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys, id_in, record_of, unpacked
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import checker, cramped, values_of
from tests.system.workloads.stage import Tasks, all_tasks, audit, effects_in, play, put_plain, succeed

ATTEMPTS_MAX = 4
TTR_S = 2.0
TIMEOUT_S = 3.0
SESSION_TTR_S = 3.0
FOR_EVER_US = 2**60
KEYS = RootKeys(DEFAULT_ROOT)
NAME = "jobs"
LOOK = "look at the remaining tasks"
RUN = b"a run" + bytes(11)
PATIENT = "patient"
FAULTY_S, QUIET_S = 30.0, 15.0
RUN_P = 0.5
POISONED, POISON = "poisoned", "poison"
POISON_ATTEMPTS_MAX, POISON_TTR_S, BEGINS_MAX = 3, 3.0, 2
NEVER = ("die", "stall", "slow_reply", "future_version", "version_changed", "clock_skew_s")
"""A process that dies or pauses for another reason loses other attempts."""


@workload(clients=2, steps=4)
def fleet(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Workers on machines that die and stall, and handlers that fail, hang or come too late."""
    cramped(simulation)
    simulation.overtake = limits.WORKER_OVERTAKE
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3, FAILURES_KEPT=3)
    queue = Supervised(NAME, ttr=TTR_S)
    roles = {"producer-": queue.putting(size.steps, 0.5), "worker-": queue.using(work)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), done_once_or_buried, histories_told, run_counted, no_watch_left_behind]


class Supervised(Tasks):
    """A queue that workers of a run use. The supervisor of the run never dies."""

    def __call__(self, client: Client) -> TaskQueue:
        run(client.db, supervise)
        return super().__call__(client)


def work(client: Client, _: TaskQueue) -> None:
    for _life in range(2):
        worker = hired(client, partial(handle, client))
        worker.start()
        client.runtime.sleep(client.random.uniform(1, 8))
        worker.stop(at_once=client.random.random() < 0.3)
        ended(worker)


def survive(client: Client, q: TaskQueue) -> None:
    work_until_empty(hired(client, lambda task: succeed(task)))
    audit(client, q)
    client.call(NAME, LOOK, None, lambda: run(client.db, partial(left, q)))


def supervise(tr: Transaction) -> None:
    """Write the session of the run's supervisor. Its deadline is far away, so that it never dies."""
    tr.set(KEYS.session(RUN), layer.pack((b"supervisor", None, FOR_EVER_US)))
    tr.set(KEYS.heartbeat(RUN), layer.pack((FOR_EVER_US,)))
    tr.set(KEYS.beat_due(FOR_EVER_US, RUN), b"")


def hired(client: Client, handler: Callable[[HeldTask], object]) -> Worker:
    return Worker(
        client.db,
        NAME,
        handler,
        threads=2,
        attempts=ATTEMPTS_MAX,
        backoff=Backoff(first_s=0.2, cap_s=1.0),
        timeout_s=TIMEOUT_S,
        grace_s=2.0,
        session_ttr_s=SESSION_TTR_S,
        run_id=RUN,
    )


def ended(worker: Worker) -> None:
    worker.join()
    if worker.error is not None:
        raise worker.error


def work_until_empty(worker: Worker) -> None:
    worker.start(until_empty=True)
    ended(worker)


def handle(client: Client, task: HeldTask) -> None:
    """Work on a task for some time; then succeed, fail, overrun, or check the lease, by chance."""
    client.runtime.sleep(client.random.choice((0, 0.01, 0.5, 2.5)))
    deeds: list[Callable[[], object]] = [
        partial(succeed, task),
        partial(succeed, task),
        partial(fail, task),
        partial(client.runtime.sleep, 2 * TIMEOUT_S),  # it overruns its timeout
        task.check,
    ]
    client.random.choice(deeds)()
    succeed(task)


def fail(task: HeldTask) -> None:
    raise (ValueError("odd"), Retry(0.1), Bury("never"))[len(task.id + task.data) % 3]


# Checkers.


def left(q: TaskQueue, tr: Any) -> list[tuple[str, int, list[str]]]:
    """Return for each remaining task its data, its number of failed attempts, and its recorded outcomes."""
    found = [record_of(entry.value) for entry in all_tasks(q, tr)]
    under = TaskKeys(q.contents).failures
    owners = {id_in(entry.key[:-1]) for entry in tr.snapshot.get_range(under.start, under.stop)}
    assert owners <= {record.id for record in found}, "failures are left of a task that is gone"
    tasks = [task for state in "rt!~" for task in q.tasks(tr, state, limits.BATCH_ITEMS_MAX)]
    return [(task.data, task.failures, [f.outcome for f in q.failures(tr, task)]) for task in tasks]


def done_once_or_buried(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task either had its effect once, or is buried."""
    effects = effects_in(database)
    buried = {data for look in trace.of(NAME, LOOK) for data, _, _ in look.result or ()}
    for value, count in effects.items():
        if count != 1 or value in buried:
            yield f"{count} effects of {value!r}{', which is buried' if value in buried else ''}"
    for put in trace.of(NAME, "put"):
        if put.done and put.argument not in effects and put.argument not in buried:
            yield f"lost: {put.argument!r}"


def run_counted(_: Trace, database: Database) -> Iterator[str]:
    """Check that the run's counts hold each effect as done, and each remaining task as buried."""
    effects = sum(effects_in(database).values())
    queue = TaskQueue.open(database, NAME)
    found = {"done": effects, "buried": queue.statistics(database)["tasks"]["buried"]}
    counted = unpacked(RUN_ENDS, database[KEYS.run(RUN)])
    if counted | found != counted:
        yield f"the row of the run has {counted}, and there are {found}"


def histories_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each buried task has its failed attempts recorded, the last one with the reason."""
    for look in trace.of(NAME, LOOK):
        for data, failures, outcomes in look.result or ():
            told = [outcome for outcome in outcomes if outcome != EXCUSED]
            forgot = len(outcomes) == limits.FAILURES_KEPT
            if len(told) > failures or (len(told) < failures and not forgot):
                yield f"{data!r} failed {failures} times, and {len(told)} outcomes are recorded"
            if not told or told[-1] not in (BURIED, EXHAUSTED):
                yield f"{data!r} is left, and its last attempt was {told[-1:]}"


# Without these faults: a worker that dies, stalls or has a wrong clock loses a lease itself, and that counts.
@workload(clients=2, steps=4, never=("die", "stall", "clock_skew_s"))
def outages(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Workers with a database that is away for longer than a lease: leases lost then count no attempt."""
    cramped(simulation)
    # A slow transaction of a handler counts as the handler's fault; with this limit, none is slow enough.
    simulation.limit(EFFECT_MAX_S=1000, SWEEP_EVERY_S=1)
    random = simulation.random
    kind = random.choice(("fifo", "fifottl", "fifottl", "utubettl"))
    queue = Tasks(PATIENT, kind, ttr=None if kind == "fifo" else TTR_S)
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
        """End the run of the workers. Their later counts must leave no row behind."""
        run(client.db, supervise)
        supervised.append(RUN)
        client.runtime.sleep(client.random.uniform(0, FAULTY_S))
        end_session(client.db, KEYS, RUN, lambda *_: True, died=False)

    def work(client: Client, _: TaskQueue) -> None:
        # As in a fleet: the end of a worker before the supervisor begins would clear the counts of the run.
        while not supervised:
            client.runtime.sleep(0.1)
        worker = hired_once(client, supervised[0])
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
    play(simulation, size, roles, {"survivor": queue.using(survive_outages)})
    return [exact_statistics(PATIENT), nothing_failed, no_watch_left_behind]


def survive_outages(client: Client, q: TaskQueue) -> None:
    work_until_empty(hired_once(client))
    audit(client, q)
    client.call(PATIENT, "look at the remaining tasks", None, lambda: run(client.db, partial(left, q)))


def operate(client: Client, q: TaskQueue) -> None:
    """Kick buried tasks: a worker may excuse the attempt afterwards."""
    while client.runtime.monotonic() < FAULTY_S:
        client.runtime.sleep(client.random.uniform(0.2, 2))
        q.kick(client.db, 9)


def hired_once(client: Client, run_id: bytes = b"") -> Worker:
    """Return a worker that gives each task one attempt, so that a wrongly counted one shows."""

    def handler(task: HeldTask) -> None:
        client.runtime.sleep(client.random.choice((0, 0.5, 2, 5)))
        succeed(task)

    return Worker(
        client.db,
        PATIENT,
        handler,
        threads=2,
        attempts=1,
        grace_s=30.0,
        session_ttr_s=SESSION_TTR_S,
        run_id=run_id,
        overtake=0,
    )


def nothing_failed(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each task had its effect once, and none is left: a wrongly counted attempt leaves one."""
    effects = effects_in(database)
    for put in trace.of(PATIENT, "put"):
        if put.done and effects.get(put.argument) != 1:
            yield f"{effects.get(put.argument, 0)} effects of {put.argument!r}"
    for look in trace.of(PATIENT, "look at the remaining tasks"):
        for data, failures, outcomes in look.result or ():
            yield f"{data!r} is left after {failures} failures: {outcomes}"


@workload(clients=4, steps=6, never=NEVER)
def poisoned(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A task that kills each process that begins it: harmless ones beside it lose one attempt at most."""
    threads = simulation.random.choice((2, 3, 8))
    simulation.overtake = limits.WORKER_OVERTAKE
    # The queue says the number, or its workers do.
    said = Random(f"{simulation.seed} attempts").choice((POISON_ATTEMPTS_MAX, None))

    def put(client: Client) -> None:
        """Put the poison among the others."""
        q = opened(client, said)
        values = [f"{number}" for number in range(size.steps)]
        values.insert(client.random.randint(0, len(values)), POISON)
        for value in values:
            q.put(client.db, value)

    def work(number: int, client: Client) -> None:
        """One process after the other, each before the tasks of the last one come back, or after that."""
        client.runtime.sleep(number * client.random.choice((0.1, 2 * POISON_TTR_S)))
        work_until_empty(hired_beside(client, partial(handle, client), threads, said))

    def handle(client: Client, task: HeldTask) -> None:
        failed = client.call(POISONED, "begin", (task.data, task.attempts), lambda: task.failures)
        client.runtime.sleep(client.random.choice((0, 0.01, 0.5)))
        if task.data == POISON and failed < POISON_ATTEMPTS_MAX:
            simulation.kill(client.name, client.runtime.scheduler.now)
            client.runtime.sleep(POISON_TTR_S)

    def survive(client: Client) -> None:
        def begin(task: HeldTask) -> None:
            client.call(POISONED, "begin", (task.data, 0), lambda: task.failures)

        work_until_empty(hired_beside(client, begin, 1, said))

    simulation.client(put, "producer")
    for number in range(size.clients):
        simulation.client(partial(work, number), f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    values = {f"{number}" for number in range(size.steps)}
    return [exact_statistics(POISONED), each_has_its_begins(values), no_watch_left_behind]


def opened(client: Client, said: int | None) -> TaskQueue:
    return TaskQueue.create(client.db, POISONED, attempts=said, if_not_exists=True)


def hired_beside(
    client: Client, handler: Callable[[HeldTask], object], threads: int, said: int | None
) -> Worker:
    """`said`: the number of the queue. That of the worker is another one then."""
    return Worker(
        client.db,
        opened(client, said),
        handler,
        threads=threads,
        attempts=POISON_ATTEMPTS_MAX if said is None else 2 * said,
        backoff=Backoff(first_s=0.1),
        session_ttr_s=POISON_TTR_S,
    )


@checker
def each_has_its_begins(trace: Trace, _: Database, values: Iterable[str]) -> Iterator[str]:
    """Make a checker: each other task begins, twice at most, and the poison as often as it has attempts.

    A task that waits in the process to be put off loses its attempt with it, too.
    """
    begun = Counter(op.argument[0] for op in trace.of(POISONED, "begin") if op.done)
    for value in values:
        if not 1 <= begun[value] <= BEGINS_MAX:
            yield f"{value} has begun {begun[value]} times"
    if begun[POISON] > POISON_ATTEMPTS_MAX:
        yield f"the poison has begun {begun[POISON]} times"
