"""Looks of an operator: explanations with the cures that they name, and verifications beside live clients."""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, TaskNotFound
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Explanation, Task, Why
from fdbqueue.operate.verify.values import Verification
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.elements.queue import SimpleElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import id_in, id_text
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, sound, told
from tests.system.workloads.common import QUIET_S, SPACE, cramped, or_a_bag, values_of
from tests.system.workloads.stage import Tasks, audit, ids, play, repeating, taken

NAME = "explained"
KINDS = ("fifo", "fifottl", "utube", "utubettl", "fair")
CURES_MAX = 200
STARTED, GONE, NEVER = "started", "gone", "never"
VERIFIED, PLAIN, ELEMENTS, FAIR = "verified", "items", "elements", "tenants"


@workload(clients=2, steps=4)
def explained(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """The cures that explanations name: an operator applies each of them until the task starts."""
    cramped(simulation)
    queue = queue_of(NAME, or_a_bag(simulation, simulation.random.choice(KINDS)))

    def trouble(client: Client, q: TaskQueue, session: Session) -> None:
        disturb(client, q, session)
        client.pause(0.5)

    roles = {
        "producer-": queue.putting(size.steps, 0.2, put),
        "trouble-": queue.working(size.steps, trouble, ttrs_s=(3, 20), after_death_s=0.1),
        "observer": queue.repeating(size.steps, look, 0.5),
    }
    play(simulation, size, roles, {"operator": queue.using(operate)})
    return [exact_statistics(NAME), cures_work, no_watch_left_behind]


def queue_of(name: str, kind: str) -> Tasks:
    return Tasks(name, kind, ttr=2 if "ttl" in kind else None)


def look(client: Client, q: TaskQueue) -> None:
    for id_ in run(client.db, partial(ids, q)):
        client.call(NAME, "explain", id_, partial(look_at, client, q, id_))


def operate(client: Client, q: TaskQueue) -> None:
    stuck = run(client.db, partial(ids, q))
    client.random.shuffle(stuck)
    for id_ in stuck:
        client.call(NAME, "cure", id_, partial(cured, client, q, id_))
    audit(client, q)


def put(client: Client, q: TaskQueue, value: str) -> None:
    client.call(NAME, "put", value, lambda: put_one(client, q, value).id)


def put_one(client: Client, q: TaskQueue, value: str) -> Task:
    options: dict[str, Any] = {}
    if q.kind not in ("fifo", "utube"):
        options["delay"] = client.random.choice((0, 0, 1.5))
    if q.kind not in ("fifo", "fifottl", "bag"):
        options["key"] = client.random.choice("ab")
    return q.put(client.db, value, **options)


def disturb(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task and end it by chance, or hold it; pause or resume the queue now and then."""
    if client.random.random() < 0.2:
        client.random.choice((q.pause, q.resume))(client.db)
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is None or client.random.random() < 0.4:
        return
    verb = client.random.choice((q.ack, q.bury, q.release))
    try:
        verb(client.db, task)
    except NotTaken:
        client.pause(0.1)  # too late: another session has the lease


def look_at(client: Client, q: TaskQueue, id_: str) -> str:
    try:
        return ", ".join(reason.why for reason in q.explain(client.db, id_).reasons)
    except TaskNotFound:
        return GONE


def cures_work(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task of the operator has started, or was gone."""
    for cure in trace.of(NAME, "cure"):
        if cure.done and cure.result not in (STARTED, GONE):
            yield f"{cure.argument}: {cure.result}"


def cured(client: Client, q: TaskQueue, id_: str) -> str:
    """Apply the first cure of the task's explanation, again and again, until the task is taken."""
    told = []
    for _ in range(CURES_MAX):
        try:
            found, ready = run(client.db, partial(explained_and_ready, q, id_))
        except TaskNotFound:
            return GONE
        told.append(str(found.reasons[0].why))
        task = apply(client, q, found)
        if task is None and is_next(found):
            return f"not taken in {patience_s(found)} s, though it was next: {told}"
        if task is not None:
            q.ack(client.db, task)
            if task.id == id_:
                return STARTED
            # Others may become ready meanwhile, and dead requests of the line get their share before.
            if is_next(found) and not found.waiting and task.id in ready:
                return f"{task.id} came first, though it was next: {told}"
    return f"{NEVER}: {told}"


def explained_and_ready(q: TaskQueue, id_: str, tr: Transaction) -> tuple[Explanation, set[str]]:
    """The ready tasks are those in the index: others may be due, and are not swept yet."""
    index = q._shape.discipline.index
    ready = {id_text(id_in(bytes(row.key))) for row in tr.snapshot.get_range(index.start, index.stop)}
    return q.explain(tr, id_), ready


def apply(client: Client, q: TaskQueue, found: Explanation) -> Task | None:
    """Apply the first cure. Return the task that a worker takes, if that is the cure."""
    reason = found.reasons[0]
    if reason.why == Why.PAUSED:
        q.resume(client.db)
    elif reason.why == Why.BURIED:
        *_, queue, task = shlex.split(reason.cure)
        DeadLetters.open(client.db, queue).kick(client.db, task)
    elif reason.why == Why.UNSWEPT:
        q.statistics(client.db)
    elif reason.why in (Why.TAKEN, Why.HOLDER_ENDED, Why.DELAYED, Why.KEY_BUSY):
        wait_s = 0.0 if reason.at is None else reason.at - client.runtime.now()
        client.runtime.sleep(max(limits.SESSIONS_SWEPT_EVERY_S, wait_s))
        return q.take(client.db, 0) if "take gives it back" in reason.cure else None
    else:
        return q.take(client.db, patience_s(found))
    return None


def patience_s(found: Explanation) -> float:
    """A call that waits may be dead, and the line keeps its share until its request is overdue."""
    return QUIET_S if found.waiting else 0.0


def is_next(found: Explanation) -> bool:
    return [reason.why for reason in found.reasons] in ([Why.NO_WORKER], [Why.NEXT])


@workload(clients=2, steps=4)
def verified(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A verification beside live clients, which use tasks, items and elements, and die."""
    cramped(simulation)
    random = simulation.random
    simulation.limit(
        SLICE_KEYS_MAX=random.randint(1, 4),
        COUNTED_ROWS=random.randint(1, 3),
        COUNTED_S=random.choice((0.0, 2.0)),
        DUE_BATCH=3,
        VERB_BATCH=3,
    )
    queue = queue_of(VERIFIED, random.choice(KINDS))

    def use_tasks(client: Client, q: TaskQueue, session: Session) -> None:
        for value in values_of(client, size.steps):
            put_one(client, q, value)
            disturb(client, q, session)
            client.pause(0.2)

    def use_items(client: Client) -> None:
        plain, fair = Queue.named(client.db, PLAIN), tenants()
        for value in values_of(client, size.steps):
            plain.enqueue(client.db, value * client.random.choice((1, 9)))
            fair.put(client.db, value * client.random.choice((1, 99)))
            for take in (plain.dequeue, fair.get):
                if client.random.random() < 0.7:
                    take(client.db, timeout=client.random.choice((0, 1)))
            client.pause(0.2)

    def use_elements(client: Client) -> None:
        elements = SimpleElementQueue.named(client.db, ELEMENTS)
        for value in values_of(client, size.steps):
            name = elements.add(client.db, value.encode())
            if elements.lock(client.db, name) and client.random.random() < 0.5:
                elements.remove(client.db, name)
            client.pause(0.2)

    roles = {
        "worker-": queue.working(1, use_tasks, ttrs_s=(3, 20), after_death_s=0.1),
        "consumer": use_items,
        "holder": use_elements,
        "verifier": repeating(size.steps, see_all, 0.5),
    }
    play(simulation, size, roles)
    return [nothing_found, sound(tenants()), no_watch_left_behind]


def see_all(client: Client) -> None:
    client.call(VERIFIED, "verify", None, partial(everything, client.db))


def tenants() -> FairQueue:
    return FairQueue(SPACE[FAIR], key=lambda item: item[:1])


def everything(database: Database) -> Sequence[Verification]:
    return verify(database), verify(database, tenants())


def nothing_found(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no verification beside the clients has found anything."""
    for operation in trace.of(VERIFIED, "verify"):
        yield from told(*(operation.result or ()))
