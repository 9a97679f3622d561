"""Takers that wait for tasks, while others remove the tasks, pause the queue, and give tasks back."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.scheduler import EPOCH_S
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace, longest_pause_s
from tests.system.workloads.common import cramped, or_a_bag, values_of
from tests.system.workloads.stage import Tasks, audit, look, nothing_left, play, remaining, threaded

KINDS = ("fifo", "fifottl", "utube", "fair")
TIMEOUTS_S = (0.0, 1.0, 4.0)
DELAYS_S = (0.0, 0.0, 1.0)
BRIEF_P = 0.5
MANY = 1_000
SLOW = ("slow_reply", "stall", "watch_late", "watch_very_late", "watch_missed", "clock_skew_s")
"""With these faults a take may wait beside a ready task."""
BURSTS, BRIEF, LONGER_S = 4, 9, 60.0
NAME = "emptied"
PROMPT_S = 0.8
Span = tuple[float, float]


@workload(clients=2, steps=6, never=SLOW)
def emptied(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    # No look by time: a wake-up that is missed has no remedy.
    simulation.limit(VERB_BATCH=random.choice((2, 200)), LOOK_EVERY_S=60)
    kind, threads, haste = random.choice(KINDS), random.choice((1, 2)), scattered(random, 0.5, 5)
    # With rare sweeps, the first request of the line has to look itself when a delay is over.
    simulation.limit(SWEEP_EVERY_S=1 if threads == 1 else 10)
    ttl = random.choice((None, 1.0)) if kind in ("fifottl", "fair") else None
    kind, ids = or_a_bag(simulation, kind), list[str]()
    queue = Tasks(NAME, kind)

    def produce(client: Client, q: TaskQueue) -> None:
        for value in values_of(client, size.steps):
            # Each task of a micro-queue has a key of its own: a busy key would excuse a wait.
            key = {"utube": value, "fair": client.random.choice("ab")}.get(kind)
            put = partial(q.put, client.db, value, key=key, ttl=client.random.choice((None, ttl)))
            ids.append(client.call(NAME, "put", value, put).id)
            rest(client, haste)

    def take(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession):
            use(client, q, took(client, q, client.random.choice(TIMEOUTS_S) * haste))
        rest(client, 0.2 * haste)

    def empty(client: Client, q: TaskQueue) -> None:
        rest(client, haste)
        client.random.choice(REMOVALS)(client, q, ids)
        audit(client, q)

    roles = {
        "producer-": queue.using(produce),
        "taker-": threaded({f"{number}": queue.repeating(size.steps, take) for number in range(threads)}),
        "emptier": queue.repeating(size.steps, empty),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    if kind == "fifottl" and Random(f"{simulation.seed} brief").random() < BRIEF_P:
        simulation.limit(DUE_BATCH=2)
        simulation.client(queue.repeating(BURSTS, put_brief_tasks), "brief")
    return list(checks(set(simulation.faults.active)))


def survive(client: Client, q: TaskQueue) -> None:
    look(client, NAME, q)
    client.call(NAME, "resume", None, partial(q.resume, client.db))
    for _ in remaining(client, q):
        q.kick(client.db, MANY)
        finish(client, q, took(client, q, 1.0))
    audit(client, q)


def took(client: Client, q: TaskQueue, timeout: float) -> Task | None:
    """Take a task, and record its data and the end of its life."""
    found: list[Task] = []

    def body() -> tuple[str, float] | None:
        found.extend(q.take_many(client.db, 1, timeout))
        return (found[0].data, found[0].expires or inf) if found else None

    client.call(NAME, "take", timeout, body, timeout_s=timeout)
    return found[0] if found else None


def use(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is None:
        return
    client.pause(0.3)
    client.random.choice((finish, finish, finish, give_back, bury_and_kick))(client, q, task)


def finish(client: Client, q: TaskQueue, task: Task | None) -> None:
    if task is not None:
        with suppress(NotTaken, UnknownSession):
            client.call(NAME, "finish", task.data, partial(q.ack, client.db, task))


def give_back(client: Client, q: TaskQueue, task: Task) -> None:
    delay_s = client.random.choice(DELAYS_S)

    def body() -> float:
        q.defer(client.db, task, delay_s)
        return delay_s

    with suppress(NotTaken):
        client.call(NAME, "return", task.data, body)


def bury_and_kick(client: Client, q: TaskQueue, task: Task) -> None:
    def body() -> float:
        q.bury(client.db, task)
        client.pause(0.2)
        q.kick(client.db, MANY)
        return 0.0

    with suppress(NotTaken):
        client.call(NAME, "return", task.data, body)


def rest(client: Client, mean_s: float) -> None:
    """Sleep, also in busy runs: only takers without tasks wait."""
    client.runtime.sleep(client.random.expovariate(1 / mean_s) if client.random.random() < 0.6 else 0.0)


def put_brief_tasks(client: Client, q: TaskQueue) -> None:
    """Put tasks that expire together, more than one take sweeps, before a task that stays for a while."""
    q.put_many(client.db, ["brief"] * BRIEF, ttl=client.random.choice((0.01, 0.3)))
    q.put(client.db, "longer", ttl=LONGER_S)
    rest(client, 2.0)


def delete(client: Client, q: TaskQueue, ids: Sequence[str]) -> None:
    for id_ in ids[-4:]:
        with suppress(TaskNotFound):
            client.call(NAME, "remove", id_, partial(removed, client, q, id_))


def removed(client: Client, q: TaskQueue, id_: str) -> str:
    data: str = client.random.choice((q.delete, q.cancel))(client.db, id_).data
    return data


def truncate(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "truncate", None, partial(q.truncate, client.db))


def truncate_some(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "truncate", None, partial(q.truncate_some, client.db, 2))


def pause(client: Client, q: TaskQueue, _: Sequence[str]) -> None:
    client.call(NAME, "pause", None, partial(q.pause, client.db))
    rest(client, 2.0)
    client.call(NAME, "resume", None, partial(q.resume, client.db))


REMOVALS: Sequence[Callable[[Client, TaskQueue, Sequence[str]], None]] = (
    delete,
    truncate,
    truncate_some,
    pause,
    pause,
)


# Checkers.


def checks(active: set[str]) -> Iterator[Checker]:
    """Yield the checkers for a run with the faults `active`."""
    yield from (exact_statistics(NAME), each_ends_once, no_watch_left_behind)
    if "die" not in active:
        yield from (none_waits_beside_a_task, nothing_left(NAME))


def each_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each put task was acked once, or was removed, or has expired."""
    acked = Counter(op.argument for op in trace.of(NAME, "finish") if op.done)
    removed = {op.result for op in trace.of(NAME, "remove") if op.done}
    unknown = {op.argument for op in trace.of(NAME, "finish") if not op.done}
    lives = {op.result[0]: op.result[1] for op in trace.of(NAME, "take") if op.result}
    for put in trace.of(NAME, "put"):
        value, truncates = put.argument, [op for op in trace.of(NAME, "truncate") if not op.before(put)]
        may_be_gone = (
            bool(truncates) or value in unknown or any(op.unknown for op in trace.of(NAME, "remove"))
        )
        if acked[value] > 1:
            yield f"acked {acked[value]} times: {value!r}"
        expires = put.done and (put.result.expires is not None or lives.get(value, inf) < inf)
        if put.done and not (acked[value] or value in removed or may_be_gone or expires):
            yield f"lost: {value!r}"


