"""A task queue whose processes have callbacks: a callback hears of each committed change once."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, QueueFull, TaskNotFound, UnknownSession, WaitStopped
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import FDBError, Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import checker, cramped, set_later, values_of
from tests.system.workloads.stage import in_threads, play, total

TTR_S = 2.0
TTLS_S = (None, None, 4.0)
BRIEF_S = (None, 0.05, 0.05)
FULL_P, CAPACITY, RARELY_S = 0.3, 2, 5.0
"""In some runs the queue is full, and puts sweep tasks that have expired."""
NAME = "told"
MARK = b"mark/"
NEVER = "never "
# After these, a change may be committed and not told, or told by a process that is gone.
DOUBTING = (
    "die",
    "stall",
    "slow_reply",
    "unknown_done",
    "unknown_not_done",
    "unknown_after_conflict",
    "clock_skew_s",
)
# With these, a lease may be over before its caller has received the task: a take that no call returns.
SLOW = ("stall", "slow_reply", "clock_skew_s")
COUNTED = ("put", "release", "bury", "kick", "touch", "ttr", "delay", "ttl")


@workload(clients=2, steps=4)
def told(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    if simulation.random.random() < 0.5:
        simulation.faults = simulation.faults.without(*DOUBTING)
    # From other dice, so that all else of a seed is as it would be without.
    is_full = Random(f"{simulation.seed} full").random() < FULL_P
    ttls_s = BRIEF_S if is_full else TTLS_S
    if is_full:
        simulation.limit(SWEEP_EVERY_S=RARELY_S)

    def produce(client: Client) -> None:
        q = listening(client, is_full)
        for value in values_of(client, size.steps):
            with suppress(QueueFull):
                client.call(NAME, "put", value, partial(put_with_mark, client, q, value, ttls_s))
            if client.random.random() < 0.3:
                put_and_cancel(client, q, value)
            client.pause(0.5)
        client.runtime.sleep(1)  # so that the last events are told

    def take(client: Client) -> None:
        q = listening(client, is_full)
        for _ in range(size.steps):
            with suppress(UnknownSession):
                take_once(client, q)

    def work(client: Client) -> None:
        in_threads(client, dict.fromkeys("abc", take))
        client.runtime.sleep(1)

    def survive(client: Client) -> None:
        q = listening(client, is_full)
        client.runtime.sleep(2 * (limits.SESSION_TTR_S + limits.CLOCK_SKEW_S))
        while total(q, client.db):
            q.kick(client.db, 9)
            task = client.call(NAME, "take", None, partial(q.take, client.db, 1))
            if task is not None:
                end(client, q, "ack", task)
        client.runtime.sleep(1)
        client.call(NAME, "statistics", None, lambda: q.statistics(client.db)["calls"])

    play(simulation, size, {"producer-": produce, "worker-": work}, {"survivor": survive})
    return list(checks(set(simulation.faults.active)))


def listening(client: Client, is_full: bool) -> TaskQueue:
    """Return the queue, with a callback that fails now and then."""
    q = opened(client, is_full)

    def callback(task: Task, event: str) -> None:
        seen = partial(client.db.get, MARK + task.data.encode())
        client.call(NAME, "told", (client.name, task.data, event), seen)
        if client.random.random() < 0.1:
            raise ValueError(event)

    q.on_task_change(callback)
    return q


def opened(client: Client, is_full: bool) -> TaskQueue:
    if is_full:
        create = partial(TaskQueue.create, client.db, NAME, "limfifottl", capacity=CAPACITY)
    else:
        create = partial(TaskQueue.create, client.db, NAME, "fifottl")
    return create(ttr=TTR_S, if_not_exists=True)


def put_with_mark(client: Client, q: TaskQueue, value: str, ttls_s: Sequence[float | None]) -> None:
    """Put a task, and a key beside it that shows to other transactions that it was committed."""
    ttl = client.random.choice(ttls_s)

    def body(tr: Transaction) -> None:
        q.put(tr, value, ttl=ttl)
        tr.set(MARK + value.encode(), b"committed")

    run_once(client.db, RootKeys(DEFAULT_ROOT), body)


def put_and_cancel(client: Client, q: TaskQueue, value: str) -> None:
    tr = client.db.create_transaction()
    with suppress(FDBError, QueueFull):  # too old
        q.put(tr, NEVER + value)
    tr.cancel()


def take_once(client: Client, q: TaskQueue) -> None:
    """Take a task, unless the wait is stopped before, and call a verb with it."""
    timeout, after_s = client.random.choice((0, 1, 1)), client.random.choice((0.005, 0.1, 2))
    stop, stopper = set_later(client, after_s)
    with suppress(WaitStopped):
        take = partial(q.take, client.db, timeout, stop=stop)
        task = client.call(NAME, "take", None, take, timeout_s=timeout)
        if task is not None:
            client.pause(client.random.choice((0.5, 1.5 * TTR_S)))
            once(client, q, task)
    stopper.join()


def once(client: Client, q: TaskQueue, task: Task) -> None:
    """Call one verb with a task, by chance."""
    verb = client.random.choice(("ack", "ack", "release", "bury", "delete", "touch", "kick"))
    with suppress(NotTaken, TaskNotFound):
        end(client, q, verb, task)


def end(client: Client, q: TaskQueue, verb: str, task: Task) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "touch": partial(q.touch, client.db, task, 1),
        "kick": partial(q.kick, client.db, 1),
    }
    call = calls.get(verb) or partial(getattr(q, verb), client.db, task)
    client.call(NAME, verb, task.data, call)


# Checkers.


class Sums(NamedTuple):
    """Events of all processes, and the counters of the queue."""

    told: Counter[str]
    counted: dict[str, int]


def sums(trace: Trace) -> Iterator[Sums]:
    """Yield the sums at the end of the run, if it came to that."""
    told = Counter(op.argument[2] for op in trace.of(NAME, "told"))
    for look in trace.of(NAME, "statistics"):
        yield Sums(told, look.result)


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (told_after_the_commit, told_at_most_once, no_more_told_than_counted, no_watch_left_behind)
    yield calls_counted(("put", "ack", "bury", "delete", "touch"))  # ends of sessions count as releases
    if not active & {*SLOW}:
        yield from (calls_counted(("take",)), attempts_are_takes)
    if not active & {*DOUBTING}:
        yield all_told


def told_after_the_commit(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each event is about a change that other transactions see already."""
    for op in trace.of(NAME, "told"):
        if op.done and op.result is None:
            yield f"{op.argument} was told, and its task has never been committed"


