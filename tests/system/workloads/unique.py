"""Unique keys: puts of few keys at once, by several processes, while their tasks run, fail, expire and move.

After each commit, the auditor compares entries, windows and records (audit/agreement.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueFull, RepartitionUnderWay, TaskNotFound, UniqueTaskBusy
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.audit.rules import TAKE
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, by_chance, in_threads, outlive, play, taken

KINDS = ("fifottl", "utubettl", "limfifottl")
WINDOW_S = 3.0
OVER_S = WINDOW_S + limits.CLOCK_SKEW_S + 2.0
"""After this time, each window is over by any clock, and swept."""
SCOPES: dict[str, Any] = {"a": "queued", "b": "unfinished", "c": WINDOW_S, "d": "unfinished"}
MORTAL = "bc"
"""The keys of tasks that may expire."""
DELAYS = (0, 0, 0.5, 1.5)
NAME = "unique"
LATEST_S = 3.0
TTR_S = 2.0
QUEUED, IMMORTAL, IN_SECONDS = "a", "d", "c"
ENDS = ("ack", "delete", "cancel")


@workload(clients=2, steps=5)
def unique(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    random = simulation.random
    kind, partitions = random.choice(KINDS), random.choice((1, 1, 3))
    capacity = 6 if kind == "limfifottl" else None
    queue = Tasks(NAME, kind, if_exists="any", ttr=TTR_S, capacity=capacity, partitions=partitions)

    def put_some(q: TaskQueue, thread: int, client: Client) -> None:
        for step in range(size.steps):
            put(client, q, f"{client.name}.{thread}.{step}")
            client.pause(0.2)

    def produce(client: Client, q: TaskQueue) -> None:
        in_threads(client, {f"thread-{n}": partial(put_some, q, n) for n in range(2)})

    def operate(client: Client, q: TaskQueue) -> None:
        found = q.tasks(client.db, client.random.choice("r~!"), 3)
        if found:
            end(client, q, client.random.choice(("delete", "cancel")), found[-1].id)
        if partitions > 1 and client.random.random() < 0.3:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3, 5)))
        if client.random.random() < 0.1:
            client.call(NAME, "truncate", None, partial(q.truncate, client.db))

    roles = {
        "operator": queue.repeating(size.steps, operate, 0.7, pauses_first=True),
        "producer-": queue.using(produce),
        "worker-": queue.working(size.steps, once, lives=2),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [*promises(simulation.faults.clock_skew_s), no_watch_left_behind]


def survive(client: Client, q: TaskQueue) -> None:
    outlive(client, q, ack)
    client.runtime.sleep(OVER_S)
    client.call(NAME, "left", None, lambda: run(client.db, partial(left, q)))


# Calls.


def put(client: Client, q: TaskQueue, data: str) -> None:
    """Put with one of the keys; sometimes twice in a transaction of the caller."""
    random = client.random
    key, conflict = random.choice(list(SCOPES)), random.choice(("skip", "skip", "replace", "debounce"))
    options: dict[str, Any] = {"unique": key, "scope": SCOPES[key], "on_conflict": conflict}
    options["delay"] = random.choice(DELAYS)
    if key in MORTAL:
        options["ttl"] = random.choice((None, 2.0))
    if conflict == "debounce":
        options["debounce_max"] = LATEST_S
    if q.kind == "utubettl":
        options["key"] = random.choice("xy")
    call: Callable[[], Task] = partial(q.put, client.db, data, **options)
    twice = random.random() < 0.3
    if twice:
        call = partial(run, client.db, partial(put_twice, q, data, options))
    with suppress(UniqueTaskBusy, QueueFull):
        client.call(NAME, "put", Put(key, data, conflict, twice), call)


def put_twice(q: TaskQueue, data: str, options: dict[str, Any], tr: Transaction) -> Task:
    first, second = (q.put(tr, data, **options) for _ in range(2))
    is_one = (second.id, second.existed) == (first.id, True)
    assert is_one or options["unique"] in MORTAL  # its time may be over in between
    return first


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and end its lease by chance, or let it end by its time."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is not None:
        client.pause(0.4)
        by_chance(client, q, task, VERBS, delays_s=(0.3,))


def ack(client: Client, q: TaskQueue, task: Task) -> None:
    end(client, q, "ack", task)


VERBS = (ack, "release", "give back", "put off", "bury", "kick", "release all")


def end(client: Client, q: TaskQueue, verb: str, task: Task | str) -> None:
    id_ = task.id if isinstance(task, Task) else task
    with suppress(NotTaken, TaskNotFound):
        client.call(NAME, verb, id_, lambda: str(getattr(q, verb)(client.db, task).state))


def left(q: TaskQueue, tr: Transaction) -> int:
    """Return the number of entries and windows."""
    keys = SharedKeys(q.contents)
    return sum(
        len(tr.snapshot.get_range(under.start, under.stop).to_list())
        for under in (keys.uniques, keys.windows)
    )


# Checkers.


class Put(NamedTuple):
    """The argument of a put. `twice`: in a transaction of the caller, whose retries have no receipt."""

    key: str
    data: str
    on_conflict: str
    twice: bool


def puts(trace: Trace) -> list[tuple[Operation, Put, Task]]:
    return [(op, op.argument, op.result) for op in trace.of(NAME, "put") if op.done]


def one_task_has_a_key(trace: Trace, _: Database, skew_s: float) -> Iterator[str]:
    """Check that no put made a task while another one surely had its key.

    `skew_s`: the most by which two clocks of the run differ.
    """
    made = [(op, wish, task) for op, wish, task in puts(trace) if not task.existed]
    for op, wish, task in made:
        for earlier, other, holder in made:
            is_earlier = other.key == wish.key and earlier.before(op)
            if is_earlier and has_surely(trace, wish.key, earlier, op, skew_s):
                yield f"{op.client} made {task.id}, while {holder.id} had the key {wish.key}"


def has_surely(trace: Trace, key: str, put: Operation, until: Operation, skew_s: float) -> bool:
    """True if nothing that had begun at the end of `until` may have ended the scope of the task of `put`."""
    if any(begun(op, until) for op in trace.of(NAME, "truncate")):
        return False
    if key == IN_SECONDS:  # the window begins within the put
        return until.ended_s is not None and until.ended_s - put.began_s < WINDOW_S - skew_s
    if key not in (QUEUED, IMMORTAL):
        return False
    ends = [op for op in trace.of(NAME, *ENDS) if op.argument == put.result.id]
    if key == QUEUED:
        ends += [op for op in trace.of(NAME, TAKE) if _may_have_taken(op, put.result, skew_s)]
    return not any(begun(op, until) for op in ends)


def _may_have_taken(op: Operation, task: Task, skew_s: float) -> bool:
    """True, too, for a take that has given back what another one had delivered to it: it has no answer, or it
    lasted longer than that lease, and got another task.
    """
    if not op.done or op.result is None or op.result.id == task.id:
        return True
    lasted_s = (op.ended_s or 0.0) - op.began_s
    return lasted_s > TTR_S - skew_s


def begun(op: Operation, until: Operation) -> bool:
    """True if `op` had begun when `until` ended."""
    return until.ended is None or op.began < until.ended


def returned_tasks_exist(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task that a put has found was put before, and had not ended before."""
    found = puts(trace)
    made = {task.id for _, _, task in found if not task.existed}
    for op, wish, task in found:
        if not task.existed:
            continue
        if task.id not in made and not any(begun(other, op) for other in doubtful(trace, wish.key)):
            yield f"{op.client} found {task.id}, which no put has made"
        if wish.key != IN_SECONDS:
            yield from (
                f"{op.client} found {task.id}, which {end.name} had ended"
                for end in ended(trace, task.id)
                if end.before(op)
            )


