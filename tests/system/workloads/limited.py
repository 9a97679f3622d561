"""Two queues under limits of all tasks, of named ones and of keys: workers die, limits change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import (
    LimitInUse,
    LimitNotFound,
    NotTaken,
    RepartitionUnderWay,
    TaskNotFound,
    UnknownSession,
)
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import QUIET_S, cramped
from tests.system.workloads.stage import End, by_chance, counted_and_found, remaining

Produce = Callable[[Client, TaskQueue], object]
AtEnd = Callable[[Client, TaskQueue], object]
AtLast = Callable[[Client, Sequence[TaskQueue]], object]
WOKEN = "woken by the other queue"
PROMPT_S = 1.0
"""Less than limits.LOOK_EVERY_S, after which a take looks again by itself."""
NAMES = ("limited", "limited too")
SLOTS, STARTS = "slots", "starts"
RATE, PER_S, BURST = 1, 4.0, 3
TAKE, LAST_TAKE = "take under limits", "take at the end"
WAIT_S = 30.0
"""A take is stuck if it waits this long alone, beside a ready task."""
SLACK_S = limits.CLOCK_SKEW_S + limits.TRANSACTION_AGE_MAX_S


class Opened:
    """Opens the queues of one run, each of a kind of its own, with `options` for all or for each."""

    def __init__(
        self,
        random: Random,
        kinds: Sequence[str],
        options: Callable[[], dict[str, Any]],
        *,
        per_key: bool = False,
        rate: Callable[[Random], dict[str, Any]] = lambda _: {},
    ) -> None:
        """`per_key`: the limits count each key apart. `rate`: the numbers that the limit of slots has beside
        them, asked for at each change.
        """
        self._kinds = [random.choice(kinds) for _ in NAMES]
        self._partitions = [random.choice((1, 1, 3)) for _ in NAMES]
        self.options = [options() for _ in NAMES]
        self.per_key = per_key
        self.rate = rate

    def __call__(self, client: Client, at: int) -> TaskQueue:
        while True:
            Limit.set(client.db, STARTS, rate=RATE, per=PER_S, burst=BURST, per_key=self.per_key)
            if not any(found.name == SLOTS for found in Limit.list(client.db)):
                Limit.set(client.db, SLOTS, slots=2, per_key=self.per_key, **self.rate(client.random))
            with suppress(LimitNotFound):  # it may be deleted at this moment
                return self._created(client, at)

    def _created(self, client: Client, at: int) -> TaskQueue:
        options: Any = {"partitions": self._partitions[at], **self.options[at]}
        return TaskQueue.create(client.db, NAMES[at], self._kinds[at], ttr=2, if_not_exists="any", **options)

    def all(self, client: Client) -> list[TaskQueue]:
        return [self(client, at) for at in range(len(NAMES))]


def start(
    simulation: Simulation,
    size: Size,
    opened: Opened,
    produce: Produce,
    at_end: AtEnd = lambda _client, _queue: None,
    at_last: AtLast = lambda _client, _queues: None,
) -> None:
    """Start all clients. Once no task is left, `at_end` is called with each queue, and `at_last` with all."""
    for at in range(len(NAMES)):
        simulation.client(lambda client, at=at: produce(client, opened(client, at)), f"producer-{at}")
        for number in range(size.clients):
            simulation.client(partial(_work, opened=opened, size=size, at=at), f"worker-{at}-{number}")
    simulation.client(partial(_operate, opened=opened, size=size), "operator")
    simulation.afterwards(partial(_survive, opened=opened, at_end=at_end, at_last=at_last), "survivor")


def _work(client: Client, opened: Opened, size: Size, at: int) -> None:
    q = opened(client, at)
    for _ in range(2):
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for _ in range(size.steps):
                _attempt(client, q, session)


def _operate(client: Client, opened: Opened, size: Size) -> None:
    queues = opened.all(client)
    for _ in range(2 * size.steps):
        client.pause(0.7)
        slots = client.random.choice((1, 2, 3, 20))
        Limit.set(client.db, SLOTS, slots=slots, per_key=opened.per_key, **opened.rate(client.random))
        q = client.random.choice(queues)
        if client.random.random() < 0.2:
            q.truncate(client.db)
        elif q.options.get("partitions", 1) > 1:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3)))


def _survive(client: Client, opened: Opened, at_end: AtEnd, at_last: AtLast) -> None:
    queues = opened.all(client)
    client.runtime.sleep(QUIET_S)
    # Each look makes this process sweep the queue: leases that are over in one hold slots of the other one.
    for _ in remaining(client, *queues):
        for q in queues:
            _finish_one(client, q)
    for q in queues:
        at_end(client, q)
    at_last(client, queues)
    client.call(NAMES[0], "slots", None, lambda: Limit.open(client.db, SLOTS).used)
    for q in queues:
        if q.options.get("partitions", 1) == 1:
            client.call(q.name, "audit", None, partial(run, client.db, partial(counted_and_found, q)))


def _attempt(client: Client, q: TaskQueue, session: Session) -> None:
    """Take tasks, if there are some, and end the leases of each, or leave them to the clock."""
    count, wait_s = client.random.choice((1, 1, 3)), client.random.choice((0, 1, 3))
    take = partial(q.take_many, client.db, count, wait_s, session=session)
    for task in client.call(q.name, TAKE, None, take, timeout_s=wait_s):
        client.pause(0.5)
        by_chance(client, q, task, _VERBS, (NotTaken, TaskNotFound), delays_s=(0.5,))


def _linger(client: Client, _: TaskQueue, __: Task) -> None:
    client.runtime.sleep(3.0)


_VERBS: Sequence[str | End] = (
    *("ack", "ack", "release", "put off", "bury", "delete", "cancel", "touch", "renew"),
    *(_linger, "release all"),
)


def _finish_one(client: Client, q: TaskQueue) -> None:
    q.kick(client.db, 9)
    if not q.statistics(client.db)["tasks"]["ready"]:
        client.runtime.sleep(1.0)
        return
    take = partial(q.take, client.db, WAIT_S)
    task = client.call(q.name, LAST_TAKE, None, take)
    if task is not None:
        with suppress(NotTaken):
            q.ack(client.db, task)


def wake_across(client: Client, holding: TaskQueue, waiting: TaskQueue, named: Any, *, per_key: bool) -> None:
    """Let a task of one queue hold the only slot, a take of the other wait for it, and then give it back.

    `named`: the limits that both tasks name. Nothing else happens in the second queue meanwhile.
    """
    client.calm()
    db = client.db
    Limit.set(db, SLOTS, slots=1, per_key=per_key)
    with Session(db, ttr=1e6) as session:
        holding.put(db, "holds", limits=named, ttr=1e6)
        hold = partial(holding.take, db, WAIT_S, session=session)
        held = client.call(holding.name, LAST_TAKE, None, hold)  # none_is_stuck judges it
        waiting.put(db, "waits", limits=named, ttr=1e6)
        take = partial(waiting.take, db, WAIT_S, session=session)
        taker = client.thread(lambda other: other.call(waiting.name, WOKEN, None, take), "taker")
        client.runtime.sleep(0.4)
        if held is not None:
            client.call(waiting.name, "give back", None, partial(holding.ack, db, held))
        taker.join()
    for q in (holding, waiting):
        q.truncate(db)


def wakes_reach_other_queues(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each of these takes ended promptly after the slot came back."""
    for name in NAMES:
        backs = [op.ended_s for op in trace.of(name, "give back") if op.done]
        for back_s, op in zip(backs, trace.of(name, WOKEN), strict=False):
            if back_s is not None and op.done and (op.ended_s or 0.0) > back_s + PROMPT_S:
                late_s = (op.ended_s or 0.0) - back_s
                yield f"a take of {name!r} heard of a free slot of the other queue after {late_s:.1f} s"