def none_waits_beside_a_task(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take waits for long while a task is ready and the queue is not paused.

    A task is ready from its put, or from the end of the delay of its return, to the end of the call that took
    or removed it. For runs without late answers.
    """
    open_ = _spans_without_pause(trace)
    for put in (op for op in trace.of(NAME, "put") if op.done):
        for ready in _spans_of(trace, put):
            for wait in trace.of(NAME, "take"):
                for span in open_:
                    both = _common(ready, (wait.began_s, wait.ended_s or wait.began_s), span)
                    beside_s = both[1] - both[0]
                    if beside_s > PROMPT_S and beside_s > PROMPT_S + _pauses_s(trace, both):
                        yield f"{wait.client} waited for {beside_s:.1f} s beside the ready {put.argument!r}"


def _spans_of(trace: Trace, put: Operation) -> Iterator[Span]:
    """The times at which a task was ready for sure."""
    value, removals = put.argument, [*trace.of(NAME, "remove"), *trace.of(NAME, "truncate")]
    opened = [op for op in (put, *trace.of(NAME, "return")) if op.argument == value and op.done]
    takes = [op for op in trace.of(NAME, "take") if op.result and op.result[0] == value]
    removals = [op for op in removals if op.name == "truncate" or op.argument == put.result.id]
    expires_s = inf if put.result.expires is None else put.result.expires - EPOCH_S
    for op in opened:
        began_s = (op.ended_s or inf) + (op.result if op.name == "return" else 0.0)
        # It may have been taken or removed within the call that put it there.
        ends = [take.ended_s for take in takes if take.ended_s is not None and take.ended_s >= op.began_s]
        # A task that was cancelled while it was taken does not come back.
        gone = [it.began_s for it in removals if it.name == "remove" or not it.before(op)]
        yield began_s, min([*ends, *gone, expires_s], default=began_s)


def _spans_without_pause(trace: Trace) -> Sequence[Span]:
    began, spans = 0.0, []
    for op in trace.of(NAME, "pause", "resume"):
        if op.name == "pause":
            spans.append((began, op.began_s))
        began = op.ended_s or inf
    return [*spans, (began, inf)]


def _common(*spans: Span) -> Span:
    return max(begin for begin, _ in spans), min(end for _, end in spans)


def _pauses_s(trace: Trace, span: Span) -> float:
    """The longest pauses that the refused attempts of takes in `span` may have had."""
    refused, pauses_s = Counter[tuple[str, int]](), 0.0
    for attempt in trace.transactions:
        if attempt.outcome == "committed" or attempt.operation is None or attempt.operation.name != "take":
            continue
        transaction = attempt.who, attempt.number
        if span[0] <= attempt.at_s <= span[1]:
            pauses_s += longest_pause_s(refused[transaction])
        refused[transaction] += 1
    return pauses_s
