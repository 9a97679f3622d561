"""Hand-offs by holders and a worker: outsiders complete and fail tasks, ttls end, processes die."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotHandedOff, NotTaken, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Backoff, Handoff
from fdbqueue.fleet.worker import Worker
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.failures import NOT_COMPLETED
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.fleet import ended
from tests.system.workloads.stage import EFFECTS, Tasks, audit, by_chance, effects_in, play, remaining

NAME = "handed"
SLOTS = "slots of handed tasks"
TTR_S, SESSION_TTR_S = 2.0, 3.0
TTLS_S = (1.0, 3.0, 20.0)
KEYS = 2
VERBS = (*["complete"] * 4, "fail", "cancel")
FAILED, ASKED = "FailedOutside", "ask for a hand-off"


@workload(clients=1, steps=5)
def handed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.overtake = limits.WORKER_OVERTAKE
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    kind, partitions = simulation.random.choice(("utubettl", "fair")), simulation.random.choice((1, 1, 3))
    tasks = Tasks(NAME, kind, ttr=TTR_S, partitions=partitions, limits=[SLOTS])
    queue = Limited(tasks)
    roles = {
        "producer-": queue.repeating(size.steps, put, 0.3),
        "outsider-": queue.repeating(3 * size.steps, end_one, 0.5, pauses_first=True),
        "holder-": queue.working(2 * size.steps, once, ttrs_s=(1, 3), lives=2),
        "worker": queue.using(work),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    of_keys = [keys_are_held] if kind == "utubettl" else []
    return [exact_statistics(NAME), *PROMISES, *of_keys, no_watch_left_behind]


class Limited(Tasks):
    """A queue under a limit, which is set before."""

    def __init__(self, tasks: Tasks) -> None:
        self.__dict__.update(vars(tasks))

    def __call__(self, client: Client) -> TaskQueue:
        Limit.set(client.db, SLOTS, slots=3)
        return super().__call__(client)


def put(client: Client, q: TaskQueue) -> None:
    key = client.random.randrange(KEYS)
    client.call(NAME, "put", None, lambda: q.put(client.db, key, key=key, result_ttl=1e6).id)


def once(client: Client, q: TaskQueue, session: Session) -> None:
    task = took(client, q, session, client.random.choice((0, 1)))
    if task is not None:
        client.pause(0.5)
        by_chance(client, q, task, (hand_off, hand_off, hand_off_within, "release", fail_inside, "leave"))


def took(client: Client, q: TaskQueue, session: Session | None, timeout_s: float) -> Task | None:
    """Take a task. The trace has its failures from outside, too, as its number of attempts shows them."""
    found: list[Task] = []

    def take() -> tuple[str, int, int, tuple[int, ...]] | None:
        found.extend(q.take_many(client.db, 1, timeout_s, session=session))
        if not found:
            return None
        with suppress(TaskNotFound):
            return told(q, client.db, found[0])
        return None

    with suppress(UnknownSession):
        client.call(NAME, "take", None, take)
    return found[0] if found else None


def told(q: TaskQueue, db: Database, task: Task) -> tuple[str, int, int, tuple[int, ...]]:
    """The id, task key and number of the attempt, and those of earlier attempts that have failed outside."""
    failures = [one.attempt for one in q.failures(db, task) if one.error in (NOT_COMPLETED, FAILED)]
    return task.id, task.key, task.attempts, tuple(failures)


def hand_off(client: Client, q: TaskQueue, task: Task) -> None:
    ttl_s = client.random.choice(TTLS_S)
    about = (task.id, task.key, task.attempts, ttl_s)
    client.call(NAME, "hand off", about, partial(q.hand_off, client.db, task, ttl_s, for_="it"))


def hand_off_within(client: Client, q: TaskQueue, task: Task) -> None:
    """In a transaction with another write. It may be committed, and its client not know."""
    ttl_s = client.random.choice(TTLS_S)

    def body(tr: Transaction) -> None:
        q.hand_off(tr, task, ttl_s)
        tr[b"pending/" + task.id.encode()] = b""

    client.call(NAME, "hand off", (task.id, task.key, task.attempts, ttl_s), lambda: run(client.db, body))


def fail_inside(client: Client, q: TaskQueue, task: Task) -> None:
    q.release(client.db, task, delay=0.1, failure=Failure("odd"))


def work(client: Client, q: TaskQueue) -> None:
    def handle(task: HeldTask) -> None:
        client.runtime.sleep(client.random.uniform(0, 1))
        if client.random.random() < 0.2:
            raise ValueError
        ttl_s = client.random.choice(TTLS_S)
        client.call(NAME, ASKED, (task.id, task.key, task.attempts, ttl_s), lambda: None)
        raise Handoff(ttl_s)

    def note(event: Event) -> None:
        task, error = event.task, event.error
        assert isinstance(error, Handoff)
        client.call(NAME, "hand off", (task.id, task.key, task.attempts, error.ttl), lambda: None)

    worker = Worker(
        client.db,
        q,
        handle,
        hooks=Hooks(handed_off=note),
        threads=2,
        attempts=math.inf,
        backoff=Backoff(first_s=0.2, cap_s=1.0),
        session_ttr_s=SESSION_TTR_S,
    )
    worker.start()
    client.runtime.sleep(client.random.uniform(5, 20))
    worker.stop(at_once=client.random.random() < 0.3)
    ended(worker)


def end_one(client: Client, q: TaskQueue) -> None:
    """Complete, fail or cancel a task that is taken; it is handed off, or it is not."""
    found = list(q.tasks(client.db, TaskState.TAKEN, 9))
    if found:
        end(client, q, client.random.choice(found).id, client.random.choice(VERBS))


def end(client: Client, q: TaskQueue, id_: str, verb: str) -> None:
    def complete(tr: Transaction) -> int:
        task = q.complete(tr, id_, id_)
        tr.add(EFFECTS + id_.encode(), b"\x01")
        return task.attempts

    with suppress(NotHandedOff, TaskNotFound):
        if verb == "complete":
            client.call(NAME, verb, id_, lambda: run(client.db, complete))
        elif verb == "fail":
            client.call(NAME, verb, id_, lambda: q.fail(client.db, id_, "no").attempts)
        else:
            client.call(NAME, verb, id_, lambda: q.cancel(client.db, id_).state)


def survive(client: Client, q: TaskQueue) -> None:
    """Hand each task that is left off, and complete it."""
    for _ in remaining(client, q):
        if (task := took(client, q, None, 1.0)) is not None:
            with suppress(NotTaken):
                hand_off(client, q, task)
        for task in q.tasks(client.db, TaskState.TAKEN, 9):
            end(client, q, task.id, "complete")
    if q.options.get("partitions", 1) == 1:
        audit(client, q)
    client.call(NAME, "slots", None, lambda: Limit.open(client.db, SLOTS).used)


# Checkers.


def each_has_one_end(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task was completed once, or cancelled."""
    effects = effects_in(database)
    cancelled = {op.argument for op in trace.of(NAME, "cancel")}
    yield from (f"{count} completions of {id_}" for id_, count in effects.items() if count != 1)
    for put in trace.of(NAME, "put"):
        if put.done and put.result not in effects and put.result not in cancelled:
            yield f"lost: {put.result}"


