"""Waits that go on after faults have ended, and waits beside processes that are killed."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.audit.rules import TAKE
from tests.system.processes import processes_of
from tests.system.workloads.common import checker, crowded
from tests.system.workloads.stage import Tasks, once_each, play, put_plain, taken
from tests.system.workloads.tasks import NAME, finish

LASTING = "lasting"
KINDS = ("items", "items", "fifo", "fifottl", "utube", "fair", "bag")
FAULTS_S, CALM_FROM_S, WAIT_S = 8.0, 30.0, 120.0
"""The end of the faults; the time of the first put after them; and the timeout of the waits."""
PROMPT_S = 1.0
EARLY = 3
Take = Callable[[Client, float], Any]
BEGIN_S, KILLED_S, LAST_S, END_S = 2.0, (3.0, 6.0), 12.0, 20.0
"""Until when processes begin; when victims are killed; the last put; the end of the survivors."""
POINTS_MAX = 200_000
LONG_S = 100.0
"""The ttr in a directory: tasks come back as the session of a process ends that is gone."""
VICTIM = "victim"
TTR_S = 4.0
LOST_S, NEW_S = TTR_S + 1.0, 1.0
"""From a death to the take of a lost task, and from the put of a new one to its take."""
SEEN_ON_CLUSTER_S, SEEN_NEW_S = 3.0, 0.5
"""A cluster knows a death after this time, and a new task takes no longer; then it takes no look. A directory
tells at those that ask.
"""


@workload(clients=3, steps=2, never=("stall", "watch_very_late"))
def lasting(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Waits that begin among faults and go on after them: then each entry that is put is received at once.

    The faults end, and all that dead processes left is overdue. Only the promised watches wake a wait.
    """
    crowded(simulation)
    random = Random(f"{simulation.seed} lasting")
    # No look by time: a wake-up that is missed has no remedy. Rare sweeps, as nothing comes due.
    simulation.limit(LOOK_EVERY_S=60, SWEEP_EVERY_S=2, SESSIONS_SWEPT_EVERY_S=2)
    kind, partitions = random.choice(KINDS), random.choice((1, 1, 3))

    def wait(client: Client) -> None:
        client.thread(calm_later, "calm")
        take = taking(client, kind, partitions)
        threads = [client.thread(partial(wait_twice, take), name) for name in "ab"[1 : size.steps]]
        wait_twice(take, client)
        for thread in threads:
            thread.join()

    def put_early(client: Client) -> None:
        put = putting(client, kind, partitions)
        for number in range(EARLY):
            client.pause(2.0)
            client.call(LASTING, "put", f"early {number}", partial(put, f"early {number}"))

    def put_late(client: Client) -> None:
        client.calm()
        put = putting(client, kind, partitions)
        client.runtime.sleep(CALM_FROM_S - client.runtime.monotonic())
        for number in range(2 * size.steps * size.clients):
            client.call(LASTING, "put", f"late {number}", partial(put, f"late {number}"))
            client.runtime.sleep(2 * PROMPT_S)

    play(simulation, size, {"waiter-": wait, "early": put_early, "late": put_late})
    return [each_wait_is_answered, each_entry_is_received_at_once, no_watch_left_behind]


def calm_later(client: Client) -> None:
    client.runtime.sleep(FAULTS_S - client.runtime.monotonic())
    client.calm()


def wait_twice(take: Take, client: Client) -> None:
    client.pause(2.0)
    client.call(LASTING, "wait", None, partial(take, client, 1.0))
    client.call(LASTING, "wait", None, partial(take, client, WAIT_S))


def taking(client: Client, kind: str, partitions: int) -> Take:
    """A function that takes an entry, and returns its data, or None after the timeout."""
    if kind == "items":
        items = Queue.named(client.db, LASTING, partitions=partitions)
        return lambda client, timeout_s: items.dequeue(client.db, timeout=timeout_s)
    tasks = opened(client, kind, partitions)

    def take(client: Client, timeout_s: float) -> Any:
        task = tasks.take(client.db, timeout_s)
        return None if task is None else task.data

    return take


def putting(client: Client, kind: str, partitions: int) -> Callable[[str], Any]:
    if kind == "items":
        items = Queue.named(client.db, LASTING, partitions=partitions)
        return lambda data: items.enqueue(client.db, data)
    tasks, is_keyed = opened(client, kind, partitions), kind in ("utube", "fair")
    return lambda data: tasks.put(client.db, data, key=data if is_keyed else None)


def opened(client: Client, kind: str, partitions: int) -> TaskQueue:
    return TaskQueue.create(client.db, LASTING, kind, if_not_exists=True, partitions=partitions)


# Checkers.


def each_wait_is_answered(trace: Trace, _: Database) -> Iterator[str]:
    """Check the waits of processes that live. There are more entries than waits."""
    for op in trace.of(LASTING, "wait"):
        waited_s = (op.ended_s or 0.0) - op.began_s
        if op.done and op.result is None and waited_s > WAIT_S / 2:
            yield f"{op.client} has waited for {waited_s:.0f} s, and received none of the entries"


