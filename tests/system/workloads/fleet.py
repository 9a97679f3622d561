"""A small fleet: workers on machines that die and stall, and handlers that fail, hang or come too late."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runs import ENDS
from fdbqueue.core.seam import Transaction
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Backoff, Bury, Retry
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.failures import BURIED, EXCUSED, EXHAUSTED
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys, id_in, record_of
from fdbqueue.tasks.records.statistics import unpacked
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, all_tasks, audit, effects_in, play, succeed

ATTEMPTS_MAX = 4
TTR_S = 2.0
TIMEOUT_S = 3.0
SESSION_TTR_S = 3.0
FOR_EVER_US = 2**60
KEYS = RootKeys(DEFAULT_ROOT)
NAME = "jobs"
LOOK = "look at the remaining tasks"
RUN = b"a run" + bytes(11)


@workload(clients=2, steps=4)
def fleet(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3, FAILURES_KEPT=3)
    queue = Supervised(NAME, ttr=TTR_S)
    roles = {"producer-": queue.putting(size.steps, 0.5), "worker-": queue.using(work)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), done_once_or_buried, histories_told, run_counted, no_watch_left_behind]


class Supervised(Tasks):
    """A queue with a run whose supervisor lives for ever."""

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
        max_attempts=ATTEMPTS_MAX,
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
    counted = unpacked(ENDS, database[KEYS.run(RUN)])
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
