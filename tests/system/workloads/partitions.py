"""A task queue whose number of partitions changes under load: calls of all sorts meet each change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Self

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.partitions import plan_of
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, or_a_bag, values_of
from tests.system.workloads.stage import EFFECTS, Roles, Tasks, effects_in, in_threads, play, total

KINDS = ("fifottl", "utubettl", "utubettl", "fair")
WAYS = ((4, 2), (4, 2, 1), (4, 2, 8), (2, 4, 1))
DONE = b"done/"
BOUNDED = {"fifottl": "limfifottl", "fair": "fair"}
"""Kinds with a capacity, in place of others."""
NAME = "partitions"
SURVIVOR_S = 400.0
PROMPT_S = 0.8
KEYS = ("a", "b", "c")
"""Task keys of many tasks."""
GONE = {"die", "stall", "unknown_done", "unknown_after_conflict"}
"""With these faults a task may be held, and no call that has ended tells it."""
LATE = {"slow_reply", "watch_late", "watch_very_late", "watch_missed", "clock_skew_s", *GONE}
"""With these faults a take may wait beside a ready task."""


@workload(clients=2, steps=4)
def partitions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    in_a_hurry(simulation)
    kind, way = or_a_bag(simulation, random.choice(KINDS)), random.choice(WAYS)
    concurrency, pauses = random.choice((1, 1, 2)), random.random() < 0.3
    most = concurrency if kind == "utubettl" else 1
    begun, ids, rest_s = random.choice((1, 1, 2)), list[str](), random.choice((0.1, 0.5, 3))
    more = More.drawn(simulation.seed, kind)
    options = {"ttr": 2, "key_concurrency": most, "capacity": more.capacity, "partitions": begun}
    queue = Tasks(NAME, more.kind, if_exists="any", **options)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, size.steps):
            ids.extend(put(client, q, value, more)[:1])
            client.runtime.sleep(client.random.choice((0.01, rest_s)))

    def work(client: Client, q: TaskQueue) -> None:
        work_with(q, client.db, size.steps, client)

    def work_by_two(client: Client, q: TaskQueue) -> None:
        """Work with one handle in two threads, each with a database of its own."""
        with Database(client.db.engine, client.runtime) as second:
            bodies = [partial(work_with, q, db, size.steps) for db in (client.db, second)]
            in_threads(client, {f"{number}": body for number, body in enumerate(bodies)})

    def change(client: Client, q: TaskQueue) -> None:
        repartition(client, q, way)

    def operate(client: Client, q: TaskQueue) -> None:
        for _ in range(size.steps):
            client.pause(0.5)
            does: list[Callable[[], Any]] = [partial(q.kick, client.db, 4), partial(by_id, client, q, ids)]
            if pauses:
                does += [partial(q.pause, client.db), partial(q.resume, client.db)]
            client.random.choice(does)()
        q.resume(client.db)

    workers = [work_by_two if more.by_two and number else work for number in range(size.clients)]
    roles: Roles = {
        "producer-": queue.using(produce),
        "worker-": [*map(queue.using, workers)],
        "partitioner": queue.using(change),
        "operator": queue.using(operate),
    }
    play(simulation, size, roles, {"survivor": queue.using(outlive)})
    return list(checks(set(simulation.faults.active), pauses))


def work_with(q: TaskQueue, db: Database, steps: int, client: Client) -> None:
    """Take tasks in two sessions, one after the other."""
    for _ in range(2):
        with suppress(UnknownSession), Session(db, ttr=3) as session:
            for _ in range(steps):
                once(client, q, session, db)


def in_a_hurry(simulation: Simulation) -> None:
    """Set small bounds, and short times between looks."""
    random = simulation.random
    simulation.limit(
        DUE_BATCH=3,
        VERB_BATCH=3,
        KEY_LEVEL_MIN=1,
        KEYS_LOOKED_AT_MAX=random.choice((1, 2, 100)),
        TAKES_PER_VISIT=random.choice((2, 8)),
        LOOKS_PER_CLEARING=2,
        HOMES_CHOSEN_EVERY_S=random.choice((0.1, 5)),
        PARTITIONS_LOWERED_EVERY_S=random.choice((0.5, 60)),
        LOOK_EVERY_S=60,  # no look by time: a wake-up that is missed has no remedy
    )


@dataclass(frozen=True)
class More:
    kind: str
    capacity: int | None
    ttl_s: float | None
    key: str | None
    """The task key of most tasks; None for several."""
    by_two: bool
    """A worker works by two threads, each with a database of its own, and one handle."""

    @classmethod
    def drawn(cls, seed: int, kind: str) -> Self:
        # From other dice, so that all else of a seed is as it would be without.
        dice = Random(f"{seed} more")
        ttl_s, by_two = dice.choice((None, None, 0.5, 3)), dice.random() < 0.3
        capacity = dice.choice((None, 2, 4)) if kind in BOUNDED else None
        key = dice.choice("abcdefgh") if dice.random() < 0.3 else None
        return cls(kind if capacity is None else BOUNDED[kind], capacity, ttl_s, key, by_two)

    def options(self, client: Client, key: str | None) -> dict[str, Any]:
        """Options of the put of a task that would have that task key."""
        options: dict[str, Any] = {}
        if self.key is not None and key in KEYS:
            options["key"] = self.key
        if self.ttl_s is not None and client.random.random() < 0.5:
            options["ttl"] = self.ttl_s
        return options


# Calls.


def put(client: Client, q: TaskQueue, value: str, more: More) -> list[str]:
    """Put a task, or two of different keys in one transaction. Return their ids, none if there is no room."""
    key = client.random.choice((*KEYS, value)) if q.kind in ("utubettl", "fair") else None
    options: dict[str, Any] = {"delay": client.random.choice((0, 0, 0, 0.5)), "key": key}
    options |= more.options(client, key)
    key = options.pop("key")
    names = [value, f"{value}+"] if client.random.random() < 0.3 else [value]

    def together(tr: Any) -> list[str]:
        if tr.get(DONE + value.encode()).present():
            return []  # an attempt with an unknown result has committed
        tr.set(DONE + value.encode(), b"")
        return [q.put(tr, one, key=key and key * n, **options).id for n, one in enumerate(names, 1)]

    def alone() -> list[str]:
        patience: dict[str, Any] = {} if more.capacity is None else {"timeout": 1}
        return [q.put(client.db, value, key=key, **patience, **options).id]

    ids: list[str] = []
    with suppress(QueueFull):
        argument = (names, key, options["delay"], options.get("ttl"))
        does = alone if len(names) == 1 else partial(run, client.db, together)
        ids = client.call(NAME, "put", argument, does)
    return ids


def once(client: Client, q: TaskQueue, session: Session, db: Database) -> None:
    """Take a task, if there is one, and call a method with it, by chance."""
    timeout = client.random.choice((0, 1, 5))
    task = client.random.choice((took, took, took_within))(client, q, session, db, timeout)
    if task is None:
        return
    client.pause(0.2)
    does: list[Callable[[], Any]] = [
        partial(finish, client, q, task, db),
        partial(finish, client, q, task, db),
        partial(q.release, db, task, delay=client.random.choice((0, 0.5))),
        partial(q.touch, db, task, 1),
        partial(q.bury, db, task),
        partial(q.release_all, db),
    ]
    with suppress(NotTaken):
        client.random.choice(does)()


def took(client: Client, q: TaskQueue, session: Session, db: Database, timeout: float) -> Task | None:
    found: list[Task] = []

    def body() -> str | None:
        found.extend(q.take_many(db, 1, timeout, session=session))
        return found[0].data if found else None

    client.call(NAME, "take", timeout, body)
    return found[0] if found else None


def took_within(client: Client, q: TaskQueue, session: Session, db: Database, _: float) -> Task | None:
    """Take in a transaction of the caller, which also writes: so its answer of nothing has to hold."""
    found: list[Task | None] = []

    def body(tr: Any) -> str | None:
        found.append(q.take(tr, session=session))
        tr.set(b"answer", b"")
        return None if found[-1] is None else found[-1].data

    client.call(NAME, "take", None, lambda: run(db, body))
    return found[-1]


def by_id(client: Client, q: TaskQueue, ids: Sequence[str]) -> None:
    """Call a verb with the id of a task, wherever it is."""
    if not ids:
        return
    id_ = client.random.choice(ids)
    verb = client.random.choice((q.peek, q.bury, q.delete, q.cancel))
    with suppress(TaskNotFound, NotTaken):
        name = "remove" if verb in (q.delete, q.cancel) else "look"
        client.call(NAME, name, id_, lambda: verb(client.db, id_).data)


def finish(client: Client, q: TaskQueue, task: Task, db: Database) -> None:
    def body(tr: Any) -> None:
        latest = q.ack(tr, task).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    with suppress(NotTaken):
        client.call(NAME, "finish", task.data, lambda: run(db, body))


def repartition(client: Client, q: TaskQueue, way: Sequence[int]) -> None:
    for count in way:
        client.pause(0.5)
        if client.random.random() < 0.15:
            return  # in the middle, as it may be: another process finishes
        for _ in range(20):
            with suppress(RepartitionUnderWay):
                client.call(NAME, "repartition", count, partial(q.repartition, client.db, count))
                break
            client.pause(0.5)


def outlive(client: Client, q: TaskQueue) -> None:
    """Finish all remaining tasks, and wait for the end of the repartition."""
    until = client.runtime.monotonic() + SURVIVOR_S
    q.resume(client.db)
    while client.runtime.monotonic() < until and (total(q, client.db) or is_under_way(q, client.db)):
        q.kick(client.db, 9)
        task = q.take(client.db, 1.0)
        if task is not None:
            finish(client, q, task, client.db)
    client.call(NAME, "is under way", None, lambda: is_under_way(q, client.db))


# Checkers.


def checks(active: set[str], pauses: bool) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (each_has_one_effect, the_repartition_ends, found_by_its_id, no_watch_left_behind)
    if not pauses and not active & GONE:
        yield nothing_is_true
    if not pauses and not active & LATE:
        yield woken_in_time


def is_under_way(q: TaskQueue, db: Any) -> bool:
    """True if a repartition has begun, and no process has finished it."""
    plan = plan_of(Registry(DEFAULT_ROOT).find(db, q.name))
    return plan is not None and plan.before > 0


def each_has_one_effect(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task was acked once, or was removed by its id, and no other value was acked."""
    effects, puts = effects_in(database), _puts(trace)
    removals = trace.of(NAME, "remove")
    removed = {op.result for op in removals if op.done}
    unknown = {op.argument for op in removals if not op.done and op.error is None}
    for value, count in effects.items():
        if count != 1 or value not in puts:
            yield f"{count} effects of {value!r}"
    for value, op in puts.items():
        if (
            op.done
            and not op.argument[3]
            and value not in effects
            and value not in removed
            and not unknown & set(op.result)
        ):
            yield f"lost: {value!r}"


