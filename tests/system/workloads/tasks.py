"""Task queues with plain workers: effects beside acks, progress, steps, and ended tasks that are kept."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, or_a_bag
from tests.system.workloads.stage import (
    EFFECTS,
    Tasks,
    audit,
    by_chance,
    effects_in,
    ids,
    once_each,
    outlive,
    play,
    put_plain,
    taken,
)

NAME = "tasks"
FOLLOWS = "follows"
TOLD = (0.25, 0.5, 0.75)
Seen = tuple[int, float | None]
"""The attempts of a task, and its progress."""
STEPPED = "steps"
STEPS = {"charge": False, "count": True, "mail": False}
"""The steps of each task: true for one in a transaction."""
STEP_EFFECTS = b"step/"
RETAINED = "retained"
MANY, FEW = 1_000, 3
MODES = {"all": (1e6, MANY), "the latest": (1e6, FEW), "the young": (2.0, MANY)}
"""What the queue keeps: for how many seconds, and at most how many."""
SWEPT_S = 2.0 + limits.CLOCK_SKEW_S + 1.0
"""After this time, the young are too old by any clock, and swept."""
OUTCOMES = {"ack": "acked", "delete": "deleted", "cancel": "cancelled", "release": "cancelled"}


@workload(clients=2, steps=4)
def tasks(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Workers that die, stall, or end their sessions with tasks in hand; effects beside acks."""
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    queue = Tasks(NAME, or_a_bag(simulation, "fifottl"), ttr=2)
    roles = {
        "producer-": queue.putting(size.steps, 0.2, put),
        "worker-": queue.working(size.steps, once, lives=2, after_death_s=0.5),
        "auditor": queue.repeating(size.steps, audit, 0.5),
    }
    play(simulation, size, roles, {"survivor": queue.outliving(finish)})
    return [exact_statistics(NAME), partial(once_each, NAME), no_watch_left_behind]


def put(client: Client, q: TaskQueue, value: str) -> None:
    put_plain(client, q, value, delay=client.random.choice((0, 0, 0.5)))


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and call one method with it, by chance."""
    task = taken(client, q, client.random.choice((0, 1, 3)), session)
    if task is not None:
        client.pause(0.5)
        by_chance(client, q, task, VERBS, delays_s=(0, 0.5), late_s=0.1)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Any) -> None:
        # Only the latest lease may end a task; another one is recorded like two effects.
        latest = q.ack(tr, task).attempts == task.attempts
        tr.add(EFFECTS + task.data.encode(), b"\x01" if latest else b"\x02")

    try:
        client.call(NAME, "finish", task.data, lambda: run(client.db, body))
    except NotTaken:
        client.pause(0.1)


VERBS = (finish, finish, "put off", "touch", "bury", "kick", "release all")


@workload(clients=2, steps=3)
def follows(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Progress: holders that tell it, lose their leases and come too late; followers that wait for it."""
    cramped(simulation)
    queue = Tasks(FOLLOWS, ttr=2)
    roles = {
        "producer": queue.repeating(size.clients * size.steps, put_followed, 0.2),
        "worker-": queue.working(2 * size.steps, attempt_one),
        "follower-": queue.repeating(2 * size.steps, follow, 0.3, pauses_first=True),
    }
    play(simulation, size, roles, {"survivor": queue.outliving(ack)})
    return [
        exact_statistics(FOLLOWS),
        told_before_seen,
        never_backwards,
        told_by_holders,
        no_watch_left_behind,
    ]


def put_followed(client: Client, q: TaskQueue) -> None:
    client.call(FOLLOWS, "put", None, lambda: q.put(client.db, "x").id)


def attempt_one(client: Client, q: TaskQueue, session: Session) -> None:
    if (task := taken(client, q, 1, session)) is not None:
        tell_progress(client, q, task)


def follow(client: Client, q: TaskQueue) -> None:
    if found := run(client.db, partial(ids, q)):
        watch(client, q, client.random.choice(found))


def ack(client: Client, q: TaskQueue, task: Task) -> None:
    q.ack(client.db, task)


