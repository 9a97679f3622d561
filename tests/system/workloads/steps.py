"""Steps: attempts that do the steps of their tasks, in transactions and outside, and lose their leases."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, outlive, play, taken

NAME = "steps"
STEPS = {"charge": False, "count": True, "mail": False}
"""The steps of each task: true for one in a transaction."""
EFFECTS = b"step/"


class Did(NamedTuple):
    """The result of a step, and true if its function has run in this call."""

    result: str
    ran: bool


@workload(clients=2, steps=3)
def steps(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    kind, partitions = random.choice(("fifottl", "utubettl", "fair")), random.choice((1, 3))
    queue = Tasks(NAME, kind, if_exists="any", ttr=2, partitions=partitions)

    def produce(client: Client, q: TaskQueue) -> None:
        for number in range(size.clients * size.steps):
            key: Any = {} if kind == "fifottl" else {"key": number % 3}
            client.call(NAME, "put", None, partial(q.put, client.db, "x", **key))
            client.pause(0.2)

    def work(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for turn in range(4 * size.steps):
                if (task := taken(client, q, 1, session)) is not None:
                    attempt(client, q, task, f"{client.name}.{turn}")

    def operate(client: Client, q: TaskQueue) -> None:
        q.kick(client.db, 3)
        if partitions > 1:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3, 5)))

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, lambda client, q, task: attempt(client, q, task, f"survivor {task.attempts}"))

    roles = {
        "producer": queue.using(produce),
        "operator": queue.repeating(2 * size.steps, operate, 1.0, pauses_first=True),
        **{f"worker-{number}": queue.using(work) for number in range(size.clients + 1)},
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), one_result, done_steps_do_not_run, effects_once, no_watch_left_behind]


def attempt(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
    """Do the steps of a task, and ack it; by chance give it back between two steps, or bury it."""
    with suppress(NotTaken, TaskNotFound):
        for name, within in STEPS.items():
            dice = client.random.random()
            if dice < 0.1:
                q.release(client.db, task, delay=client.random.choice((0, 0.5)))
                return
            if dice < 0.2:
                q.bury(client.db, task)
                return
            do = partial(counted if within else plain, client, q, task, name, f"{task.attempts} {tag}")
            client.call(NAME, "step", (task.id, name), do)
        q.ack(client.db, task)


def plain(client: Client, q: TaskQueue, task: Task, name: str, own: str) -> Did:
    def function() -> str:
        client.pause(1.5)  # in some runs longer than its lease
        ran.append(own)
        return own

    ran: list[str] = []
    return Did(q.step(client.db, task, name, function), bool(ran))


def counted(client: Client, q: TaskQueue, task: Task, name: str, own: str) -> Did:
    def function(tr: Transaction) -> str:
        tr.add(EFFECTS + f"{task.id}/{name}".encode(), b"\x01")
        return own

    result = run(client.db, lambda tr: q.step(tr, task, name, function))
    return Did(result, result == own)


def one_result(trace: Trace, _: Database) -> Iterator[str]:
    """Check that all attempts at a step were told the same result."""
    told: dict[tuple[str, str], str] = {}
    for op in trace.of(NAME, "step"):
        if op.done and told.setdefault(op.argument, op.result.result) != op.result.result:
            yield f"{op.client} was told {op.result.result!r} of {op.argument}, others {told[op.argument]!r}"


def done_steps_do_not_run(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no function of a step ran after the step was done."""
    done = [op for op in trace.of(NAME, "step") if op.done]
    for late in (op for op in done if op.result.ran):
        if any(op.argument == late.argument and op.before(late) for op in done):
            yield f"{late.client} ran the step {late.argument} again"


def effects_once(trace: Trace, db: Database) -> Iterator[str]:
    """Check that a step in a transaction has had its effect once, if it is done, and at most once if not."""
    counts = {row.key[len(EFFECTS) :].decode(): row.value[0] for row in db.get_range_startswith(EFFECTS)}
    for key, count in counts.items():
        if count != 1:
            yield f"the step {key} has had its effect {count} times"
    for op in trace.of(NAME, "step"):
        id_, name = op.argument
        if op.done and STEPS[name] and f"{id_}/{name}" not in counts:
            yield f"{op.client} did the step {op.argument}, which has had no effect"
