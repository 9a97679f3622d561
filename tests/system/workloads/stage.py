"""The frame of a workload: its clients by their roles, the queue that all of them open, and their loops.

A workload declares the calls of each role. The frame does the rest: it opens the queue, repeats the calls,
pauses between them, and finishes the tasks that are left at the end. Effects of tasks are counted here, too:
the transaction that ends a task counts its effect, by its data or its id.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, NoReturn

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Done
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, id_in, id_text, record_of
from fdbqueue.testing.cases import Size
from fdbqueue.testing.simulation import Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.audit.rules import TAKE
from tests.system.workloads.common import checker, values_of

EFFECTS = b"effect/"
LOOK = "look"
ENOUGH_S = 200.0
STATES = dict(zip("rt!~", LIVE_NAMES, strict=True))

Body = Callable[[Any], object]
"""What a client does from its begin to its end."""
Roles = Mapping[str, Body | Sequence[Body]]
Deed = Callable[[Client, TaskQueue], object]
End = Callable[[Client, TaskQueue, Task], object]
Held = Callable[[Client, TaskQueue, Session], object]


def play(simulation: Simulation, size: Size, roles: Roles, last: Mapping[str, Body] | None = None) -> None:
    """Add the clients of all roles, and those that come afterwards.

    A role that ends with "-" has `size.clients` clients; several such roles in a row take turns. Of several
    bodies, the clients of a role have one after the other.
    """
    for is_many, row in groupby(roles.items(), key=lambda role: role[0].endswith("-")):
        in_turn = list(row)
        for number in range(size.clients if is_many else 1):
            for name, bodies in in_turn:
                body = bodies[number % len(bodies)] if isinstance(bodies, Sequence) else bodies
                simulation.client(body, f"{name}{number}" if is_many else name)
    for name, body in (last or {}).items():
        simulation.afterwards(body, name)


def in_threads(client: Client, bodies: Mapping[str, Body]) -> None:
    """Run the bodies in threads of one client, and wait for their ends."""
    threads = [client.thread(body, name) for name, body in bodies.items()]
    for thread in threads:
        thread.join()


def threaded(bodies: Mapping[str, Body]) -> Body:
    return lambda client: in_threads(client, bodies)


def repeating(times: int, deed: Body, pause_s: float | None = None) -> Body:
    def body(client: Client) -> None:
        for _ in range(times):
            deed(client)
            if pause_s is not None:
                client.pause(pause_s)

    return body


class Tasks:
    """The task queue of a run: each client opens it by its name. It makes the bodies of its clients."""

    def __init__(
        self,
        name: str,
        kind: str | None = "fifottl",
        *,
        if_exists: Literal["any"] | bool = True,
        **options: Any,
    ) -> None:
        self.name, self._kind, self._if_exists, self._options = name, kind, if_exists, options

    def __call__(self, client: Client) -> TaskQueue:
        return TaskQueue.create(
            client.db, self.name, self._kind, if_not_exists=self._if_exists, **self._options
        )

    def using(self, deed: Deed) -> Body:
        return lambda client: deed(client, self(client))

    def repeating(
        self, times: int, deed: Deed, pause_s: float | None = None, *, pauses_first: bool = False
    ) -> Body:
        def body(client: Client) -> None:
            q = self(client)
            for _ in range(times):
                if pause_s is not None and pauses_first:
                    client.pause(pause_s)
                deed(client, q)
                if pause_s is not None and not pauses_first:
                    client.pause(pause_s)

        return body

    def putting(
        self, times: int, pause_s: float, put: Callable[[Client, TaskQueue, str], object] | None = None
    ) -> Body:
        """Put values that no other client puts."""

        def body(client: Client) -> None:
            q = self(client)
            for value in values_of(client, times):
                (put or put_plain)(client, q, value)
                client.pause(pause_s)

        return body

    def working(
        self,
        times: int,
        once: Held,
        *,
        ttrs_s: Sequence[float] = (3,),
        lives: int = 1,
        after_death_s: float | None = None,
    ) -> Body:
        """Call `once` for some sessions, one after the other. A session may die, as its process stalls."""

        def body(client: Client) -> None:
            q = self(client)
            for _ in range(lives):
                try:
                    ttr_s = client.random.choice(ttrs_s) if len(ttrs_s) > 1 else ttrs_s[0]
                    with Session(client.db, ttr=ttr_s) as session:
                        for _ in range(times):
                            once(client, q, session)
                except UnknownSession:
                    if after_death_s is not None:
                        client.pause(after_death_s)

        return body

    def outliving(self, finish: End) -> Body:
        """Finish the tasks that are left, and compare the counters."""

        def body(client: Client) -> None:
            q = self(client)
            outlive(client, q, finish)
            audit(client, q)

        return body


# Calls.


def put_plain(client: Client, q: TaskQueue, value: str, **options: Any) -> None:
    client.call(q.name, "put", value, partial(q.put, client.db, value, **options))


def taken(client: Client, q: TaskQueue, timeout_s: float, session: Session | None = None) -> Task | None:
    """Take a task. The auditor judges answers of nothing, and the time of the answer."""
    take = partial(q.take, client.db, timeout_s, session=session)
    return client.call(q.name, TAKE, None, take, timeout_s=timeout_s)


VERBS: Mapping[str, Callable[[TaskQueue, Database, Task, float], object]] = {
    "ack": lambda q, db, task, _: q.ack(db, task),
    "release": lambda q, db, task, _: q.release(db, task),
    "put off": lambda q, db, task, delay_s: q.release(db, task, delay=delay_s),
    "give back": lambda q, db, task, _: q.give_back(db, task),
    "bury": lambda q, db, task, _: q.bury(db, task),
    "delete": lambda q, db, task, _: q.delete(db, task),
    "cancel": lambda q, db, task, _: q.cancel(db, task.id),
    "touch": lambda q, db, task, _: q.touch(db, task, 1),
    "renew": lambda q, db, task, _: q.renew(db, [task]),
    "kick": lambda q, db, _, __: q.kick(db, 2),
    "release all": lambda q, db, _, __: q.release_all(db),
    "leave": lambda *_: None,
}
"""The calls of a holder about its task, and some about all tasks."""


def hold(client: Client, q: TaskQueue, task: Task, finish: End) -> None:
    """Hold a task for a moment, and then finish it, or more often give it back."""
    client.pause(client.random.choice((0.001, 0.4)))
    with suppress(NotTaken):
        if client.random.random() < 0.3:
            finish(client, q, task)
        else:
            q.release(client.db, task)


def by_chance(
    client: Client,
    q: TaskQueue,
    task: Task,
    verbs: Sequence[str | End],
    refused: tuple[type[Exception], ...] = (NotTaken,),
    *,
    delays_s: Sequence[float] = (0,),
    late_s: float | None = None,
) -> None:
    """Call one of the verbs with a task. It may come too late: then another session has the lease."""
    delay_s = client.random.choice(delays_s) if len(delays_s) > 1 else delays_s[0]
    try:
        verb = client.random.choice(verbs)
        if isinstance(verb, str):
            VERBS[verb](q, client.db, task, delay_s)
        else:
            verb(client, q, task)
    except refused:
        if late_s is not None:
            client.pause(late_s)


def audit(client: Client, q: TaskQueue) -> None:
    """Compare at one version the counters of the queue with its tasks."""
    client.call(q.name, "audit", None, partial(run, client.db, partial(counted_and_found, q)))


def counted_and_found(q: TaskQueue, tr: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Return the statistics and the counts of the stored tasks, from one transaction."""
    live = {name: count for name, count in q.statistics(tr)["tasks"].items() if name in LIVE_NAMES}
    found = Counter(STATES[record_of(entry.value).state] for entry in all_tasks(q, tr))
    return live, {name: found[name] for name in LIVE_NAMES}


