"""Ended tasks that a queue keeps: the end of each is found, and sweeps leave none too old or too many."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound
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
from tests.system.workloads.stage import Tasks, ids, outlive, play, taken

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
    queue = Tasks(NAME, simulation.random.choice(("fifottl", "utubettl", "fair")), ttr=2, retain_s=retain_s)

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, acked)
        client.runtime.sleep(SWEPT_S)
        look(client, q)
        client.call(NAME, "keep", mode, partial(kept, client, q))

    roles = {
        "operator": queue.repeating(size.steps, operate, 0.5, pauses_first=True),
        "producer-": queue.repeating(size.steps, put, 0.2),
        "worker-": queue.working(size.steps, once),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), each_end_is_kept, no_other_is_kept, no_watch_left_behind]


def once(client: Client, q: TaskQueue, session: Session) -> None:
    if (task := taken(client, q, 1, session)) is not None:
        client.pause(0.5)
        end(client, q, client.random.choice(("ack", "ack", "release")), task)


def operate(client: Client, q: TaskQueue) -> None:
    if found := run(client.db, partial(ids, q)):
        end(client, q, client.random.choice(("delete", "cancel")), client.random.choice(found))
    look(client, q)


def look(client: Client, q: TaskQueue) -> None:
    client.call(NAME, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))


def put(client: Client, q: TaskQueue) -> None:
    def body() -> str:
        return q.put(client.db, "x", ttl=client.random.choice((None, None, 1))).id

    client.call(NAME, "put", None, body)


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
