"""A fair queue that charges run times: keys with long and with short tasks share the workers.

Two keys have ready tasks at each take. The run times of both are compared at the end.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.charged import debt_of
from fdbqueue.tasks.stored.keyed import DEBT
from fdbqueue.tasks.stored.records import HANDED_OFF, TaskKeys, record_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import VERBS, Tasks, all_tasks, audit, play

NAME = "charged"
RUNS_S = {"long": 2.0, "short": 0.2}
TTR_S, SESSION_TTR_S = 5.0, 6.0
ENDS = (*["ack"] * 8, "release", "put off", "bury", "delete", "hand off", "leave")


class Ran(NamedTuple):
    """A run, from its take to its end, by the clock of its process."""

    key: str
    began_s: float
    ended_s: float
    is_charged: bool
    """False if the end came too late, or may not have been committed."""


@workload(clients=2, steps=15, never=("clock_skew_s",))
def charged(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DEBTS_SWEPT_EVERY_S=1.0)
    queue = Tasks(NAME, "fair", charge="time", ttr=TTR_S)

    def work(client: Client, q: TaskQueue) -> None:
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=SESSION_TTR_S) as session:
                for _ in range(size.steps):
                    run(client.db, partial(put_both, q))
                    hold(client, q, session)

    roles = {"worker-": queue.using(work), "auditor": queue.repeating(size.steps, look, 0.5)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [
        exact_statistics(NAME),
        runs_are_counted,
        partial(time_is_shared, size.clients),
        no_watch_left_behind,
    ]


def put_both(q: TaskQueue, tr: Any) -> None:
    """Each take comes after one, so both keys have ready tasks at each take."""
    for key in RUNS_S:
        q.put(tr, key, key=key)


def hold(client: Client, q: TaskQueue, session: Session) -> None:
    def body() -> Ran | None:
        task = q.take(client.db, 1, session=session)
        if task is None or task.taken is None:
            return None
        client.runtime.sleep(RUNS_S[task.key])
        verb, is_charged = client.random.choice(ENDS), True
        try:
            if verb == "hand off":
                q.hand_off(client.db, task, 1)
            else:
                VERBS[verb](q, client.db, task, 0.5)
        except (NotTaken, TaskNotFound):
            is_charged = False
        is_charged = is_charged and verb != "leave"
        return Ran(task.key, task.taken, client.runtime.now(), is_charged)

    client.call(NAME, "run", None, body)


def look(client: Client, q: TaskQueue) -> None:
    client.call(NAME, "debts", None, partial(run, client.db, partial(debts_and_runs, q)))


def debts_and_runs(q: TaskQueue, tr: Any) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """The number of running tasks by task key, as the debts have it, and as the tasks are."""
    under = TaskKeys(q.contents).beside + bytes((DEBT,))
    rows = tr.snapshot.get_range(under, under + b"\xff")
    counted = {bytes(row.key)[len(under) + 2 :]: debt_of(row.value)[0] for row in rows}
    records = [record_of(row.value) for row in all_tasks(q, tr)]
    runs = Counter(one.key for one in records if one.state == TaskState.TAKEN and one.session != HANDED_OFF)
    return {key: number for key, number in counted.items() if number}, dict(runs)


def runs_are_counted(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each debt counts the tasks that run, at one version."""
    for op in trace.of(NAME, "debts"):
        if op.done and op.result[0] != op.result[1]:
            yield f"the debts count {op.result[0]}, and {op.result[1]} run"


def time_is_shared(workers: int, trace: Trace, _: Database) -> Iterator[str]:
    """Check that the run times of both keys differ by at most a run of each for each worker, and one more.

    A run with an end that is not known may have any time, up to its lease.
    """
    ops = [op for op in trace.of(NAME, "run") if not op.done or op.result is not None]
    runs = [op.result for op in ops if op.done]
    unknown_s = TTR_S * (len(ops) - sum(run.is_charged for run in runs))
    served = dict.fromkeys(RUNS_S, 0.0)
    for one in runs:
        served[one.key] += one.ended_s - one.began_s
    longest = sum(
        max((run.ended_s - run.began_s for run in runs if run.key == key), default=0) for key in RUNS_S
    )
    most = (workers + 1) * longest + unknown_s
    if abs(served["long"] - served["short"]) > most:
        yield f"the keys ran for {served}, which differ by more than {most:.1f} s"


def survive(client: Client, q: TaskQueue) -> None:
    look(client, q)
    q.truncate(client.db)
    audit(client, q)
