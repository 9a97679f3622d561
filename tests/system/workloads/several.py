"""Workers with several queues: each queue is served by its weight, and a stop loses nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import QueueBusy, QueueDropped, QueueNotFound
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Queues
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.fleet import ended, work_until_empty
from tests.system.workloads.stage import (
    Handled,
    counted_and_found,
    effects_in,
    look,
    nothing_left,
    play,
    succeed,
    total,
)

FIRST, SECOND = "urgent", "bulk"
BACKLOG = {FIRST: 21, SECOND: 9}
EARLY = 12
TTR_S = 2.0
SESSION_TTR_S = 3.0
ODD = "odd"
FAILS_S = (0.3, 3.0, 100.0)
NAME = "several"
QUEUES = ("red", "green", "blue")
DOOMED = "doomed"
WEIGHTS = {FIRST: 3, SECOND: 1}
THREADS = 2
CHOOSER_THREADS = 2
GRACE_S = 10.0
LIVES_S = (0.01, 0.3, 1, 6)
# These faults delay nothing by seconds. In half of the runs there are no others.
HARMLESS = ("not_committed", "watch_spurious")
PROMPT_S = 0.8


# A batch above the bound is refused.
@workload(clients=2, steps=4, wide=("BATCH_BYTES_MAX",))
def several(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    if simulation.random.random() < 0.5:
        simulation.faults = simulation.faults.only(*HARMLESS)

    def produce(client: Client) -> None:
        opened(client, *QUEUES)
        for value in values_of(client, size.steps):
            q = TaskQueue.open(client.db, client.random.choice(QUEUES))
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.runtime.sleep(client.random.choice((0, 0, 0.3, 3)))

    def work(client: Client) -> None:
        for _ in range(2):
            queues = [*opened(client, *QUEUES, DOOMED), failing(client)]
            live(client, hired(client, queues, THREADS))

    def choose(client: Client) -> None:
        """Work on one of two queues while the other is empty, and then on a backlog in both."""
        first, second = opened(client, FIRST, SECOND)
        worker = hired(client, WEIGHTS, threads=CHOOSER_THREADS)
        first.put_many(client.db, [f"early {number}" for number in range(EARLY)])
        worker.start()
        wait_until_empty(client, first)
        run_once(client.db, RootKeys(DEFAULT_ROOT), partial(fill, (first, second)))
        wait_until_empty(client, first)
        wait_until_empty(client, second)
        worker.stop()
        ended(worker)

    def survive(client: Client) -> None:
        queues = opened(client, *QUEUES, FIRST, SECOND, ODD)
        for q in queues[: len(QUEUES)]:
            look(client, NAME, q)
        work_until_empty(hired(client, queues, THREADS))
        for q in queues:
            client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    def drop(client: Client) -> None:
        """Drop a queue of the workers as soon as none of them waits for its tasks, or holds one."""
        (q,) = opened(client, DOOMED)
        q.put_many(client.db, values_of(client, size.steps))
        for _ in range(10 * size.steps):
            client.runtime.sleep(client.random.choice((0, 0.05, 0.3)))
            with suppress(QueueBusy, QueueNotFound, QueueDropped):
                q.drop(client.db)

    roles = {"producer-": produce, "worker-": work, "chooser": choose, "dropper": drop}
    play(simulation, size, roles, {"survivor": survive})
    is_calm = set(simulation.faults.active) <= {*HARMLESS}
    checkers = [exact_statistics(NAME), each_has_its_effect, no_watch_left_behind]
    return [*checkers, a_failing_queue_is_tried_again, *(CALM if is_calm else ())]


def opened(client: Client, *names: str) -> list[TaskQueue]:
    return [TaskQueue.create(client.db, name, "fifottl", ttr=TTR_S, if_not_exists=True) for name in names]


def fill(queues: Sequence[TaskQueue], tr: Transaction) -> None:
    for q in queues:
        for number in range(BACKLOG[q.name]):
            q.put(tr, f"{q.name} {number}")


def wait_until_empty(client: Client, q: TaskQueue) -> None:
    while total(q, client.db):
        client.runtime.sleep(0.5)


def a_stop_ends_promptly(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker ends soon after its last running handler; at once, if it was stopped so."""
    for stop, join in drains(trace):
        running = [op.ended_s or 0 for op in handled_by(trace, stop.client)]
        ends_s = [at_s for at_s in running if at_s < (join.ended_s or 0)] if not stop.argument else []
        late_s = (join.ended_s or 0) - max([stop.ended_s or 0, *ends_s])
        if late_s > PROMPT_S:
            yield f"{stop.client} ended {late_s:.1f} s after its last handler"