def each_entry_is_received_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check the entries that are put after the faults, while a wait is open that began before."""
    waits = [op for op in trace.of(LASTING, "wait") if op.ended_s is not None]
    for put in trace.of(LASTING, "put"):
        if put.began_s < CALM_FROM_S or put.ended_s is None:
            continue
        until_s = put.ended_s + PROMPT_S
        late = [op for op in waits if op.began < put.began and (op.ended_s or 0.0) > until_s]
        received = any(op.result == put.argument and op not in late for op in waits)
        if late and not received:
            yield f"{put.argument!r} was not received within {PROMPT_S:g} s, and {late[0].client} waited"


@workload(clients=2, steps=3, wide=("SERVE_MAX",))
def killed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Processes that hold tasks and wait for more are killed; others get their tasks, and new ones, in
    time.
    """
    random = Random(f"{simulation.seed} killed")
    simulation.faults = NONE
    simulation.scheduler.points_max = POINTS_MAX
    victims = random.randint(1, size.clients)
    died_s = {f"{VICTIM}-{number}": random.uniform(*KILLED_S) for number in range(victims)}
    simulation.gives_signs = is_cluster = Random(f"{simulation.seed} cluster").random() < 0.5
    start = simulation.client if is_cluster else processes_of(simulation).add
    queue = Tasks(NAME, ttr=TTR_S if is_cluster else LONG_S)  # the checkers of `tasks` hold here, too
    for name in died_s:
        start(queue.using(be_killed), name)
    for number in range(random.randint(1, size.clients)):
        polls = random.random() < 0.25
        start(partial(survive, queue, polls=polls), f"survivor-{number}")
    start(queue.using(partial(produce, count=2 * size.steps)), "producer")
    for name, at_s in died_s.items():
        simulation.kill(name, at_s)
    return checks(max(died_s.values()), SEEN_ON_CLUSTER_S if is_cluster else 0.0)


def be_killed(client: Client, q: TaskQueue) -> None:
    """Hold tasks, and wait for more."""
    for number in range(client.random.randint(0, 2)):
        put_plain(client, q, f"{client.name} {number}")
        taken(client, q, 0)
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    while True:
        taken(client, q, END_S)


def survive(queue: Tasks, client: Client, *, polls: bool) -> None:
    client.runtime.sleep(client.random.uniform(0, BEGIN_S))
    q = queue(client)
    while (left_s := END_S - client.runtime.monotonic()) > 0:
        task = taken(client, q, 0 if polls else left_s)
        if task is not None:
            finish(client, q, task)
        elif polls:
            client.runtime.sleep(0.2)


def produce(client: Client, q: TaskQueue, count: int) -> None:
    for number in range(count):
        client.runtime.sleep(client.random.uniform(0, 2 * (LAST_S - BEGIN_S) / count))
        put_plain(client, q, f"new {number}")


# Checkers.


def checks(last_death_s: float, seen_s: float) -> Sequence[Checker]:
    """Checkers for a run in which processes die until `last_death_s`, and count as alive for `seen_s`."""
    return [
        partial(once_each, NAME),
        lost_tasks_run_elsewhere(last_death_s),
        new_tasks_pass_the_dead_by(last_death_s, seen_s),
    ]


@checker
def lost_tasks_run_elsewhere(trace: Trace, _: Database, last_death_s: float) -> Iterator[str]:
    """Check that each task that was there before the deaths is taken by a live process soon after its ttr."""
    lost = {op.result.data for op in takes(trace) if VICTIM in op.client}
    lost |= {put.argument for put in puts(trace) if put.began_s <= last_death_s}
    for value in sorted(lost):
        late_s = first_taken_s(trace, value) - last_death_s
        if late_s > LOST_S:
            yield f"{value!r} was there before a death, and was taken {late_s:.1f} s after it"


@checker
def new_tasks_pass_the_dead_by(
    trace: Trace, _: Database, last_death_s: float, seen_s: float
) -> Iterator[str]:
    for put in puts(trace):
        late_s = first_taken_s(trace, put.argument) - (put.ended_s or 0.0)
        known_s = SEEN_NEW_S if seen_s else NEW_S
        allowed_s = known_s if put.began_s > last_death_s + seen_s else max(NEW_S, seen_s)
        if put.began_s > last_death_s and late_s > allowed_s:
            yield f"{put.argument!r} was taken {late_s:.1f} s after its put"


def first_taken_s(trace: Trace, value: str) -> float:
    """The time at which a process that lives has taken the task; infinite if none has."""
    found = [op for op in takes(trace) if VICTIM not in op.client and op.result.data == value]
    return min((op.ended_s for op in found if op.ended_s is not None), default=float("inf"))


def takes(trace: Trace) -> list[Operation]:
    return [op for op in trace.of(NAME, TAKE) if op.done and op.result is not None]


def puts(trace: Trace) -> list[Operation]:
    return [op for op in trace.of(NAME, "put") if op.done]
