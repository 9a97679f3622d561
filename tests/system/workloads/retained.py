"""Ended tasks that a queue keeps: the end of each is found, and sweeps leave none too old or too many."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.effects import taken
from tests.system.workloads.explained import ids
from tests.system.workloads.tasks import outlive

NAME = "retained"
MANY, FEW = 1_000, 3
MODES = {"all": (1e6, MANY), "the latest": (1e6, FEW), "the young": (2.0, MANY)}
"""What the queue keeps: for how many seconds, and at most how many."""
SWEPT_S = 2.0 + limits.CLOCK_SKEW_S + 1.0
"""After this time, the young are too old by any clock, and swept."""
OUTCOMES = {"ack": "acked", "delete": "deleted", "cancel": "cancelled", "release": "cancelled"}


@workload(clients=2, steps=3)
def retained(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    mode = simulation.random.choice(list(MODES))
    retain_s, most = MODES[mode]
    simulation.limit(VERB_BATCH=3, RETAINED_MAX=most)
    kind = simulation.random.choice(("fifottl", "utubettl", "fair"))

    def opened(client: Client) -> TaskQueue:
        return TaskQueue.create(client.db, NAME, kind, ttr=2, retain_s=retain_s, if_not_exists=True)

    def produce(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            client.call(NAME, "put", None, partial(put, client, q))
            client.pause(0.2)

    def work(client: Client) -> None:
        q = opened(client)
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for _ in range(size.steps):
                task = taken(client, q, 1, session)
                if task is not None:
                    client.pause(0.5)
                    end(client, q, client.random.choice(("ack", "ack", "release")), task)

    def operate(client: Client) -> None:
        q = opened(client)
        for _ in range(size.steps):
            client.pause(0.5)
            found = run(client.db, partial(ids, q))
            if found:
                end(client, q, client.random.choice(("delete", "cancel")), client.random.choice(found))
            client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))

    def survive(client: Client) -> None:
        q = opened(client)
        outlive(client, q, acked)
        client.runtime.sleep(SWEPT_S)
        client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))
        client.call(NAME, "keep", mode, partial(kept, client, q))

    simulation.client(operate, "operator")
    for number in range(size.clients):
        simulation.client(produce, f"producer-{number}")
        simulation.client(work, f"worker-{number}")
    simulation.afterwards(survive, "survivor")
    return [exact_statistics(NAME), each_end_is_kept, no_other_is_kept, no_watch_left_behind]


def put(client: Client, q: TaskQueue) -> str:
    return q.put(client.db, "x", ttl=client.random.choice((None, None, 1))).id


def end(client: Client, q: TaskQueue, verb: str, task: Task | str) -> None:
    id_ = task.id if isinstance(task, Task) else task
    with suppress(NotTaken, TaskNotFound):
        client.call(NAME, verb, id_, lambda: str(getattr(q, verb)(client.db, task).state))


def acked(client: Client, q: TaskQueue, task: Task) -> None:
    end(client, q, "ack", task)


def counted_and_found(q: TaskQueue, tr: Transaction) -> tuple[list[int], list[int]]:
    """Return the counter of ended tasks for each of their indexes, and the number of entries in each."""
    keys = TaskKeys(q.contents)
    by_key = [keys.all_ended_of] if q.kind != "fifottl" else []
    found = [
        len(tr.snapshot.get_range(under.start, under.stop).to_list())
        for under in (keys.all_ended, keys.ended_times, *by_key)
    ]
    counted = int.from_bytes(tr.snapshot.get(keys.ended_count).value or b"", "little")
    return [counted] * len(found), found


def kept(client: Client, q: TaskQueue) -> dict[str, str]:
    """Return the outcomes of all tasks that the queue keeps, by id."""
    return {task.id: task.outcome for task in every_row(partial(q.ended_tasks, client.db, 3))}


def each_end_is_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check, where the queue keeps all, that each put task is there, with the outcome that its end had."""
    for keep in (op for op in trace.of(NAME, "keep") if op.argument == "all"):
        for verb, outcome in OUTCOMES.items():
            for op in trace.of(NAME, verb):
                if op.result == "-" and keep.result.get(op.argument) != outcome:
                    yield f"{verb} ended {op.argument}, and kept is {keep.result.get(op.argument)}"
        for op in trace.of(NAME, "put"):
            if op.done and op.result not in keep.result:
                yield f"not kept: {op.result}"


def no_other_is_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the sweeps have left none that is too old, and not too many."""
    for keep in trace.of(NAME, "keep"):
        most = {"all": MANY, "the latest": FEW, "the young": 0}[keep.argument]
        if len(keep.result) > most:
            yield f"{len(keep.result)} are kept of {keep.argument}"
