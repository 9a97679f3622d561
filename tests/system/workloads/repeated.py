"""Requests that several clients make at once, as after a lost answer: one of them has the effect.

All clients put the same tasks, by unique keys, and each lease is known to all of them. So two clients may
ack, release or bury with one lease, or delete one task. At the end, the counters of the queue equal the
answers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, TaskNotFound
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import cramped, once
from tests.system.workloads.stage import EFFECTS, VERBS, Tasks, audit, effects_in, outlive, play, taken

NAME = "repeated"
PUT, ACK, DELETE, COUNTS = "put once", "ack", "delete", "counts"
WINDOW_S = 86_400.0
"""Longer than a run: a key has one task in it."""
TTR_S = 60.0
SHARED_MAX = 3
EFFECT_P = 0.5
ENDS = (ACK, "release", "bury", DELETE)
DICE = (ACK, ACK, *ENDS, "touch")
COUNTED = (ACK, "bury", DELETE, "touch")
"""The ends of sessions count as releases."""


@workload(clients=3, steps=4)
def repeated(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    queue = Tasks(NAME, ttr=TTR_S, partitions=simulation.random.choice((1, 1, 3)))
    leases: list[Task] = []

    def use(client: Client, q: TaskQueue) -> None:
        for number in range(2 * size.steps):
            put(client, q, f"{number}")
            task = taken(client, q, 0)
            leases.extend([task] if task is not None else [])
            client.pause(0.2)
            for lease in leases[-SHARED_MAX:]:
                end(client, q, client.random.choice(DICE), lease)

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, lambda client, q, task: end(client, q, ACK, task))
        audit(client, q)
        client.call(NAME, COUNTS, None, lambda: q.statistics(client.db)["calls"])

    play(simulation, size, {"user-": queue.using(use)}, {"survivor": queue.using(survive)})
    return CHECKS


# Calls.


def put(client: Client, q: TaskQueue, value: str) -> None:
    call = partial(q.put, client.db, value, unique=value, scope=WINDOW_S)
    client.call(NAME, PUT, value, lambda: call().id)


def end(client: Client, q: TaskQueue, verb: str, task: Task) -> None:
    """Call a verb with a lease that others use, too; an ack sometimes in a transaction with an effect."""
    call: Callable[[], object] = partial(VERBS[verb], q, client.db, task, 0)
    has_effect = verb == ACK and client.random.random() < EFFECT_P
    if has_effect:
        call = partial(once, client, partial(ack_with_effect, q, task))
    with suppress(NotTaken, TaskNotFound):
        client.call(NAME, verb, (task.id, task.token, has_effect), call)


def ack_with_effect(q: TaskQueue, task: Task, tr: Transaction) -> None:
    q.ack(tr, task)
    tr.add(EFFECTS + task.id.encode(), b"\x01")


# Checkers.


def one_task_for_a_key(trace: Trace, _: Database) -> Iterator[str]:
    """Check that all puts of a key were told the same task."""
    found: dict[str, set[str]] = {}
    for op in trace.of(NAME, PUT):
        if op.done:
            found.setdefault(op.argument, set()).add(op.result)
    yield from (f"{len(ids)} tasks have the key {key!r}" for key, ids in found.items() if len(ids) > 1)


def a_lease_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that of all calls with one lease, one that ends it was told that it has done so."""
    ends = Counter(op.argument[:2] for op in trace.of(NAME, *ENDS) if op.done and op.name != DELETE)
    yield from (f"{count} calls have ended a lease of {id_}" for (id_, _), count in ends.items() if count > 1)
    deletes = Counter(op.argument[0] for op in trace.of(NAME, ACK, DELETE) if op.done)
    yield from (f"{count} calls have removed {id_}" for id_, count in deletes.items() if count > 1)


def acks_have_their_effects(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each ack with an effect has had it once, and others had none."""
    wishes = [op for op in trace.of(NAME, ACK) if op.argument[2]]
    effects = effects_in(database)
    yield from (f"{count} effects of the ack of {id_}" for id_, count in effects.items() if count != 1)
    may_have = {op.argument[0] for op in wishes if op.done or op.unknown}
    must_have = {op.argument[0] for op in wishes if op.done}
    if not must_have <= effects.keys() <= may_have:
        yield f"acked with an effect are {sorted(must_have)}, and effects have {sorted(effects)}"


def counters_equal_the_answers(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the queue has counted each call that was told of its effect, and no other one."""
    (counts,) = [op.result for op in trace.of(NAME, COUNTS)]
    puts = trace.of(NAME, PUT)
    made, tried = {op.result for op in puts if op.done}, {op.argument for op in puts}
    bounds = {"put": (len(made), len(tried))}
    for verb in COUNTED:
        calls = trace.of(NAME, verb)
        done = sum(op.done for op in calls)
        bounds[verb] = done, done + sum(op.unknown for op in calls)
    for verb, (least, most) in bounds.items():
        if not least <= counts[verb] <= most:
            yield f"the queue has counted {counts[verb]} of {verb}, told were {least} to {most}"


CHECKS = [
    one_task_for_a_key,
    a_lease_ends_once,
    acks_have_their_effects,
    counters_equal_the_answers,
    exact_statistics(NAME),
    no_watch_left_behind,
]