def the_repartition_ends(trace: Trace, _: Database) -> Iterator[str]:
    if any(op.result for op in trace.of(NAME, "is under way")):
        yield "the repartition has not ended"


def found_by_its_id(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a verb by id finds each task without a ttl that no call has begun to end."""
    ends = trace.of(NAME, "finish", "remove")
    put_by = {id_: op for op in trace.of(NAME, "put") if op.done and not op.argument[3] for id_ in op.result}
    for look in trace.of(NAME, "look", "remove"):
        put = put_by.get(look.argument)
        if not isinstance(look.error, TaskNotFound) or put is None or not put.before(look):
            continue
        of_it = (look.argument, *put.argument[0])
        if not any(op.argument in of_it and op is not look and not look.before(op) for op in ends):
            yield f"{look.client} was told that the task of {put.argument[0]} is not there"


def nothing_is_true(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take answers "nothing" only if no task was ready during the whole call."""
    takers = _takers(trace)
    for empty in (op for op in trace.of(NAME, "take") if op.done and op.result is None):
        for value, op in _ready_at_once(trace):
            of_it = takers.get(value, ())
            if of_it and op.before(empty) and all(empty.before(taker) for taker in of_it):
                yield f"told {empty.client} that there is nothing while {value!r} lay there"


def woken_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a take which waits gets a task soon after its put, and none waits for longer beside it."""
    takers = _takers(trace)
    for value, op in _ready_at_once(trace):
        ended_s = op.ended_s
        # The first one to end: a take that began before it may have got the task after its first lease.
        taken_s = min((one.ended_s for one in takers.get(value, ()) if one.ended_s is not None), default=None)
        if ended_s is None or taken_s is None:
            continue
        for wait in trace.of(NAME, "take"):
            if wait.ended_s is None or not wait.argument:
                continue
            beside_s = min(wait.ended_s, taken_s) - max(wait.began_s, ended_s)
            if beside_s > PROMPT_S:
                yield f"{wait.client} waited for {beside_s:.1f} s beside the ready {value!r}"


def is_its_own(put: tuple[list[str], str | None, float, float | None]) -> bool:
    """True if the task key of a put belongs to no other put."""
    names, key, *_ = put
    return key is None or key == names[0]


def _puts(trace: Trace) -> dict[str, Operation]:
    return {value: op for op in trace.of(NAME, "put") for value in op.argument[0]}


def _ready_at_once(trace: Trace) -> Sequence[tuple[str, Operation]]:
    """The tasks that were ready from their put on: without a delay and a ttl, and of no key that others may
    hold.

    Not those that a verb was called for by their ids.
    """
    touched = {op.argument for op in trace.of(NAME, "remove", "look")}
    return [
        (value, op)
        for op in trace.of(NAME, "put")
        for value in op.argument[0]
        if op.done and not any(op.argument[2:]) and is_its_own(op.argument) and not touched & set(op.result)
    ]


def _takers(trace: Trace) -> dict[str, list[Operation]]:
    """The takes that have got each task, and the calls that finished it."""
    found: dict[str, list[Operation]] = {}
    for op in trace.of(NAME, "take", "finish"):
        value = op.argument if op.name == "finish" else op.result
        if value is not None:
            found.setdefault(value, []).append(op)
    return found