def told_at_most_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task is put, and ends, in one event of all processes."""
    told = Counter(op.argument[1:] for op in trace.of(NAME, "told"))
    for (value, event), count in told.items():
        if event in ("put", "delete") and count > 1:
            yield f"{event} of {value!r} was told {count} times"


def no_more_told_than_counted(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no process was told of more changes than there were."""
    for told, counted in sums(trace):
        for event in COUNTED:
            if told[event] > counted[event]:
                yield f"{told[event]} times {event} was told, and {counted[event]} were counted"


def all_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each change was told to the process that made it."""
    for told, counted in sums(trace):
        for event in COUNTED:
            if told[event] != counted[event]:
                yield f"{told[event]} times {event} was told, and {counted[event]} were counted"
        ends = counted["ack"] + counted["delete"]
        if told["delete"] != ends:
            yield f"{told['delete']} ends were told, and {ends} were counted"


@checker
def calls_counted(trace: Trace, _: Database, names: Sequence[str]) -> Iterator[str]:
    """Check that the counters of calls hold each call that has returned, and no other."""
    for _told, counted in sums(trace):
        for name in names:
            of_expiry = counted["ttl"] if name == "delete" else 0
            done = sum(op.done and (name != "take" or op.result is not None) for op in trace.of(NAME, name))
            in_doubt = sum(op.unknown for op in trace.of(NAME, name)) + _too_late(trace, name, counted)
            if not done <= counted[name] - of_expiry <= done + in_doubt:
                yield f"{counted[name]} times {name} is counted, {done} are done, {in_doubt} in doubt"


def _too_late(trace: Trace, name: str, counted: dict[str, int]) -> int:
    """Return a bound of the takes that were stopped, and ended by their lease before they could be undone."""
    stopped = sum(isinstance(op.error, WaitStopped) for op in trace.of(NAME, name)) if name == "take" else 0
    return min(stopped, counted["ttl"] + counted["ttr"])


def attempts_are_takes(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task has no more attempts than takes, and no more failures than attempts before it."""
    takes = trace.of(NAME, "take")
    in_doubt = sum(op.unknown for op in takes)
    received = [op for op in takes if op.done and op.result]
    for op in received:
        task: Task = op.result
        so_far = [other for other in received if other.result.id == task.id and other.began < (op.ended or 0)]
        if task.attempts > len(so_far) + in_doubt or task.failures > task.attempts - 1:
            yield f"take {len(so_far)} of {task.data!r} is attempt {task.attempts}, {task.failures} failed"
