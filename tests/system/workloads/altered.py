"""A queue whose options change while workers die, calls wait and transactions fail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import QUIET_S, cramped, values_of
from tests.system.workloads.stage import Tasks, audit, by_chance, play, remaining

NAME = "altered"
KEYED, BOUNDED = "utubettl", "limfifottl"
TTRS_S = (2, 5, 9)
ALTER, WITHIN = "alter", "alter in a transaction"
PUT, TAKE, LAST_TAKE = "put in the queue's way", "take in the queue's way", "take at the end"
WOKEN, LET_GO, HISTORY = "woken by the change", "the change", "history"
WAIT_S, PROMPT_S = 30.0, 1.0
"""A take is stuck if it waits this long alone, beside a ready task; a change wakes a call within PROMPT_S."""
VERBS = ("ack", "ack", "release", "put off", "bury", "delete", "cancel", "leave", "release all")


class Leased(NamedTuple):
    """A task, and how long its lease lasts."""

    id: str
    lease_s: float


@workload(clients=2, steps=4)
def altered(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Capacity, key concurrency and ttr change under puts, waiting calls and deaths."""
    cramped(simulation)
    random = Random(f"{simulation.seed} altered")
    kind, partitions = random.choice((KEYED, KEYED, BOUNDED)), random.choice((1, 1, 3))
    bound = {"key_concurrency": random.choice((1, 2))} if kind == KEYED else {"capacity": 4}
    queue = Tasks(NAME, kind, if_exists="any", ttr=TTRS_S[0], partitions=partitions, **bound)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, 4 * size.steps):
            key: dict[str, Any] = {"key": client.random.choice("aab")} if kind == KEYED else {}
            timeout_s = client.random.choice((0, 1)) if kind == BOUNDED else 0
            with suppress(QueueFull):
                client.call(NAME, PUT, None, partial(put, client, q, value, timeout=timeout_s, **key))
            client.pause(client.random.choice((0.01, 0.3)))

    def operate(client: Client, q: TaskQueue, session: Session) -> None:
        """Take between two changes, and before the steps that follow each."""
        client.pause(0.5)
        tasks = list[Task]()
        for _ in range(2):
            alter(client, q, drawn(client.random, kind))
            tasks += take(client, q, session, client.random.choice((1, 2, 3)), 0)
        end_each(client, q, tasks)
        if partitions > 1 and client.random.random() < 0.2:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3)))

    def survive(client: Client, q: TaskQueue) -> None:
        client.runtime.sleep(QUIET_S)
        for _ in remaining(client, q):
            finish_one(client, q)
        audit(client, q)
        look = partial(run, client.db, lambda tr: (dict(q.options), q.alterations(tr)))
        client.call(NAME, HISTORY, None, look)
        wake(client, q)

    roles = {
        "producer-": queue.using(produce),
        "worker-": queue.working(2 * size.steps, once, after_death_s=0.5),
        "operator-": queue.working(size.steps, operate, after_death_s=0.5),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    exact = exact_statistics(NAME)
    return [exact, none_is_stuck, leases_in_force, one_history, woken, agreeing, no_watch_left_behind]


def drawn(random: Random, kind: str) -> dict[str, Any]:
    """One or two options, with other values."""
    found: dict[str, Any] = {}
    if random.random() < 0.8:
        found |= (
            {"key_concurrency": random.choice((1, 2, 3))}
            if kind == KEYED
            else {"capacity": random.choice((1, 2, 4, 8, None))}
        )
    if not found or random.random() < 0.4:
        found["ttr"] = random.choice(TTRS_S)
    return found


def put(client: Client, q: TaskQueue, value: str, **options: Any) -> str:
    return q.put(client.db, value, **options).id


def alter(client: Client, q: TaskQueue, options: Mapping[str, Any]) -> None:
    """Given a database, or a transaction: then other calls take the steps that follow."""
    if client.random.random() < 0.5:
        client.call(NAME, ALTER, options, partial(q.alter, client.db, **options))
    else:  # the result of its commit is unknown at times: it may happen twice
        client.call(NAME, WITHIN, options, partial(run, client.db, lambda tr: q.alter(tr, **options)))


def leased(task: Task) -> Leased:
    return Leased(task.id, round((task.until or 0) - (task.taken or 0), 3))


def once(client: Client, q: TaskQueue, session: Session) -> None:
    count, wait_s = client.random.choice((1, 1, 3)), client.random.choice((0, 1, 2))
    end_each(client, q, take(client, q, session, count, wait_s))


def take(client: Client, q: TaskQueue, session: Session, count: int, wait_s: float) -> list[Task]:
    tasks = list[Task]()

    def take() -> list[Leased]:
        tasks[:] = q.take_many(client.db, count, wait_s, session=session)
        return [leased(task) for task in tasks]

    client.call(NAME, TAKE, None, take, timeout_s=wait_s)
    return tasks


def end_each(client: Client, q: TaskQueue, tasks: Sequence[Task]) -> None:
    for task in tasks:
        client.pause(0.3)
        by_chance(client, q, task, VERBS, (NotTaken, TaskNotFound), delays_s=(0.5,))


def finish_one(client: Client, q: TaskQueue) -> None:
    q.kick(client.db, 9)
    if not q.statistics(client.db)["tasks"]["ready"]:
        client.runtime.sleep(1.0)
        return
    task = client.call(NAME, LAST_TAKE, None, partial(q.take, client.db, WAIT_S))
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)


