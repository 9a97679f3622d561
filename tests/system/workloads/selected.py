"""Waiting tasks that operators change in bulk, while others put, take and finish them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, TooMuchForOneTransaction
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.selected import ChangedTasks
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads import common
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import (
    EFFECTS,
    Tasks,
    audit,
    hold,
    once_each,
    play,
    put_plain,
    remaining,
    taken,
)

NAME, OTHER = "selected", "selected, other"
STONES, STONE = 7, {"kind": "stone"}
"""Tasks that nobody takes: a walk must find all of them."""
Edit = Mapping[str, Any]


@workload(clients=1, steps=4)
def selected(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(DUE_BATCH=3, VERB_BATCH=random.choice((1, 3)), LOOKED_THROUGH=random.choice((2, 5)))
    kind = random.choice(("fifottl", "utubettl"))
    queue = Tasks(NAME, kind)
    other = Tasks(OTHER, kind)
    roles = {
        "mason": queue.using(lay),
        "producer-": queue.putting(3 * size.steps, 0.2, put),
        "holder-": queue.working(6 * size.steps, once, ttrs_s=(1, 3), lives=2),
        "operator-": lambda client: operate(client, queue(client), other(client), 6 * size.steps),
    }
    play(simulation, size, roles, {"survivor": lambda client: survive(client, queue(client), other(client))})
    checks: list[Checker] = [partial(once_each, NAME), untouched, all_found, counted_once]
    return [exact_statistics(NAME), exact_statistics(OTHER), *checks, no_watch_left_behind]


def put(client: Client, q: TaskQueue, value: str) -> None:
    choice = client.random.choice
    key = choice("ab") if q.kind == "utubettl" else None
    put_plain(client, q, value, key=key, delay=choice((0, 0, 0.5)), headers={"kind": choice("xy")})


def lay(client: Client, q: TaskQueue) -> None:
    """Put the stones, and give them one number after the other."""
    laid = q.put_many(client.db, range(STONES), delay=1e6, headers=STONE)
    wheres: Sequence[Mapping[str, Any]] = ({"headers": STONE}, {"id": [task.id for task in laid]})
    for number in range(1, 6):
        where = client.random.choice(wheres)
        part = q.change(client.db, where, {"pri": number}, look=client.random.choice((3, None)))
        while part.after is not None:
            part = q.change(client.db, where, {"pri": number}, after=part.after)
        client.call(NAME, "find", number, partial(numbers_of, client, q))
        client.pause(0.5)


def numbers_of(client: Client, q: TaskQueue) -> list[int]:
    found = q.change(client.db, {"headers": STONE}, {"pri": 0}, dry_run=True)
    return [task.pri for task in found.examples]


def once(client: Client, q: TaskQueue, session: Session) -> None:
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is not None:
        hold(client, q, task, finish)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    """End the task, and tell its options at the take and at the end."""

    def body(tr: Transaction) -> tuple[Any, Any]:
        now = q.ack(tr, task)
        tr.add(EFFECTS + task.data.encode(), b"\x01")
        return (task.pri, task.expires), (now.pri, now.expires)

    client.call(NAME, "finish", task.data, partial(run, client.db, body))


def operate(client: Client, q: TaskQueue, other: TaskQueue, steps: int) -> None:
    for _ in range(steps):
        source, into = client.random.choice(((q, OTHER), (q, OTHER), (other, NAME)))
        where, edit = {"headers.kind": client.random.choice("xy")}, drawn(client, into)
        look = client.random.choice((None, None, 2))
        change = partial(source.change, where=where, look=look, **edit)
        with suppress(QueueFull, TooMuchForOneTransaction):
            name = edit.get("do") or ("move" if "queue" in edit["set"] else "set")
            if client.random.random() < 0.3:
                client.call(source.name, name, None, partial(in_one, client, change))
            else:
                client.call(source.name, name, None, partial(change, client.db))
        client.pause(client.random.choice((0.001, 0.001, 0.3)))
        if client.random.random() < 0.2:
            audit(client, source)


def in_one(client: Client, change: Callable[[Transaction], ChangedTasks]) -> ChangedTasks:
    """The change in a transaction of the caller. Its answer counts once, whatever becomes of the commit."""
    return common.once(client, change)


def drawn(client: Client, into: str) -> Edit:
    edits: list[Edit] = [{"do": "bury"}, {"do": "bury"}, {"do": "kick"}, {"do": "kick"}]
    edits += [
        {"set": {"pri": client.random.randint(0, 3)}},
        {"set": {"delay": client.random.choice((0, 0.4))}},
    ]
    edits += [{"set": {"delay": 0.3, "pri": 9}}, {"set": {"queue": into}}, {"set": {"queue": into}}]
    return client.random.choice(edits)


def survive(client: Client, q: TaskQueue, other: TaskQueue) -> None:
    for queue in (q, other):
        client.call(queue.name, "end", None, partial(calls_of, client, queue))
    q.change(client.db, {"headers": STONE}, do="delete")
    for _ in remaining(client, q, other):
        for queue in (q, other):
            queue.kick(client.db, 9)
            if (task := taken(client, queue, 0.5)) is not None:
                with suppress(NotTaken):
                    finish(client, queue, task)
    audit(client, q)
    audit(client, other)


def calls_of(client: Client, q: TaskQueue) -> dict[str, int]:
    return q.statistics(client.db)["calls"]


# Checkers.


def untouched(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task has got other options while it was taken."""
    for op in trace.of(NAME, "finish"):
        if op.done and op.result[0] != op.result[1]:
            yield f"{op.argument} was taken with {op.result[0]}, and finished with {op.result[1]}"


def all_found(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a walk to its end has changed all tasks that were there all the time."""
    for op in trace.of(NAME, "find"):
        if op.done and op.result != [op.argument] * STONES:
            yield f"after a walk with {op.argument}, the stones have {op.result}"


def counted_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the answers count each burial and each move once, and no other."""
    for name in (NAME, OTHER):
        for end in (op for op in trace.of(name, "end") if op.done):
            for verb, call in (("bury", "bury"), ("move", "delete")):
                calls = trace.of(name, verb)
                told = sum(answer_of(op.result).changed for op in calls if op.done)
                found = end.result[call]
                if told > found or (told < found and all(op.done for op in calls)):
                    yield f"{told} tasks of {name} have met {verb}, and {found} are counted"


def answer_of(result: Any) -> ChangedTasks:
    assert isinstance(result, ChangedTasks)
    return result