# Checkers.


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


PROMISES: tuple[Checker, ...] = (none_is_stuck, slots_are_back, agreeing)


def starts_in_bounds(counts: Callable[[str, Task], bool]) -> Checker:
    """Check that no more tasks started in any window than the burst and the rate allow. The slack of the
    clocks, and of the time between the look of a take at its clock and its commit, is added to each window.

    `counts(queue, task)`: true for a task under the limit of starts.
    """

    def counted(name: str, result: Task | list[Task]) -> int:
        return sum(counts(name, task) for task in (result if isinstance(result, list) else [result]))

    def check(trace: Trace, _: Database) -> Iterator[str]:
        takes = [op for name in NAMES for op in trace.of(name, TAKE, LAST_TAKE) if op.done and op.result]
        spans = [(op.began_s, op.ended_s or op.began_s, counted(op.subject, op.result)) for op in takes]
        for began_s, ended_s in product((one[0] for one in spans), (one[1] for one in spans)):
            started = sum(count for first, last, count in spans if began_s <= first and last <= ended_s)
            allowed = BURST + RATE * (max(0.0, ended_s - began_s) + SLACK_S) / PER_S
            if started > allowed:
                yield f"{started} tasks started in {ended_s - began_s:.1f} s, and {allowed:.1f} may"
                return

    return check


