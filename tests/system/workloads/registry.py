"""Queues with names, which all clients create at once, and temporary ones that end with their owners."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, QueueDropped, QueueExists, QueueNotFound, UnknownSession
from fdbqueue.core.limits import CLOCK_SKEW_S, CLOSE_TIMEOUT_S
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import CONTENTS, DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind, total_queue
from fdbqueue.testing.engine import DELAYING, Faults
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, dequeue, enqueue, values_of
from tests.system.workloads.stage import counted_and_found, play, total

LIVES = 3
OVER = (QueueDropped, UnknownSession, QueueNotFound)
NAME = "temporary"
NAMES = ("one", "two")
SESSION_TTR_S = 3.0
COLOURS = ("red", "blue")


@workload(clients=2, steps=4)
def temporary(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Temporary queues of owners that end, die or stall; guests that open them; the next owners."""
    cramped(simulation)
    # The sessions of a process are those of its database, so their ttr is that of all.
    simulation.limit(VERB_BATCH=3, SESSION_TTR_S=SESSION_TTR_S)

    sweeps = simulation.random.random() < 0.5

    def own(life: int, client: Client) -> None:
        """Make a queue, or wait until the one of another owner has ended; use it, and empty it."""
        client.db.session_ttr_s = SESSION_TTR_S
        client.runtime.sleep(life * client.random.uniform(0.2, 2) * SESSION_TTR_S)
        name = client.random.choice(NAMES)
        for _ in range(3 * size.steps):
            with suppress(QueueExists, *OVER):
                q = make(client, name)
                use(client, q, size.steps)
                while client.call(NAME, "empty", key_of(q), partial(total, q, client.db)):
                    finish(client, q)
                return
            client.pause(1)

    def visit(client: Client) -> None:
        for _ in range(2 * size.steps):
            client.pause(1)
            with suppress(*OVER):
                use(client, TaskQueue.open(client.db, client.random.choice(NAMES)), size.steps)

    def survive(client: Client) -> None:
        client.db.session_ttr_s = SESSION_TTR_S
        if sweeps:
            look(client)
        else:  # the opening has to end the sessions of dead owners
            client.runtime.sleep(3 * SESSION_TTR_S)
        for name in NAMES:
            q = make(client, name)
            client.call(NAME, "put", (key_of(q), f"last of {name}"), partial(q.put, client.db, "last"))

    for number in range(size.clients):
        for life in range(LIVES):
            simulation.client(partial(own, life), f"owner-{number}.{life}")
        simulation.client(visit, f"guest-{number}")
    simulation.afterwards(survive, "survivor")
    return [exact_statistics(NAME), no_watch_left_behind, *checks(simulation.faults)]


def look(client: Client) -> None:
    """Count the tasks that are left, after a time in which this process sweeps."""
    for name in NAMES:
        with suppress(QueueNotFound):
            q = TaskQueue.open(client.db, name)
            q.take(client.db, 0)
            client.runtime.sleep(3 * SESSION_TTR_S)
            client.call(NAME, "left", name, partial(total, q, client.db))


def make(client: Client, name: str) -> TaskQueue:
    """Make the temporary queue of this name, and tell its contents."""
    made: list[TaskQueue] = []

    def body() -> Made:
        q = TaskQueue.create(client.db, name, "fifottl", ttr=2, temporary=True, if_not_exists=True)
        made.append(q)
        return Made(name, key_of(q), q.statistics(client.db)["calls"]["put"])

    client.call(NAME, "make", name, body)
    return made[0]


def key_of(q: TaskQueue) -> bytes:
    key: bytes = q.contents.key()
    return key


def use(client: Client, q: TaskQueue, steps: int) -> None:
    for step in range(steps):
        value = f"{client.name}.{client.random.random():.6f}.{step}"
        put: Callable[[], Task] = partial(q.put, client.db, value)
        client.call(NAME, "put", (key_of(q), value), put)
        client.pause(0.3)
        if client.random.random() < 0.5:
            finish(client, q)
        client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))


