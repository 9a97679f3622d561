"""Workers that are paused and drained while they work: they answer, take nothing more, and repeat nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.fleet import steering
from fdbqueue.fleet.gate import PAUSED
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.stage import Tasks, audit, play, put_plain, remaining

NAME = "steered"
KEYS = RootKeys(DEFAULT_ROOT)
TTR_S = 300.0
GRACE_S = 0.2
SECONDS = (0, 0.01, 0.5, 3.0)
OBEYED_WITHIN_S = limits.ORDERS_EVERY_S + max(SECONDS) + 2 * limits.PRESENCE_EVERY_S
LATE_S = 12.0
SLACK_S = 10.0
LOOK_S = 0.1


class Paused(NamedTuple):
    """A pause, by the clock that all clients have."""

    ordered: float
    """All workers that begin later do so in the pause."""
    answered: dict[str, float]
    """When the answer of each worker was there, at the latest."""
    ended: float
    """A worker may take again from now on."""


class Begun(NamedTuple):
    """The argument of an operation: a call of a handler."""

    place: str
    value: str
    taken: float


# A process that stalls, or loses its session, repeats tasks by itself.
@workload(clients=3, steps=4, never=("die", "stall", "slow_reply", "clock_skew_s", "watch_very_late"))
def steered(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.overtake = limits.WORKER_OVERTAKE
    queue = Tasks(NAME, simulation.random.choice(("fifo", "fifottl", "utubettl")), ttr=None)

    ended = list[str]()

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, 4 * size.steps):
            put_plain(client, q, value)
            client.runtime.sleep(client.random.choice((0, 0.5, 2)))
        ended.append(client.name)

    def steer(client: Client, q: TaskQueue) -> None:
        for _ in range(size.steps):
            client.runtime.sleep(client.random.uniform(0, 6))
            client.random.choice((pause, pause, drain_one))(client)
        while len(ended) < size.clients or client.runtime.monotonic() < LATE_S:
            client.runtime.sleep(1.0)
        for _ in remaining(client, q):
            client.runtime.sleep(1.0)
        drain(client, steering.members(client.db, KEYS))

    roles = {
        "producer-": queue.using(produce),
        "worker-": queue.using(work),
        "late": queue.using(work_late),
        "operator": queue.using(steer),
    }
    play(simulation, size, roles, {"auditor": queue.using(audit)})
    checkers = [exact_statistics(NAME), no_watch_left_behind, begun_once]
    return [*checkers, a_pause_binds_later_workers, obeyed_in_time, nothing_left]


def work(client: Client, _: TaskQueue) -> None:
    worker = Worker(client.db, NAME, partial(handle, client), threads=2, grace_s=GRACE_S, session_ttr_s=TTR_S)
    began = (place_of(client), client.runtime.now())
    client.call(NAME, "live", began, worker.run)


def work_late(client: Client, q: TaskQueue) -> None:
    client.runtime.sleep(client.random.uniform(0, LATE_S))
    work(client, q)


def handle(client: Client, task: HeldTask) -> None:
    begun = Begun(place_of(client), task.data, task.taken or 0.0)
    seconds = client.random.choice(SECONDS)
    client.call(NAME, "handle", begun, partial(client.runtime.sleep, seconds))


def place_of(client: Client) -> str:
    return f"{client.runtime.host_name()}:{client.runtime.process_id()}"


def pause(client: Client) -> None:
    client.call(NAME, "pause", None, partial(paused, client))


def paused(client: Client) -> Paused:
    now, answered = client.runtime.now, dict[str, float]()
    order, ordered = steering.pause(client.db, KEYS), now()
    lasts_s = client.random.choice((0, OBEYED_WITHIN_S, OBEYED_WITHIN_S))
    while now() < ordered + lasts_s:
        found = steering.members(client.db, KEYS)
        for one in found:
            if (one.presence.state, one.presence.pause) == (PAUSED, order.pause):
                answered.setdefault(one.place, now())
        client.runtime.sleep(LOOK_S)
    ended = now()
    steering.resume(client.db, KEYS)
    return Paused(ordered, answered, ended)


def drain_one(client: Client) -> None:
    """Drain a worker, unless it is the last one that takes."""
    found = steering.undrained(steering.members(client.db, KEYS))
    if len(found) > 1:
        drain(client, found[-1:])


def drain(client: Client, those: Sequence[steering.Member]) -> None:
    places = [one.place for one in those]
    client.call(NAME, "drain", places, partial(drained, client, those))


def drained(client: Client, those: Sequence[steering.Member]) -> None:
    steering.drain(client.db, KEYS, those)
    while steering.left(steering.members(client.db, KEYS), those):
        client.runtime.sleep(LOOK_S)


# Checkers.


def begun_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a handler is called once with each task: no order loses or repeats one."""
    begun = Counter(op.argument.value for op in trace.of(NAME, "handle"))
    for put in trace.of(NAME, "put"):
        if put.done and begun[put.argument] != 1:
            yield f"{put.argument!r} has begun {begun[put.argument]} times"


def a_pause_binds_later_workers(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a worker that begins in a pause takes nothing in it."""
    begins = dict(op.argument for op in trace.of(NAME, "live"))
    for op in _pauses(trace):
        for handled in trace.of(NAME, "handle"):
            place, value, taken = handled.argument
            if op.result.ordered < begins[place] and taken < op.result.ended:
                yield f"{place} has begun in a pause, and took {value!r} in it"


def obeyed_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that drained workers end soon, and that all are drained in the end: none waits for ever."""
    for op in trace.of(NAME, "drain"):
        if op.ended_s is not None and op.ended_s - op.began_s > OBEYED_WITHIN_S + SLACK_S:
            yield f"the drain of {op.argument} took {op.ended_s - op.began_s:.1f} s"
    for op in _pauses(trace):
        lasted = op.result.ended - op.result.ordered
        if lasted >= OBEYED_WITHIN_S and not op.result.answered:
            yield f"no worker has answered a pause of {lasted:.1f} s"


def nothing_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that the presences and the drains have gone with their sessions: all workers have ended."""
    for row in database.get_range(KEYS.presences.start, KEYS.presences.stop):
        yield f"a key is left: {row.key.hex()}"


def _pauses(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "pause") if op.done)