def hand_offs(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "hand off") if op.done)


def each_ends_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a hand-off that was not completed is one failed attempt, and that no lease outlives it. An
    attempt is forgotten after limits.FAILURES_KEPT more.
    """
    takes = [op for op in trace.of(NAME, "take") if op.done and op.result]
    for hand_off in hand_offs(trace):
        id_, _, attempt, _ = hand_off.argument
        for take in takes:
            taken, _, later, failed = take.result
            if taken == id_ and 0 < later - attempt <= limits.FAILURES_KEPT and failed.count(attempt) != 1:
                yield f"attempt {attempt} of {id_} was handed off, and failed {failed.count(attempt)} times"


def ends_are_of_hand_offs(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each completion and failure was that of an attempt that a holder has begun to hand off."""
    begun = {(op.argument[0], op.argument[2]) for name in ("hand off", ASKED) for op in trace.of(NAME, name)}
    for end_ in (op for name in ("complete", "fail") for op in trace.of(NAME, name) if op.done):
        if (end_.argument, end_.result) not in begun:
            yield f"{end_.client} ended the attempt {end_.result} of {end_.argument}, which nobody handed off"


def cancels_end(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a cancel of a task that is handed off ends it at once."""
    ends = [op for name in ("complete", "fail") for op in trace.of(NAME, name) if op.done]
    takes = [op for op in trace.of(NAME, "take") if op.done and op.result]
    marked = [op for op in trace.of(NAME, "cancel") if op.done and op.result == TaskState.TAKEN]
    for hand_off in hand_offs(trace):
        id_, _, attempt, ttl_s = hand_off.argument
        for cancel in marked:
            is_over = any(
                op.result[0] == id_ and op.result[2] > attempt and not cancel.before(op) for op in takes
            ) or any((op.argument, op.result) == (id_, attempt) and not cancel.before(op) for op in ends)
            is_in_time = cancel.ended_s < hand_off.began_s + ttl_s - 2 * limits.CLOCK_SKEW_S
            if cancel.argument == id_ and hand_off.before(cancel) and is_in_time and not is_over:
                yield f"{cancel.client} marked {id_}, which was handed off"


def keys_are_held(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no task of a key was taken while another one of it was handed off."""
    ends = [op for name in ("complete", "fail", "cancel") for op in trace.of(NAME, name)]
    takes = [op for op in trace.of(NAME, "take") if op.done and op.result]
    for hand_off in hand_offs(trace):
        id_, key, _, ttl_s = hand_off.argument
        over_s = hand_off.began_s + ttl_s - 2 * limits.CLOCK_SKEW_S
        for take in takes:
            taken, of_key, *_ = take.result
            is_within = hand_off.before(take) and take.ended_s is not None and take.ended_s < over_s
            is_free = any(op.argument == id_ and not take.before(op) for op in ends)
            if of_key == key and taken != id_ and is_within and not is_free:
                yield f"{take.client} took {taken} of the key {key}, and {id_} was handed off"


def slots_are_back(trace: Trace, _: Database) -> Iterator[str]:
    for op in trace.of(NAME, "slots"):
        if op.done and op.result:
            yield f"{op.result} slots are held by no task"


def agreeing(_: Trace, database: Database) -> Iterator[str]:
    for finding in verify(database).findings:
        yield f"verify: {finding.text}"


PROMISES: tuple[Checker, ...] = (
    each_has_one_end,
    each_ends_once,
    ends_are_of_hand_offs,
    cancels_end,
    slots_are_back,
    agreeing,
)
