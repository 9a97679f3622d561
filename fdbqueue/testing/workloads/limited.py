"""Limited: two queues under shared limits, workers that die with slots, and an operator that changes them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from random import Random
from typing import Any

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.errors import NotTaken, RepartitionUnderWay, TaskNotFound, UnknownSession
from fdbqueue.limiting.limit import Limit
from fdbqueue.sessions.session import Session
from fdbqueue.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from fdbqueue.testing.workloads import Size, workload
from fdbqueue.testing.workloads.common import QUIET_S, cramped
from fdbqueue.testing.workloads.tasks import ENOUGH_S, counted_and_found, total
from fdbqueue.verifying.verify import verify

NAMES = ("limited", "limited too")
SLOTS, STARTS = "slots", "starts"
RATE, PER_S, BURST = 1, 4.0, 3
TAKE, LAST_TAKE = "take under limits", "take at the end"
WAIT_S = 30.0
"""A take that waits for so long, beside a ready task and alone, is stuck."""
SLACK_S = limits.CLOCK_SKEW_S + limits.TRANSACTION_AGE_MAX_S


class Opened:
    """Opens the queues of one run, each of a kind and with limits of its own."""

    def __init__(self, random: Random) -> None:
        self._kinds = [random.choice(("fifottl", "bag", "utubettl", "fair")) for _ in NAMES]
        self._partitions = [random.choice((1, 1, 3)) for _ in NAMES]
        self.limits = [random.choice(([SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])) for _ in NAMES]

    def __call__(self, client: Client, at: int) -> TaskQueue:
        Limit.set(client.db, STARTS, rate=RATE, per=PER_S, burst=BURST)
        if not any(found.name == SLOTS for found in Limit.list(client.db)):
            Limit.set(client.db, SLOTS, slots=2)
        options: Any = {"partitions": self._partitions[at], "limits": self.limits[at]}
        return TaskQueue.create(client.db, NAMES[at], self._kinds[at], ttr=2, if_not_exists=True, **options)


@workload(clients=2, steps=4)
def limited(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    opened = Opened(random)

    def produce(client: Client, at: int) -> None:
        q = opened(client, at)
        for number in range(size.clients * size.steps):
            key: Any = {"key": number % 3} if q.kind in ("utubettl", "fair") else {}
            q.put(client.db, "x", delay=client.random.choice((0, 0, 0.5)), **key)
            client.pause(0.2)

    def work(client: Client, at: int) -> None:
        q = opened(client, at)
        for _ in range(2):
            with suppress(UnknownSession), Session(client.db, ttr=3) as session:
                for _ in range(size.steps):
                    attempt(client, q, session)

    def operate(client: Client) -> None:
        queues = [opened(client, at) for at in range(len(NAMES))]
        for _ in range(2 * size.steps):
            client.pause(0.7)
            Limit.set(client.db, SLOTS, slots=client.random.choice((1, 2, 3, 20)))
            q = client.random.choice(queues)
            if client.random.random() < 0.2:
                q.truncate(client.db)
            elif q.options.get("partitions", 1) > 1:
                with suppress(RepartitionUnderWay):
                    q.repartition(client.db, client.random.choice((2, 3)))

    def survive(client: Client) -> None:
        queues = [opened(client, at) for at in range(len(NAMES))]
        client.runtime.sleep(QUIET_S)
        until = client.runtime.monotonic() + ENOUGH_S
        while any(total(q, client.db) for q in queues) and client.runtime.monotonic() < until:
            for q in queues:
                finish_one(client, q)
        client.call(NAMES[0], "slots", None, lambda: Limit.open(client.db, SLOTS).used)
        for q in queues:
            if q.options.get("partitions", 1) == 1:
                client.call(q.name, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    for at in range(len(NAMES)):
        simulation.client(partial(produce, at=at), f"producer-{at}")
        for number in range(size.clients):
            simulation.client(partial(work, at=at), f"worker-{at}-{number}")
    simulation.client(operate, "operator")
    simulation.afterwards(survive, "survivor")
    checkers: list[Checker] = [*map(exact_statistics, NAMES), none_is_stuck, slots_are_back, agreeing]
    return [*checkers, starts_in_bounds(opened.limits), no_watch_left_behind]


def attempt(client: Client, q: TaskQueue, session: Session) -> None:
    """Take tasks, if there are some, and end the leases of each, or leave them to the clock."""
    count, wait_s = client.random.choice((1, 1, 3)), client.random.choice((0, 1, 3))
    take = partial(q.take_many, client.db, count, wait_s, session=session)
    for task in client.call(q.name, TAKE, None, take, timeout_s=wait_s):
        client.pause(0.5)
        with suppress(NotTaken, TaskNotFound):
            client.random.choice(_ends(client, q, task))()


def _ends(client: Client, q: TaskQueue, task: Task) -> list[Callable[[], object]]:
    db = client.db
    return [
        partial(q.ack, db, task),
        partial(q.ack, db, task),
        partial(q.release, db, task),
        partial(q.release, db, task, delay=0.5),
        partial(q.bury, db, task),
        partial(q.delete, db, task),
        partial(q.cancel, db, task.id),
        partial(q.touch, db, task, 1),
        partial(q.renew, db, [task]),
        partial(client.runtime.sleep, 3.0),
        partial(q.release_all, db),
    ]


def finish_one(client: Client, q: TaskQueue) -> None:
    q.kick(client.db, 9)
    if not q.statistics(client.db)["tasks"]["ready"]:
        client.runtime.sleep(1.0)
        return
    take = partial(q.take, client.db, WAIT_S)
    task = client.call(q.name, LAST_TAKE, None, take)
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)


def none_is_stuck(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task waits beside a free slot or a token, once only one process is left."""
    for name in NAMES:
        for op in trace.of(name, LAST_TAKE):
            if op.done and op.result is None:
                yield f"a task of {name!r} was ready, and no take got it for {WAIT_S:g} s"


def slots_are_back(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no slot is held when no task is left."""
    for op in trace.of(NAMES[0], "slots"):
        if op.done and op.result:
            yield f"{op.result} slots are held by no task"


def agreeing(_: Trace, database: Database) -> Iterator[str]:
    """Check that all keys of the root agree."""
    for finding in verify(database).findings:
        yield f"verify: {finding.text}"


def starts_in_bounds(named: Sequence[Sequence[str]]) -> Checker:
    """Check that no more tasks started in any window than the burst and the rate allow. The slack of the
    clocks, and of the time between the look of a take at its clock and its commit, is added to each window.
    """
    queues = [name for name, names in zip(NAMES, named, strict=True) if STARTS in names]

    def check(trace: Trace, _: Database) -> Iterator[str]:
        takes = [op for name in queues for op in trace.of(name, TAKE, LAST_TAKE) if op.done and op.result]
        spans = [(op.began_s, op.ended_s or op.began_s, _count_in(op.result)) for op in takes]
        for began_s, ended_s in product((one[0] for one in spans), (one[1] for one in spans)):
            started = sum(count for first, last, count in spans if began_s <= first and last <= ended_s)
            allowed = BURST + RATE * (max(0.0, ended_s - began_s) + SLACK_S) / PER_S
            if started > allowed:
                yield f"{started} tasks started in {ended_s - began_s:.1f} s, and {allowed:.1f} may"
                return

    return check


def _count_in(result: Task | list[Task]) -> int:
    return len(result) if isinstance(result, list) else 1