def finish(client: Client, q: TaskQueue) -> None:
    task = q.take(client.db, client.random.choice((0, 1)))
    if task is not None:
        client.pause(0.3)
        with suppress(NotTaken):
            client.call(NAME, "finish", (key_of(q), task.data), partial(q.ack, client.db, task))


# Checkers.


class Made(NamedTuple):
    """A queue, as its owner has made it."""

    name: str
    contents: bytes
    puts: int
    """Counted in it."""


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (an_old_queue_is_over, a_new_queue_is_empty, none_is_left, refused_for_a_live_owner)
    # A clock that is ahead by more than the ttr takes live sessions for dead ones.
    if not DELAYING & set(faults.active):
        yield from (a_live_owner_keeps_its_queue, each_task_is_finished)


def makes(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "make") if op.done)


class Finish(NamedTuple):
    """The number and the time of the event with which a client finished."""

    at: int
    at_s: float
    in_time: bool
    """True if the client has ended its session for certain: closing gives up after a time."""


def finishes(trace: Trace) -> dict[str, Finish]:
    last_s = {op.client: op.ended_s for op in trace.operations if op.ended_s is not None}
    return {
        who: Finish(at, at_s, at_s - last_s.get(who, at_s) < CLOSE_TIMEOUT_S)
        for at, (at_s, who, what, _) in enumerate(trace.events)
        if what == "finished"
    }


def is_other(one: Operation, other: Operation) -> bool:
    """True if two owners have made two queues of one name."""
    made: Made = one.result
    later: Made = other.result
    return made.name == later.name and made.contents != later.contents


