"""Cancels of tasks that wait, run, fail and lose their leases, by clients, holders and a worker."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Backoff, Done
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.fleet import ended
from tests.system.workloads.stage import EFFECTS, Tasks, audit, by_chance, effects_in, ids, play, remaining

TTR_S = 2.0
STEP_S, STEPS = 0.3, 30
LOOKS, LOOKS_P = 4, 0.4
AROUND_S = 0.6
"""A look comes at most so long before or after the end of a lease."""
RARELY_S = 0.5
"""Rare sweeps: a look finds leases that are over. A session renews itself as often."""
NAME = "cancels"
RAN_OUT = "ran out"
LEARNS_S = 5.0
"""A heartbeat comes after a third of the ttr, 2 s. Without one for 2 s, the lease is lost."""


@workload(clients=1, steps=5)
def cancels(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.overtake = limits.WORKER_OVERTAKE
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    kind = simulation.random.choice(("fifottl", "utubettl"))
    # From other dice, so that all else of a seed is as it would be without.
    ttr_s = Random(f"{simulation.seed} ttr").choice((TTR_S, TTR_S, None))
    queue = Tasks(NAME, kind, ttr=ttr_s)
    roles = {
        "producer-": queue.repeating(size.steps, put, 0.3),
        "canceller-": queue.repeating(2 * size.steps, cancel, 0.5, pauses_first=True),
        "holder-": queue.working(2 * size.steps, once, ttrs_s=(1, 3)),
        "worker": queue.using(work),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    watched(simulation, queue)
    return [exact_statistics(NAME), *PROMISES, none_waits, no_watch_left_behind]


def work(client: Client, q: TaskQueue) -> None:
    backoff = Backoff(first_s=0.2, cap_s=1.0)
    worker = Worker(client.db, q, partial(handle, client), threads=2, backoff=backoff, session_ttr_s=3.0)
    worker.start()
    client.runtime.sleep(client.random.uniform(5, 20))
    worker.stop(at_once=client.random.random() < 0.3)
    ended(worker)


def survive(client: Client, q: TaskQueue) -> None:
    for _ in remaining(client, q):
        q.kick(client.db, 9)
        if (task := took(client, q, None, 1.0)) is not None:
            finish(client, q, task)
    audit(client, q)
    client.call(NAME, "end", None, lambda: q.statistics(client.db)["calls"])


def put(client: Client, q: TaskQueue) -> None:
    def body() -> str:
        return q.put(client.db, "x", delay=client.random.choice((0, 0, 0.5))).id

    client.call(NAME, "put", None, body)


def cancel(client: Client, q: TaskQueue) -> None:
    if found := run(client.db, partial(ids, q)):
        id_ = client.random.choice(found)
        with suppress(TaskNotFound):
            client.call(NAME, "cancel", id_, partial(q.cancel, client.db, id_))


def took(client: Client, q: TaskQueue, session: Session | None, timeout: float) -> Task | None:
    found: list[Task] = []

    def take() -> str | None:
        found.extend(q.take_many(client.db, 1, timeout, session=session))
        return found[0].id if found else None

    client.call(NAME, "take", None, take)
    return found[0] if found else None


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and end its lease by chance, or let it end by its time."""
    task = took(client, q, session, client.random.choice((0, 1)))
    if task is not None:
        client.pause(0.5)
        by_chance(client, q, task, (finish, "release", "give back", fail, "bury", "release all"))


def fail(client: Client, q: TaskQueue, task: Task) -> None:
    q.release(client.db, task, delay=0.1, failure=Failure("odd"))


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Transaction) -> None:
        q.ack(tr, task)
        tr.add(EFFECTS + task.id.encode(), b"\x01")

    with suppress(NotTaken):
        run(client.db, body)


def handle(client: Client, task: HeldTask) -> None:
    """Succeed, fail, or run for long and look for a cancel now and then."""

    def body() -> str:
        for _ in range(STEPS):
            client.runtime.sleep(STEP_S)
            task.check()
        return RAN_OUT

    chance = client.random.random()
    if chance < 0.5:
        client.call(NAME, "handle", task.id, body)
    elif chance < 0.75:
        raise ValueError
    raise Done(lambda tr: tr.add(EFFECTS + task.id.encode(), b"\x01"))


# Looks.


def watched(simulation: Simulation, queue: Tasks) -> None:
    """Add in some runs a client that cancels tasks which it holds, and looks at them as their leases end."""
    # From other dice, so that all else of a seed is as it would be without.
    if Random(f"{simulation.seed} looks").random() < LOOKS_P:
        simulation.limit(SWEEP_EVERY_S=RARELY_S)
        simulation.client(queue.repeating(LOOKS, watch), "watcher")


def watch(client: Client, q: TaskQueue) -> None:
    found: list[str] = []
    client.call(NAME, "take", None, partial(take_into, found, client, q))
    for id_ in found:
        client.runtime.sleep(client.random.uniform(0, AROUND_S))
        with suppress(TaskNotFound):
            client.call(NAME, "cancel", id_, partial(q.cancel, client.db, id_))
            client.runtime.sleep(TTR_S + client.random.uniform(-2 * AROUND_S, AROUND_S))
            client.call(NAME, "look", id_, partial(q.peek, client.db, id_))


def take_into(found: list[str], client: Client, q: TaskQueue) -> str | None:
    with suppress(UnknownSession):
        found.extend(task.id for task in q.take_many(client.db, 1, 1.0))
    return found[0] if found else None


def none_waits(trace: Trace, _: Database) -> Iterator[str]:
    for look in (op for op in trace.of(NAME, "look") if op.done):
        cancels = [op for op in trace.of(NAME, "cancel") if op.done and op.argument == look.argument]
        if any(op.before(look) for op in cancels) and look.result.state != TaskState.TAKEN:
            yield f"{look.argument} was cancelled, and {look.client} saw it as {look.result.state.value!r}"


# Checkers.


def none_begins(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take that began after a cancel had returned gave the cancelled task."""
    for cancel in (op for op in trace.of(NAME, "cancel") if op.done):
        for take in trace.of(NAME, "take"):
            if take.result == cancel.argument and cancel.before(take):
                yield f"{take.client} took {cancel.argument}, which {cancel.client} had cancelled"


def handlers_learn(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no handler ran to its end for long after the cancel of its task."""
    cancelled = {op.argument: op.ended_s for op in trace.of(NAME, "cancel") if op.done}
    for run_ in (op for op in trace.of(NAME, "handle") if op.result == RAN_OUT):
        at = cancelled.get(run_.argument)
        if at is not None and run_.ended_s is not None and at + LEARNS_S < run_.ended_s:
            yield f"{run_.client} ran {run_.argument} for {run_.ended_s - at:.1f} s after its cancel"


def each_has_one_end(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task had its effect once, or was cancelled; and that the counts say so."""
    effects = effects_in(database)
    asked = {op.argument for op in trace.of(NAME, "cancel")}
    yield from (f"{count} effects of {id_}" for id_, count in effects.items() if count != 1)
    for put in trace.of(NAME, "put"):
        if put.done and put.result not in effects | dict.fromkeys(asked, 0):
            yield f"lost: {put.result}"
    for calls in (op.result for op in trace.of(NAME, "end") if op.done):
        if (calls["ack"], calls["put"]) != (len(effects), len(effects) + calls["cancel"]):
            yield f"{calls} are counted, and {len(effects)} tasks had their effect"


PROMISES: tuple[Checker, ...] = (none_begins, handlers_learn, each_has_one_end)
