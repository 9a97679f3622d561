"""Two queues under limits: of all tasks, of those that name them, and of keys."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.errors import LimitInUse, LimitNotFound
from fdbqueue.core.sessions.session import Session
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import QUIET_S, cramped
from tests.system.workloads.limited_clients import (
    BURST,
    NAMES,
    PER_S,
    PROMISES,
    RATE,
    SLOTS,
    STARTS,
    WAIT_S,
    Opened,
    start,
    starts_in_bounds,
    wake_across,
    wakes_reach_other_queues,
)

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
    """Put tasks, each of which names one of these sets of limits."""
    for _ in range(count):
        delay = client.random.choice((0, 0, 0.5))
        q.put(client.db, "x", delay=delay, limits=client.random.choice(sets))
        client.pause(0.2)


def wake_in_turn(named: Sequence[Any], per_key: bool, client: Client, queues: Sequence[TaskQueue]) -> None:
    """Let a slot come back in each queue, and a take wait in the other one."""
    for (holding, waiting), limits in zip((queues, queues[::-1]), named, strict=True):
        wake_across(client, holding, waiting, limits, per_key=per_key)


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
    """Delete the limit of slots, and set it anew."""
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