KINDS = ("fifottl", "bag", "utubettl", "fair")
SETS = ([SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])
WITH_LANES = ("fifottl", "limfifottl")
NAMED: Sequence[list[str] | None] = (None, [SLOTS], [SLOTS], [STARTS], [SLOTS, STARTS])
PASS = "take behind tasks over their limit"
KEYS: Sequence[Any] = ("a", 2)
KEYED: Sequence[Any] = (
    None,
    *({SLOTS: key} for key in KEYS),
    *({STARTS: key} for key in KEYS),
    *({SLOTS: key, STARTS: None} for key in KEYS),
)


@workload(clients=2, steps=4)
def limited(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Two queues under shared limits: workers die with slots, and an operator changes the limits."""
    cramped(simulation)
    random = simulation.random
    opened = Opened(random, KINDS, lambda: {"limits": random.choice(SETS)})
    under = {name for name, options in zip(NAMES, opened.options, strict=True) if STARTS in options["limits"]}

    def produce(client: Client, q: TaskQueue) -> None:
        for number in range(size.clients * size.steps):
            key: Any = {"key": number % 3} if q.kind in ("utubettl", "fair") else {}
            q.put(client.db, "x", delay=client.random.choice((0, 0, 0.5)), **key)
            client.pause(0.2)

    start(simulation, size, opened, produce)
    in_bounds = starts_in_bounds(lambda name, _: name in under)
    return [*map(exact_statistics, NAMES), *PROMISES, in_bounds, no_watch_left_behind]


@workload(clients=2, steps=4)
def laned(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Laned: as `limited`, but the tasks name their limits, and wait in lanes of two queues."""
    cramped(simulation)
    random = simulation.random
    if random.random() < 0.7:
        simulation.limit(LANES_READ_MAX=random.randint(1, 2), LANES_KEPT=random.randint(0, 1))
    opened = Opened(random, WITH_LANES, lambda: {"task_limits": [SLOTS, STARTS]})

    produce = partial(put_under, NAMED, size.clients * size.steps)
    wake = partial(wake_in_turn, ([SLOTS], [SLOTS]), False)
    start(simulation, size, opened, produce, at_end=pass_by_name, at_last=wake)
    in_bounds = starts_in_bounds(lambda _, task: STARTS in task.limits)
    counted, ends = map(exact_statistics, NAMES), (none_is_held_up, wakes_reach_other_queues)
    return [*counted, *PROMISES, in_bounds, *ends, no_watch_left_behind]


def put_under(sets: Sequence[Any], count: int, client: Client, q: TaskQueue) -> None:
    """Put tasks. Each names one of these sets of limits."""
    for _ in range(count):
        delay = client.random.choice((0, 0, 0.5))
        q.put(client.db, "x", delay=delay, limits=client.random.choice(sets))
        client.pause(0.2)


def wake_in_turn(named: Sequence[Any], per_key: bool, client: Client, queues: Sequence[TaskQueue]) -> None:
    """Let a slot come back in each queue, and a take wait in the other one."""
    for (holding, waiting), bounds in zip((queues, queues[::-1]), named, strict=True):
        wake_across(client, holding, waiting, bounds, per_key=per_key)


def pass_by_name(client: Client, q: TaskQueue) -> None:
    """Take a task that names no limit, behind tasks over theirs."""
    db = client.db
    Limit.set(db, SLOTS, slots=1)
    q.truncate(db)
    with Session(db, ttr=1e6) as session:
        q.put_many(db, ["x", "x", "x"], limits=[SLOTS], ttr=1e6)
        q.take(db, 0, session=session)  # it holds the slot
        q.put(db, "free")
        client.call(q.name, PASS, None, partial(q.take, db, WAIT_S, session=session))
        q.truncate(db)


def none_is_held_up(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task without limits starts beside tasks that are over theirs."""
    for name in NAMES:
        for op in trace.of(name, PASS):
            if op.done and op.result is None:
                yield f"a task of {name!r} names no limit, and no take got it for {WAIT_S:g} s"


@workload(clients=2, steps=4)
def limit_keys(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `laned`, but the limits count each key that tasks name apart, and are deleted at times."""
    cramped(simulation)
    random = simulation.random
    if random.random() < 0.7:
        few = random.randint(1, 2)
        simulation.limit(LANES_TURNED=few - 1, KEYS_SETTLED=few, KEY_ROWS_WALKED=2, KEYS_PASSED=1)
    opened = Opened(random, WITH_LANES, lambda: {"task_limits": [SLOTS, STARTS]}, per_key=True)

    produce = partial(put_under, KEYED, size.clients * size.steps)
    wake = partial(wake_in_turn, ({SLOTS: "f"}, [SLOTS]), True)
    simulation.client(partial(delete_at_times, times=size.steps), "deleter")
    start(simulation, size, opened, produce, at_end=pass_by_key, at_last=wake)
    in_bounds = [starts_in_bounds(partial(_is_of, key)) for key in (None, *KEYS)]
    counted, ends = map(exact_statistics, NAMES), (none_is_held_up, nothing_is_left, wakes_reach_other_queues)
    return [*counted, *PROMISES, *in_bounds, *ends, no_watch_left_behind]


def _is_of(key: Any, _: str, task: Any) -> bool:
    return STARTS in task.limits and bool(task.limits[STARTS] == key)


def delete_at_times(client: Client, times: int) -> None:
    for _ in range(times):
        client.pause(3.0)
        with suppress(LimitInUse, LimitNotFound):
            Limit.delete(client.db, SLOTS)
            client.pause(0.5)
            Limit.set(client.db, SLOTS, slots=2, per_key=True)


def pass_by_key(client: Client, q: TaskQueue) -> None:
    """Take a task of a free key, behind many tasks of exhausted ones; then see which keys are left."""
    db = client.db
    Limit.set(db, SLOTS, slots=1, per_key=True)
    q.truncate(db)
    with Session(db, ttr=1e6) as session:
        for key in ("c", "d"):
            q.put_many(db, ["x", "x", "x"], limits={SLOTS: key}, ttr=1e6)
        q.take_many(db, 6, session=session)  # two hold the slots
        q.put(db, "free", limits={SLOTS: "e"})
        client.call(q.name, PASS, None, partial(q.take, db, WAIT_S, session=session))
        q.truncate(db)
    client.runtime.sleep(QUIET_S + BURST * PER_S / RATE)
    client.call(
        q.name, "keys", None, lambda: [one.key for name in (SLOTS, STARTS) for one in Limit.keys(db, name)]
    )


def nothing_is_left(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an idle key leaves no row behind."""
    for name in NAMES:
        for op in trace.of(name, "keys"):
            if op.done and op.result:
                yield f"the keys {op.result!r} have rows, and no task uses them"