def doubtful(trace: Trace, key: str) -> list[Operation]:
    """Return the puts of a key that may have made a task that none of them has returned as new."""
    return [
        op for op in trace.of(NAME, "put") if op.argument.key == key and (not op.done or op.argument.twice)
    ]


def ended(trace: Trace, id_: str) -> list[Operation]:
    """Return the calls that have ended the task. The cancel of a taken task only marks it."""
    ends = [op for op in trace.of(NAME, *ENDS) if op.done and op.argument == id_]
    return [op for op in ends if op.name != "cancel" or op.result == str(TaskState.DONE)]


def later_data_win(trace: Trace, _: Database) -> Iterator[str]:
    written = [one for one in puts(trace) if not one[2].existed or one[1].on_conflict != "skip"]
    for take in trace.of(NAME, TAKE):
        task = take.result if take.done else None
        if task is None:
            continue
        of_task = [(op, wish) for op, wish, other in written if other.id == task.id]
        for op, wish in of_task:
            if wish.data == task.data and any(op.before(one) and one.before(take) for one, _ in of_task):
                yield f"{take.client} got {wish.data} of {task.id}, which a later put had replaced"


def debounces_are_bounded(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no put has moved a due time beyond the maximum from the first put."""
    for op, wish, task in puts(trace):
        moved = task.existed and wish.on_conflict == "debounce" and task.state == TaskState.DELAYED
        if moved and task.until is not None and task.until > task.created + LATEST_S + 1e-6:
            yield f"{op.client} made {task.id} due {task.until - task.created} s after its put"


def nothing_is_left(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no entry and no window is left once all tasks have ended, and all windows are over."""
    yield from (f"{op.result} keys of unique keys are left" for op in trace.of(NAME, "left") if op.result)


def promises(skew_s: float) -> tuple[Checker, ...]:
    """The checkers of a run. `skew_s`: the most by which two of its clocks differ."""
    return (
        partial(one_task_has_a_key, skew_s=skew_s),
        returned_tasks_exist,
        later_data_win,
        debounces_are_bounded,
        nothing_is_left,
    )