def an_old_queue_is_over(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no call succeeds in a queue that another one of its name has replaced, and no put in a queue
    whose owner has ended. (Another process may be about to remove its tasks.)
    """
    finished = {who: finish.at for who, finish in finishes(trace).items() if finish.in_time}
    made, ended, replaced = list(makes(trace)), dict[bytes, int](), dict[bytes, int]()
    for op in made:
        later = [other.ended or 0 for other in made if op.before(other) and is_other(op, other)]
        replaced[op.result.contents] = min(later, default=len(trace.events))
        ended[op.result.contents] = finished.get(op.client, len(trace.events))
    for op in trace.of(NAME, "put", "finish"):
        contents, value = op.argument
        over = replaced.get(contents, op.began)
        if op.name == "put":
            over = min(over, ended.get(contents, op.began))
        if op.done and over < op.began:
            yield f"{op.client} has called {op.name} for {value!r} in a queue that was over"


def a_new_queue_is_empty(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a queue counts no puts of the queue before it."""
    for op in makes(trace):
        earlier = [put for put in trace.of(NAME, "put") if put.argument[0] == op.result.contents]
        may_count = sum(put.began < (op.ended or 0) for put in earlier)
        if op.result.puts > may_count:
            yield f"{op.client} has made {op.result.name}, and it counts {op.result.puts} puts"


def none_is_left(trace: Trace, database: Database) -> Iterator[str]:
    """Check that the tasks of an owner go with its session, and that a replaced queue leaves no key."""
    for look in trace.of(NAME, "left"):
        if look.result:
            yield f"{look.result} tasks are left of the last owner of {look.argument}, which has ended"
    last = {op.result.name: op.result.contents for op in makes(trace)}
    for op in makes(trace):
        under = TaskKeys(Subspace((), op.result.contents)).contents
        if op.result.contents != last[op.result.name]:
            for row in database.get_range(under.start, under.stop):
                yield f"left of {op.result.name} of {op.client}: {row.key!r}"


def refused_for_a_live_owner(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a queue is refused only while an owner of that name may live."""
    late_s = SESSION_TTR_S + CLOCK_SKEW_S
    ended_s = {
        who: finish.at_s + (0 if finish.in_time else late_s) for who, finish in finishes(trace).items()
    }
    died_s = {who: at_s for at_s, who, what, told in trace.events if (what, told) == ("fault", ("die",))}
    for op in trace.of(NAME, "make"):
        if isinstance(op.error, QueueExists):
            owners = [other for other in trace.of(NAME, "make") if other.argument == op.argument]
            live = [
                other
                for other in owners
                if not isinstance(other.error, QueueExists)
                and other.began < (op.ended or 0)
                and ended_s.get(other.client, op.began_s) >= op.began_s
                and died_s.get(other.client, op.began_s) + late_s >= op.began_s
            ]
            if not live:
                yield f"{op.client} was refused {op.argument}, and no owner lives"


def a_live_owner_keeps_its_queue(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no owner in time learns that its queue or session has ended. For runs without delays."""
    for made in makes(trace):
        for op in trace.of(NAME, "put", "finish", "empty"):
            if op.client == made.client and isinstance(op.error, QueueDropped | UnknownSession):
                yield f"{op.client} is alive, and has lost its queue: {op.error}"


def each_task_is_finished(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task that was put before its owner emptied the queue is finished once."""
    finished = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    for value, count in finished.items():
        if count > 1:
            yield f"finished {count} times: {value}"
    for emptied in (op for op in trace.of(NAME, "empty") if op.result == 0):
        for put in trace.of(NAME, "put"):
            is_of_it = put.argument[0] == emptied.argument and put.before(emptied)
            if put.done and is_of_it and not finished[put.argument]:
                yield f"lost: {put.argument[1]!r}"


@workload(clients=2, steps=4)
def named(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Named queues: all clients create the same names at once and use them, and one client drops them."""

    def produce(client: Client) -> None:
        kept = Handles(client)
        for value in values_of(client, size.steps):
            kept.use(client.random.choice(COLOURS), enqueue, [value])
            client.pause(0.1)

    def consume(client: Client) -> None:
        kept = Handles(client)
        for _ in range(size.steps):
            kept.use(client.random.choice(COLOURS), dequeue, client.random.choice((0, 0, 2)))
            client.pause(0.1)

    def drop(client: Client) -> None:
        for name in COLOURS:
            client.pause(0.3)
            try:
                # A drop counts as a clear: the items that it removes are not lost.
                client.call(name, "clear", None, partial(Registry(DEFAULT_ROOT).drop, client.db, name))
            except QueueNotFound:
                continue

    def look(client: Client) -> None:
        for name in COLOURS:
            q = Queue.named(client.db, name)
            client.runtime.sleep(60)
            while dequeue(client, q, name):
                pass

    roles = {"producer-": produce, "consumer-": consume, "dropper": drop}
    play(simulation, size, roles, {"survivor": look})
    return [*(total_queue(name) for name in COLOURS), no_orphans, distinct_ids]


class Handles:
    """The queues of a client. It keeps some handles: one of a dropped queue must tell so, and put nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[str, Queue] = {}

    def use(self, name: str, deed: Callable[..., Any], argument: Any) -> None:
        """Use a queue; open it again if it was dropped in between."""
        while True:
            try:
                deed(self._client, self._opened(name), name, argument)
                return
            except QueueDropped:
                self._kept.pop(name, None)
                self._client.pause(0.01)

    def _opened(self, name: str) -> Queue:
        if name not in self._kept or self._client.random.random() < 0.5:
            self._kept[name] = Queue.named(self._client.db, name)
        return self._kept[name]


def no_orphans(_: Trace, database: Database) -> Iterator[str]:
    live = {definition.id for definition in Registry(DEFAULT_ROOT).names(database)}
    for entry in database.get_range_startswith(DEFAULT_ROOT[CONTENTS].key()):
        id_ = DEFAULT_ROOT.unpack(entry.key)[1]
        if id_ not in live:
            yield f"orphan of dropped queue {id_}: {entry.key!r}"


def distinct_ids(_: Trace, database: Database) -> Iterator[str]:
    ids = [definition.id for definition in Registry(DEFAULT_ROOT).names(database)]
    if len(ids) != len(set(ids)):
        yield f"two queues have one id: {ids}"
