"""Workers whose handlers get batches: each task has one outcome, whatever becomes of its neighbours."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Backoff, Retry
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.fleet import ended, work_until_empty
from tests.system.workloads.several import HARMLESS
from tests.system.workloads.stage import EFFECTS, Tasks, audit, effects_in, play

NAME = "batched"
TTR_S, SESSION_TTR_S, TIMEOUT_S, GRACE_S = 2.0, 3.0, 3.0, 10.0
ATTEMPTS_MAX = 3
SIZE_MAX = 3
WAITS_S = (0.0, 0.5)
LATE_S = 1.0
PLAIN = "an ack without an effect"
ENDS = ("succeeded", "retried", "snoozed", "buried", "cancelled", "lease_lost")


class Begun(NamedTuple):
    """One task of a batch that begins."""

    value: str
    token: bytes | None
    is_alone: bool
    failures: int
    orphaned: int


@workload(clients=2, steps=4)
def batched(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Handlers decide about single tasks, fail, overrun and write; machines die in the middle of a batch."""
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=SIZE_MAX)
    simulation.overtake = limits.WORKER_OVERTAKE
    if simulation.random.random() < 0.5:
        simulation.faults = simulation.faults.only(*HARMLESS)
    queue = Tasks(NAME, ttr=TTR_S)
    roles = {"producer-": queue.putting(2 * size.steps, 0.3), "worker-": queue.using(work)}
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(NAME), done_once_or_buried, one_outcome, alone_if_told, no_watch_left_behind]


def work(client: Client, _: TaskQueue) -> None:
    for _life in range(2):
        transactional = client.random.random() < 0.4
        worker = hired(client, partial(within if transactional else handle, client), transactional)
        worker.start()
        client.runtime.sleep(client.random.uniform(0.3, 8))
        worker.stop(at_once=client.random.random() < 0.3)
        ended(worker)


def survive(client: Client, q: TaskQueue) -> None:
    def finish(tasks: list[HeldTask]) -> None:
        for task in tasks:
            task.done(effect=partial(count, task.data))

    worker = hired(client, finish, False)
    work_until_empty(worker)
    audit(client, q)
    client.call(NAME, "buried", None, lambda: [task.data for task in q.tasks(client.db, "!", 1_000)])


def hired(client: Client, handler: Callable[..., object], transactional: bool) -> Worker:
    def tell(event: Event) -> None:
        client.call(NAME, "told", (event.task.data, event.task.token, event.name), lambda: None)

    return Worker(
        client.db,
        NAME,
        handler,
        threads=client.random.choice((1, 2)),
        batch=client.random.randint(1, SIZE_MAX),
        batch_wait_s=client.random.choice(WAITS_S),
        transactional=transactional,
        attempts=ATTEMPTS_MAX,
        backoff=Backoff(first_s=0.1, cap_s=0.5),
        timeout_s=TIMEOUT_S,
        grace_s=GRACE_S,
        session_ttr_s=SESSION_TTR_S,
        hooks=Hooks(**dict.fromkeys(ENDS, tell)),
    )


def count(value: str, tr: Any) -> None:
    tr.add(EFFECTS + value.encode(), b"\x01")


def note(client: Client, tasks: list[HeldTask]) -> None:
    for task in tasks:
        begun = Begun(task.data, task.token, len(tasks) == 1, task.failures, task.orphaned)
        client.call(NAME, "begin", begun, lambda: None)
    client.call(NAME, "batch", len(tasks), lambda: None)


def handle(client: Client, tasks: list[HeldTask]) -> None:
    """Decide about some tasks, by chance. The effect of a task commits with its ack."""
    note(client, tasks)
    client.runtime.sleep(client.random.choice((0, 0, 0.05, 2.5)))
    for task in tasks:
        deeds: list[Callable[[], object]] = [
            *3 * [partial(task.done, effect=partial(count, task.data))],
            partial(client.call, NAME, PLAIN, task.data, task.done),
            partial(task.fail, ValueError("odd")),
            partial(task.fail, Retry(0.1)),
            partial(task.snooze, 0.2),
            partial(task.bury, "never"),
        ]
        client.random.choice(deeds)()
        if client.random.random() < 0.05:
            client.runtime.sleep(2 * TIMEOUT_S)  # it overruns between two decisions
        if client.random.random() < 0.1:
            raise ValueError("in the middle")
        if client.random.random() < 0.1:
            end_it(client, tasks)
            task.check()


def within(client: Client, tr: Any, tasks: list[HeldTask]) -> None:
    """As `handle`, with each effect in the transaction of all acks."""
    note(client, tasks)
    if client.random.random() < 0.1:
        client.runtime.sleep(2 * TIMEOUT_S)
    for task in tasks:
        chance = client.random.random()
        if chance < 0.1:
            task.fail(ValueError("odd"))
        elif chance < 0.2:
            task.snooze(0.2)
        else:
            count(task.data, tr)
        if chance > 0.95:
            raise ValueError("in the middle")


def end_it(client: Client, tasks: list[HeldTask]) -> None:
    """Give one of the tasks back beside its worker, as an operator may."""
    q = TaskQueue.open(client.db, NAME)
    with suppress(NotTaken):
        q.give_back(client.db, client.random.choice(tasks).hold.lease)  # type: ignore[union-attr]


# Checkers.


def done_once_or_buried(trace: Trace, database: Database) -> Iterator[str]:
    effects = effects_in(database)
    buried = {value for found in trace.of(NAME, "buried") for value in found.result or ()}
    plain = {op.argument for op in trace.of(NAME, PLAIN)}
    for value, times in effects.items():
        if times != 1 or value in buried:
            yield f"{times} effects of {value!r}{', which is buried' if value in buried else ''}"
    for put in trace.of(NAME, "put"):
        if put.done and put.argument not in effects.keys() | buried | plain:
            yield f"lost: {put.argument!r}"


def one_outcome(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a lease is told one outcome at most, and that a task succeeds once at most."""
    told = Counter(op.argument[:2] for op in trace.of(NAME, "told"))
    ends = Counter(op.argument[0] for op in trace.of(NAME, "told") if op.argument[2] == "succeeded")
    for (value, _token), times in told.items():
        if times > 1:
            yield f"{value!r} has {times} outcomes under one lease"
    for value, times in ends.items():
        if times > 1:
            yield f"{value!r} has succeeded {times} times"


def alone_if_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a suspect, and a task that the next failure buries, begin alone."""
    for op in trace.of(NAME, "begin"):
        begun = op.argument
        if not begun.is_alone and (begun.orphaned or begun.failures >= ATTEMPTS_MAX - 1):
            yield f"{begun.value!r} begins beside others, after {begun.failures} failures"
    for op in trace.of(NAME, "batch"):
        if not 1 <= op.argument <= SIZE_MAX:
            yield f"a batch of {op.argument}"