def tell_progress(client: Client, q: TaskQueue, task: Task) -> None:
    """Tell the progress step by step, and end the lease, or let it end by its time."""
    with suppress(NotTaken):
        for number in TOLD:
            client.pause(1.5)
            seen = (task.attempts, number)
            client.call(FOLLOWS, "tell", (task.id, seen), partial(q.progress, client.db, task, number))
        client.random.choice((q.ack, q.release))(client.db, task)


def watch(client: Client, q: TaskQueue, id_: str) -> None:
    """Follow the progress of one task for a while, or until the task ends."""
    seen: Seen = (0, None)

    def look() -> Seen | None:
        found = q.wait_for_progress(client.db, id_, seen[1], timeout_s)
        return None if found is None else (found.attempts, found.fraction)

    with suppress(TaskNotFound):
        for _ in range(2 * len(TOLD)):
            timeout_s = client.random.choice((0, 1, 3))
            seen = client.call(FOLLOWS, "follow", (id_, seen), look) or seen


def told_before_seen(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a follower saw the progress of an attempt only after that attempt had begun to tell it."""
    told = trace.of(FOLLOWS, "tell")
    for follow in (op for op in trace.of(FOLLOWS, "follow") if op.done and op.result):
        key = (follow.argument[0], follow.result)
        began = any(op.argument == key and not follow.before(op) for op in told)
        if follow.result[1] is not None and not began:
            yield f"{follow.client} saw {key}, which nothing had told"


def never_backwards(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a follower saw neither an earlier attempt, nor less progress of the same attempt."""
    for follow in (op for op in trace.of(FOLLOWS, "follow") if op.done and op.result):
        (_, (attempts, before)), (now, fraction) = follow.argument, follow.result
        if now < attempts or (now == attempts and fraction is not None and fraction <= (before or 0)):
            yield f"{follow.client} saw {follow.result} after {follow.argument}"


def told_by_holders(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no attempt told its progress after a later attempt had."""
    told = [op for op in trace.of(FOLLOWS, "tell") if op.done]
    for late in told:
        (id_, (attempts, _fraction)) = late.argument
        for op in told:
            if op.argument[0] == id_ and op.argument[1][0] > attempts and op.before(late):
                yield f"{late.client} told {late.argument} after {op.argument}"


class Did(NamedTuple):
    """The result of a step, and true if its function has run in this call."""

    result: str
    ran: bool


@workload(clients=2, steps=3)
def steps(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Attempts that do the steps of their tasks, in transactions and outside, and lose their leases."""
    cramped(simulation)
    random = simulation.random
    kind, partitions = random.choice(("fifottl", "utubettl", "fair")), random.choice((1, 3))
    queue = Tasks(STEPPED, kind, if_exists="any", ttr=2, partitions=partitions)

    def produce(client: Client, q: TaskQueue) -> None:
        for number in range(size.clients * size.steps):
            key: Any = {} if kind == "fifottl" else {"key": number % 3}
            client.call(STEPPED, "put", None, partial(q.put, client.db, "x", **key))
            client.pause(0.2)

    def work(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for turn in range(4 * size.steps):
                if (task := taken(client, q, 1, session)) is not None:
                    do_steps(client, q, task, f"{client.name}.{turn}")

    def operate(client: Client, q: TaskQueue) -> None:
        q.kick(client.db, 3)
        if partitions > 1:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3, 5)))

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, lambda client, q, task: do_steps(client, q, task, f"survivor {task.attempts}"))

    roles = {
        "producer": queue.using(produce),
        "operator": queue.repeating(2 * size.steps, operate, 1.0, pauses_first=True),
        **{f"worker-{number}": queue.using(work) for number in range(size.clients + 1)},
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(STEPPED), one_result, done_steps_do_not_run, effects_once, no_watch_left_behind]