def wake(client: Client, q: TaskQueue) -> None:
    """Let a call of another process wait for a bound of the queue, and then lift it."""
    client.calm()
    db, session = client.db, Session(client.db, ttr=1e6)
    waiting: Callable[[], Task | None]
    lifted: dict[str, Any]
    if q.kind == KEYED:
        q.alter(db, key_concurrency=1, ttr=None)
        for value in ("holds", "waits"):
            q.put(db, value, key="a")
        q.take(db, WAIT_S, session=session)
        waiting, lifted = partial(q.take, db, WAIT_S, session=session), {"key_concurrency": 2}
    else:
        q.alter(db, capacity=1, ttr=None)
        q.put(db, "holds")
        waiting, lifted = partial(q.put, db, "waits", timeout=WAIT_S), {"capacity": 2}
    other = client.thread(lambda one: one.call(NAME, WOKEN, None, waiting), "waits")
    client.runtime.sleep(0.4)
    client.call(NAME, LET_GO, None, partial(q.alter, db, **lifted))
    other.join()
    with suppress(UnknownSession):
        session.end()
    q.truncate(db)


# Checkers. The auditor judges at each commit that no bound in force is exceeded.


def none_is_stuck(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no ready task waits once only one process is left."""
    for op in trace.of(NAME, LAST_TAKE):
        if op.done and op.result is None:
            yield f"a task was ready, and no take got it for {WAIT_S:g} s"


def leases_in_force(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the leases of each task last as long as the ttr that was in force during its put."""
    puts = {op.result: op for op in trace.of(NAME, PUT) if op.done}
    changes = [op for op in trace.of(NAME, ALTER, WITHIN) if "ttr" in op.argument]
    for take in trace.of(NAME, TAKE):
        for task in take.result or () if take.done else ():
            put = puts.get(task.id)
            if put is not None and task.lease_s not in _ttrs_s(put, changes):
                yield f"{task.id} was put under a ttr of {_ttrs_s(put, changes)} s, and has {task.lease_s} s"


def _ttrs_s(put: Operation, changes: Sequence[Operation]) -> set[float]:
    """Each ttr that may have been in force during a put: that of no change that is known to be over."""
    begun = [op for op in changes if op.began < (put.ended or op.began)]
    over = [op for op in begun if op.done and op.before(put)]
    last = [op for op in begun if not any(op.before(other) for other in over)]
    return {op.argument["ttr"] for op in last} | (set() if over else {TTRS_S[0]})


def one_history(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each change began with the values of the one before it, and the last ones are stored."""
    for op in trace.of(NAME, HISTORY):
        options, alterations = op.result if op.done else ({}, [])
        now: dict[str, Any] = {}
        for one in reversed(alterations):
            for name, (before, after) in one.changes.items():
                if now.get(name, before) != before:
                    yield f"{name} was {now[name]}, and a change went from {before} to {after}"
                now[name] = after
        for name, value in now.items():
            if options[name] != value:
                yield f"{name} is {options[name]}, and the last change went to {value}"
        yield from _made_once(trace, [one.at for one in alterations])


def _made_once(trace: Trace, times: Sequence[float]) -> Iterator[str]:
    """Each change of a call given a database stands in the history once."""
    for op in trace.of(NAME, ALTER):
        if op.done and op.result.changes and times.count(op.result.at) != 1 and len(times) < 20:
            yield f"a change stands {times.count(op.result.at)} times in the history: {op.result}"


def woken(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a waiting call went on promptly, once the bound was lifted."""
    lifted = [op for op in trace.of(NAME, LET_GO) if op.done]
    for op in trace.of(NAME, WOKEN):
        if op.done and (op.result is None or _late_s(op, lifted) > PROMPT_S):
            yield f"a waiting call went on {_late_s(op, lifted):.1f} s after the change, with {op.result}"


def _late_s(op: Operation, lifted: Sequence[Operation]) -> float:
    return (op.ended_s or 0.0) - min((one.ended_s or 0.0 for one in lifted), default=0.0)


def agreeing(_: Trace, database: Database) -> Iterator[str]:
    """Check that all keys of the root agree."""
    for finding in verify(database).findings:
        yield f"verify: {finding.text}"