def total(q: TaskQueue, target: Any) -> int:
    return q.statistics(target)["tasks"]["total"]


def all_tasks(q: TaskQueue, tr: Any) -> Any:
    under = TaskKeys(q.contents).tasks
    return tr.snapshot.get_range(under.start, under.stop)


def ids(q: TaskQueue, tr: Transaction) -> list[str]:
    return [id_text(id_in(bytes(row.key))) for row in all_tasks(q, tr)]


def remaining(client: Client, *queues: TaskQueue) -> Iterator[None]:
    """Yield while the queues have tasks, those of dead sessions too; for ENOUGH_S at most."""
    until = client.runtime.monotonic() + ENOUGH_S
    while sum(total(q, client.db) for q in queues) and client.runtime.monotonic() < until:
        yield


def outlive(client: Client, q: TaskQueue, finish: End) -> None:
    for _ in remaining(client, q):
        q.kick(client.db, 9)
        if (task := taken(client, q, 1.0)) is not None:
            finish(client, q, task)


# Effects.


class Handled(NamedTuple):
    """The argument of an operation: a call of a handler, which raises Unavailable if its service is down."""

    worker: str
    queue: str
    value: str
    is_down: bool = False


def succeed(task: HeldTask) -> NoReturn:
    """End a handler: its effect is counted in the transaction that acks the task."""
    raise Done(lambda tr: tr.add(EFFECTS + task.data.encode(), b"\x01"))


def effects_in(database: Database, prefix: bytes = EFFECTS) -> dict[str, int]:
    """Return the number of effects of each task, by its data or its id."""
    return {e.key[len(prefix) :].decode(): e.value[0] for e in database.get_range_startswith(prefix)}


def once_each(name: str, trace: Trace, database: Database, prefix: bytes = EFFECTS) -> Iterator[str]:
    """Check that each put task had its effect once, and no other value had one."""
    effects = effects_in(database, prefix)
    puts = {op.argument: op for op in trace.of(name, "put")}
    for value, count in effects.items():
        if count != 1 or value not in puts:
            yield f"{count} effects of {value!r}"
    for value, op in puts.items():
        if op.done and value not in effects:
            yield f"lost: {value!r}"


# Looks at the leases and requests that ended clients have left.


def look(client: Client, subject: str, q: TaskQueue) -> None:
    client.call(subject, LOOK, q.name, partial(run, client.db, partial(_held_and_awaited, q)))


def _held_and_awaited(q: TaskQueue, tr: Transaction) -> tuple[int, int]:
    """Return the number of taken tasks, and the number of keys in the line."""
    keys = TaskKeys(q.contents)
    ranges = (keys.taken, LineKeys(keys.line).activity)
    held, awaited = (len(tr.snapshot.get_range(under.start, under.stop).to_list()) for under in ranges)
    return held, awaited


@checker
def nothing_left(trace: Trace, _: Database, subject: str) -> Iterator[str]:
    """Return a checker: no task is taken and no request waits at a look."""
    for found in trace.of(subject, LOOK):
        if found.result != (0, 0):
            yield f"the ended clients left (tasks taken, keys of the line): {found.result}"