def do_steps(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
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
            client.call(STEPPED, "step", (task.id, name), do)
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
        tr.add(STEP_EFFECTS + f"{task.id}/{name}".encode(), b"\x01")
        return own

    result = run(client.db, lambda tr: q.step(tr, task, name, function))
    return Did(result, result == own)


def one_result(trace: Trace, _: Database) -> Iterator[str]:
    """Check that all attempts at a step were told the same result."""
    told: dict[tuple[str, str], str] = {}
    for op in trace.of(STEPPED, "step"):
        if op.done and told.setdefault(op.argument, op.result.result) != op.result.result:
            yield f"{op.client} was told {op.result.result!r} of {op.argument}, others {told[op.argument]!r}"


def done_steps_do_not_run(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no function of a step ran after the step was done."""
    done = [op for op in trace.of(STEPPED, "step") if op.done]
    for late in (op for op in done if op.result.ran):
        if any(op.argument == late.argument and op.before(late) for op in done):
            yield f"{late.client} ran the step {late.argument} again"


def effects_once(trace: Trace, db: Database) -> Iterator[str]:
    """Check that a step in a transaction has had its effect once, if it is done, and at most once if not."""
    counts = effects_in(db, STEP_EFFECTS)
    for key, count in counts.items():
        if count != 1:
            yield f"the step {key} has had its effect {count} times"
    for op in trace.of(STEPPED, "step"):
        id_, name = op.argument
        if op.done and STEPS[name] and f"{id_}/{name}" not in counts:
            yield f"{op.client} did the step {op.argument}, which has had no effect"


@workload(clients=2, steps=3)
def retained(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Ended tasks that a queue keeps: the end of each is found, and sweeps leave none too old or too many."""
    cramped(simulation)
    mode = simulation.random.choice(list(MODES))
    retain_s, most = MODES[mode]
    simulation.limit(VERB_BATCH=3, RETAINED_MAX=most)
    queue = Tasks(
        RETAINED, simulation.random.choice(("fifottl", "utubettl", "fair")), ttr=2, retain_s=retain_s
    )

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, acked)
        client.runtime.sleep(SWEPT_S)
        look(client, q)
        client.call(RETAINED, "keep", mode, partial(kept, client, q))

    roles = {
        "operator": queue.repeating(size.steps, operate, 0.5, pauses_first=True),
        "producer-": queue.repeating(size.steps, put_mortal, 0.2),
        "worker-": queue.working(size.steps, once_retained),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [exact_statistics(RETAINED), each_end_is_kept, no_other_is_kept, no_watch_left_behind]


def once_retained(client: Client, q: TaskQueue, session: Session) -> None:
    if (task := taken(client, q, 1, session)) is not None:
        client.pause(0.5)
        end_by(client, q, client.random.choice(("ack", "ack", "release")), task)


def operate(client: Client, q: TaskQueue) -> None:
    if found := run(client.db, partial(ids, q)):
        end_by(client, q, client.random.choice(("delete", "cancel")), client.random.choice(found))
    look(client, q)


def look(client: Client, q: TaskQueue) -> None:
    client.call(RETAINED, "audit", None, lambda: run(client.db, partial(counted_and_found, q)))


def put_mortal(client: Client, q: TaskQueue) -> None:
    def body() -> str:
        return q.put(client.db, "x", ttl=client.random.choice((None, None, 1))).id

    client.call(RETAINED, "put", None, body)


def end_by(client: Client, q: TaskQueue, verb: str, task: Task | str) -> None:
    id_ = task.id if isinstance(task, Task) else task
    with suppress(NotTaken, TaskNotFound):
        client.call(RETAINED, verb, id_, lambda: str(getattr(q, verb)(client.db, task).state))


def acked(client: Client, q: TaskQueue, task: Task) -> None:
    end_by(client, q, "ack", task)


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
    for keep in (op for op in trace.of(RETAINED, "keep") if op.argument == "all"):
        for verb, outcome in OUTCOMES.items():
            for op in trace.of(RETAINED, verb):
                if op.result == "-" and keep.result.get(op.argument) != outcome:
                    yield f"{verb} ended {op.argument}, and kept is {keep.result.get(op.argument)}"
        for op in trace.of(RETAINED, "put"):
            if op.done and op.result not in keep.result:
                yield f"not kept: {op.result}"


def no_other_is_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the sweeps have left none that is too old, and not too many."""
    for keep in trace.of(RETAINED, "keep"):
        most = {"all": MANY, "the latest": FEW, "the young": 0}[keep.argument]
        if len(keep.result) > most:
            yield f"{len(keep.result)} are kept of {keep.argument}"