# Checkers.


def each_is_handled_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task is handled again only if its worker was stopped at once."""
    handled = Counter(op.argument.value for op in trace.of(NAME, "handle"))
    hasty = any(stop.argument for stop in trace.of(NAME, "stop"))
    for value, count in handled.items():
        if count > 1 and not hasty:
            yield f"{value!r} was handled {count} times, and each handler had its grace"


def failing_takes_are_few(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker leaves a queue alone for a while after a failed take."""
    tries = sorted(trace.of(NAME, "fail", "start"), key=lambda op: op.began)
    for client in sorted({op.argument for op in tries if op.name == "fail"}):
        of_it = [op for op in tries if client in (op.argument, op.client)]
        for first, second in pairwise(of_it):
            pause_s = second.began_s - first.began_s
            if first.name == second.name == "fail" and pause_s < limits.AWAY_FIRST_S:
                yield f"{client} has tried a queue that fails again after {pause_s:.2f} s"


def none_waits_beside_an_idle_thread(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task is ready for `PROMPT_S` while a worker of its queue has an idle thread."""
    begun: dict[str, float] = {}
    for op in trace.of(NAME, "handle"):
        begun.setdefault(op.argument.value, op.began_s)
    for put in trace.of(NAME, "put"):
        since_s, until_s = put.ended_s, begun.get(put.argument)
        for life in lives(trace) if since_s is not None and until_s is not None else ():
            idle_s = longest_idle_s(trace, life, since_s or 0.0, until_s or 0.0)
            if idle_s > PROMPT_S:
                yield f"{put.argument!r} was ready for {idle_s:.1f} s while {life[0]} had an idle thread"


def nothing_begins_after_a_stop(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no handler begins later than the last take before the stop allows."""
    for stop, join in drains(trace):
        for op in handled_by(trace, stop.client):
            if stop.ended_s is not None and stop.ended_s + PROMPT_S < op.began_s and within(op, stop, join):
                yield f"{op.argument.value!r} began {op.began_s - stop.ended_s:.1f} s after the stop"


def tallies_are_right(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker counts each handler that ended before its stop was over, and no other."""
    for stop, join in drains(trace):
        starts = [op for op in trace.of(NAME, "start") if op.client == stop.client and op.before(stop)]
        handled = [op for op in handled_by(trace, stop.client) if within(op, starts[-1], join)]
        if not stop.argument and join.result != len(handled):
            yield f"{stop.client} has counted {join.result} successes, and {len(handled)} handlers ended"


def weights_are_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check the shares of two queues at each moment at which both have tasks."""
    handled = [op for op in handled_by(trace, "chooser") if not op.argument.value.startswith("early")]
    order = [op.argument.queue for op in handled]
    taken: Counter[str] = Counter()
    for name in order:
        taken[name] += 1
        if taken[name] + CHOOSER_THREADS > order.count(name):
            return
        share = taken.total() * WEIGHTS[FIRST] / sum(WEIGHTS.values())
        if abs(taken[FIRST] - share) > CHOOSER_THREADS + 0.5:
            yield f"of the first {taken.total()} tasks, {taken[FIRST]} are from the queue of weight 3"


CALM: tuple[Checker, ...] = (
    weights_are_kept,
    none_waits_beside_an_idle_thread,
    nothing_begins_after_a_stop,
    a_stop_ends_promptly,
    nothing_left(NAME),
    each_is_handled_once,
    tallies_are_right,
    failing_takes_are_few,
)


def hired(client: Client, queues: Queues, threads: int) -> Worker:
    return Worker(
        client.db,
        queues,
        partial(handle, client),
        threads=threads,
        attempts=float("inf"),
        grace_s=GRACE_S,
        session_ttr_s=SESSION_TTR_S,
        overtake=0,
    )


def handle(client: Client, task: HeldTask) -> None:
    seconds = client.random.choice((0, 0, 0.05, 0.5, 1.5 * TTR_S))
    handled = Handled(client.name, task.queue, task.data)
    client.call(NAME, "handle", handled, partial(client.runtime.sleep, seconds))
    succeed(task)


def live(client: Client, worker: Worker) -> None:
    """Let the worker work for a while, stop it, and wait for its end."""
    client.call(NAME, "start", None, worker.start)
    client.runtime.sleep(client.random.choice(LIVES_S))
    at_once = client.random.random() < 0.3
    client.call(NAME, "stop", at_once, partial(worker.stop, at_once=at_once))
    client.call(NAME, "join", at_once, partial(successes, worker))


def successes(worker: Worker) -> int:
    """Wait for the end of the worker, and return the number of tasks that it has done."""
    ended(worker)
    return worker.status().tally.done


def failing(client: Client) -> TaskQueue:
    """Put a task into the queue. Return a handle of it; its takes fail for some time."""
    until_s = client.runtime.monotonic() + client.random.choice(FAILS_S)

    class Failing(TaskQueue):
        def take_many(self, *arguments: Any, **options: Any) -> list[Task]:
            if client.runtime.monotonic() < until_s:
                client.call(NAME, "fail", client.name, refuse)
            return super().take_many(*arguments, **options)

    q = Failing.create(client.db, ODD, "fifottl", ttr=TTR_S, if_not_exists=True)
    value = f"{ODD} {client.name} {until_s}"
    client.call(NAME, "put into it", value, partial(q.put, client.db, value))
    return q


def refuse() -> None:
    raise ValueError("this queue is odd")


def a_failing_queue_is_tried_again(trace: Trace, database: Database) -> Iterator[str]:
    """Check that the tasks of that queue have their effects in the end."""
    effects = effects_in(database)
    for put in trace.of(NAME, "put into it"):
        if put.done and effects.get(put.argument) != 1:
            yield f"{effects.get(put.argument, 0)} effects of {put.argument!r}"


def each_has_its_effect(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task has had its effect, and none twice."""
    effects = effects_in(database)
    yield from (f"{count} effects of {value!r}" for value, count in effects.items() if count != 1)
    for put in trace.of(NAME, "put"):
        if put.done and put.argument not in effects:
            yield f"lost: {put.argument!r}"


def lives(trace: Trace) -> Iterator[tuple[str, float, float]]:
    """Yield the client of each worker, and the times at which it was started and stopped."""
    stops = trace.of(NAME, "stop")
    for start in trace.of(NAME, "start"):
        stop = next((op for op in stops if op.client == start.client and start.before(op)), None)
        if stop is not None and start.ended_s is not None:
            yield start.client, start.ended_s, stop.began_s


def longest_idle_s(trace: Trace, life: tuple[str, float, float], since_s: float, until_s: float) -> float:
    """Return the longest time between two moments for which a worker had an idle thread."""
    client, since_s, until_s = life[0], max(since_s, life[1]), min(until_s, life[2])
    changes = [(since_s, 0), (until_s, 0)]
    for op in handled_by(trace, client):
        changes += [(op.began_s, 1), (op.ended_s or until_s, -1)]
    running, idle_since_s, longest_s = 0, since_s, 0.0
    for at_s, change in sorted(changes):
        if running < THREADS:
            longest_s = max(longest_s, min(at_s, until_s) - idle_since_s)
        running += change
        idle_since_s = max(at_s, since_s) if running < THREADS and change < 0 else idle_since_s
    return longest_s


def handled_by(trace: Trace, worker: str) -> list[Operation]:
    return [op for op in trace.of(NAME, "handle") if op.argument.worker == worker]


def drains(trace: Trace) -> Iterator[tuple[Operation, Operation]]:
    """Yield each stop of a worker, and the wait for its end."""
    for join in trace.of(NAME, "join"):
        stops = [op for op in trace.of(NAME, "stop") if op.client == join.client and op.before(join)]
        yield stops[-1], join


def within(op: Operation, first: Operation, last: Operation) -> bool:
    """True if an operation began after `first` had ended, and ended before `last`."""
    return first.before(op) and (op.ended or 0) < (last.ended or 0)
