"""Redrives of tasks that fail: begun, run, paused and stopped by several operators."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NoRedrive, NotBuried, NotTaken, RedriveUnderWay, TaskNotFound, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.tasks import failures
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.redrive import Redrive, RedriveState, RedriveStep, step_size
from fdbqueue.tasks.stored.records import TaskKeys, id_in, record_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.stage import all_tasks, counted_and_found, play, remaining, taken

ERRORS = ("A", "B", None)
OTHER = "redriven, other"
RATES_PER_S = (0.5, 4.0, 1_000.0)
NAME = "redriven"
EFFECTS = b"effect/"
MOVED_EARLIER = b"moved earlier"
Moved = tuple[RedriveStep, tuple[bytes, ...]]


@workload(clients=1, steps=3)
def redriven(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(DUE_BATCH=3, VERB_BATCH=random.choice((1, 3)), PAYLOAD_PIECE_BYTES_MAX=8)
    simulation.limit(RECORD_PAYLOAD_BYTES_MAX=random.choice((0, limits.RECORD_PAYLOAD_BYTES_MAX)))
    kind = random.choice(("fifo", "fifottl", "utube", "fair"))
    other_kind = random.choice(("fifottl", "limfifottl", "utube"))

    def opened(client: Client) -> tuple[TaskQueue, TaskQueue, DeadLetters]:
        q = TaskQueue.create(client.db, NAME, kind, if_not_exists=True)
        capacity = 9 if other_kind == "limfifottl" else None
        other = TaskQueue.create(client.db, OTHER, other_kind, capacity=capacity, if_not_exists=True)
        return q, other, DeadLetters.open(client.db, NAME)

    def produce(client: Client) -> None:
        q, _, _ = opened(client)
        for value in values_of(client, 2 * size.steps):
            client.call(NAME, "put", value, partial(q.put, client.db, value))
            client.pause(0.2)

    def fail(client: Client) -> None:
        q, _, letters = opened(client)
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for step in range(4 * size.steps):
                bury(client, q, session)
                if client.random.random() < 0.3:
                    edit(client, letters, f"{client.name}.{step}")
                client.pause(0.3)

    def operate(client: Client) -> None:
        q, _, letters = opened(client)
        for _ in range(3 * size.steps):
            turn(client, letters)
            for _ in range(client.random.randint(1, 4)):
                step(client, letters)
                client.pause(0.2)
            if client.random.random() < 0.2:
                client.call(NAME, "audit", None, lambda: run(client.db, partial(audited, q, letters)))
            client.runtime.sleep(client.random.choice((0, 0.2, 1)))

    def survive(client: Client) -> None:
        q, other, letters = opened(client)
        client.call(NAME, "audit", None, lambda: run(client.db, partial(audited, q, letters)))
        for _ in remaining(client, q, other):
            letters.kick_matching(client.db)
            for queue in (q, other):
                if (task := queue.take(client.db, 0.5)) is not None:
                    finish(client, queue, task)

    operators = {f"operator-{number}": operate for number in range(size.clients + 1)}
    roles = {"producer-": produce, "failer-": fail, **operators}
    play(simulation, size, roles, {"survivor": survive})
    skew_s = simulation.faults.clock_skew_s
    checks: list[Checker] = [once_each, never_twice, pauses_hold, edits_hold, partial(paced, skew_s=skew_s)]
    return [exact_statistics(NAME), *checks, no_watch_left_behind]


def bury(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, and bury it with a failure or without one, or hold it."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is None or client.random.random() < 0.1:
        return
    error = client.random.choice(ERRORS)
    with suppress(NotTaken):
        q.bury(client.db, task, failure=None if error is None else Failure(error, client.random.choice("xy")))


def edit(client: Client, letters: DeadLetters, tag: str) -> None:
    found = letters.tasks(client.db, 1000)
    if found:
        task, length = client.random.choice(found).task, client.random.randint(1, 30)
        value = str(task.data).partition("+")[0]
        with suppress(NotBuried, TaskNotFound):
            data = f"{value}+{tag}{'.' * length}"
            client.call(NAME, "edit", (value, data), lambda: letters.edit(client.db, task, data).id)


def finish(client: Client, q: TaskQueue, task: Task) -> None:
    def body(tr: Transaction) -> None:
        q.ack(tr, task)
        value, _, edited = str(task.data).partition("+")
        tr.add(EFFECTS + value.encode(), b"\x01")
        tr[EFFECTS + b"edited/" + value.encode()] = edited.encode()

    with suppress(NotTaken):
        client.call(NAME, "finish", task.data, lambda: run(client.db, body))


def turn(client: Client, letters: DeadLetters) -> None:
    """Begin a redrive, if none is under way; pause, resume or stop it, by chance."""
    verb = client.random.choice(("begin", "begin", "begin", "pause", "pause", "resume", "stop", ""))
    verbs = {
        "begin": partial(run, client.db, partial(begin, letters, drawn(client))),
        "pause": partial(letters.pause_redrive, client.db),
        "resume": partial(letters.resume_redrive, client.db),
        "stop": partial(letters.stop_redrive, client.db),
    }
    if verb:
        with suppress(NoRedrive, RedriveUnderWay):
            client.call(NAME, verb, None, verbs[verb])


def drawn(client: Client) -> Redrive:
    choice = client.random.choice
    error, text = choice((None, None, "A", "")), choice((None, None, None, "x"))
    rate_per_s, limit = choice(RATES_PER_S), choice((None, None, 3))
    return Redrive(RedriveState.RUNNING, rate_per_s, error, text, choice((None, None, OTHER)), limit)


def begin(letters: DeadLetters, wanted: Redrive, tr: Transaction) -> Redrive:
    """Begin a redrive, and add the tasks that the one before has moved to a sum."""
    before = letters.redrive(tr)
    begun = letters.begin_redrive(
        tr,
        error=wanted.error,
        text=wanted.text,
        rate_per_s=wanted.rate_per_s,
        into=wanted.into,
        limit=wanted.limit,
    )
    tr.add(MOVED_EARLIER, (0 if before is None else before.moved).to_bytes(8, "little"))
    return begun


def step(client: Client, letters: DeadLetters) -> None:
    """A step by a database, which happens once; or by a transaction, which tells the tasks that it moves."""
    with suppress(NoRedrive):
        if client.random.random() < 0.5:
            client.call(NAME, "step", None, lambda: (letters.step_redrive(client.db), ()))
        else:
            client.call(NAME, "step", None, lambda: run(client.db, partial(moved_in, letters)))


# Checkers.


def audited(q: TaskQueue, letters: DeadLetters, tr: Transaction) -> tuple[dict[str, Any], dict[str, Any]]:
    """The counters of states, classes and moved tasks; and the counts of the stored tasks."""
    keys = TaskKeys(q.contents)
    live, states = counted_and_found(q, tr)
    records = [record_of(entry.value) for entry in all_tasks(q, tr)]
    buried = Counter(record.error for record in records if record.state == TaskState.BURIED)
    filed = Counter(
        keys.class_in(bytes(row.key)) for row in tr.snapshot.get_range(keys.classed.start, keys.classed.stop)
    )
    calls, now = q.statistics(tr)["calls"], letters.redrive(tr)
    earlier = int.from_bytes(tr.snapshot.get(MOVED_EARLIER).value or b"", "little")
    counted = {
        **live,
        "classes": failures.counted(tr.snapshot, keys, 99),
        "filed": dict(filed),
        "moved": earlier + (0 if now is None else now.moved),
    }
    found = {
        **states,
        "classes": dict(buried),
        "filed": dict(buried),
        "moved": calls["kick"] + calls["delete"],
    }
    return counted, found


def moved_in(letters: DeadLetters, tr: Transaction) -> Moved:
    """One step in a transaction, and the ids of the tasks that it has moved."""
    buried = TaskKeys(letters.contents).buried
    before = [id_in(bytes(row.key)) for row in tr.snapshot.get_range(buried.start, buried.stop)]
    step = letters.step_redrive(tr)
    after = {id_in(bytes(row.key)) for row in tr.snapshot.get_range(buried.start, buried.stop)}
    return step, tuple(id_ for id_ in before if id_ not in after)


def steps_of(trace: Trace) -> Iterator[tuple[Operation, Moved]]:
    return ((op, op.result) for op in trace.of(NAME, "step") if op.done)


def once_each(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task had its effect once, in whatever queue, and no other value had one."""
    puts = {op.argument: op for op in trace.of(NAME, "put")}
    effects = {
        entry.key[len(EFFECTS) :].decode(): entry.value
        for entry in database.get_range_startswith(EFFECTS)
        if not entry.key.startswith(EFFECTS + b"edited/")
    }
    yield from (
        f"{count!r} effects of {v}" for v, count in effects.items() if count != b"\x01" or v not in puts
    )
    yield from (f"lost: {value}" for value, op in puts.items() if op.done and value not in effects)


def never_twice(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no redrive has moved a task twice."""
    moved = Counter((step.redrive.began, id_) for _, (step, ids) in steps_of(trace) for id_ in ids)
    yield from (
        f"the redrive of {began} moved {id_!r} {n} times" for (began, id_), n in moved.items() if n > 1
    )


def pauses_hold(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no step moves a task between the end of a pause, or of a stop, and the begin of a resume, or
    of another redrive.
    """
    opens = trace.of(NAME, "resume", "begin")
    for pause in (op for op in trace.of(NAME, "pause", "stop") if op.done):
        until = min((op.began for op in opens if not op.before(pause)), default=float("inf"))
        for op, (step, _ids) in steps_of(trace):
            if pause.before(op) and op.ended is not None and op.ended < until and step.moved:
                yield f"{op.client} moved {step.moved} tasks after a {pause.name}"


def edits_hold(trace: Trace, database: Database) -> Iterator[str]:
    """Check that a finished task had the data of its last edit."""
    edits = [op for op in trace.of(NAME, "edit") if op.done or op.unknown]
    for entry in database.get_range_startswith(EFFECTS + b"edited/"):
        value, data = entry.key[len(EFFECTS + b"edited/") :].decode(), bytes(entry.value).decode()
        of_value = [op for op in edits if op.argument[0] == value]
        wrote = [op for op in of_value if op.argument[1] == f"{value}+{data}"]
        later = [op for op in of_value if op.done and all(one.before(op) for one in wrote)]
        if later or (data and not wrote):
            yield f"{value} was finished with {data!r}, after the edits {[op.argument[1] for op in of_value]}"


def paced(trace: Trace, _: Database, skew_s: float) -> Iterator[str]:
    """Check that no redrive was faster than its rate, beyond one step and the difference of the clocks."""
    by_redrive: dict[float, list[tuple[Operation, RedriveStep]]] = {}
    for op, (step, _ids) in steps_of(trace):
        if step.moved:
            by_redrive.setdefault(step.redrive.began, []).append((op, step))
    for steps in by_redrive.values():
        redrive, began_s = steps[0][1].redrive, min(op.began_s for op, _step in steps)
        ordered = sorted(steps, key=lambda one: one[0].ended_s or 0.0)
        for (op, _step), moved in zip(ordered, accumulate(step.moved for _op, step in ordered), strict=True):
            span_s = (op.ended_s or 0.0) - began_s + limits.REDRIVE_STEP_S + skew_s
            if moved > redrive.rate_per_s * span_s + step_size(redrive):
                yield f"{moved} tasks in {span_s:.1f} s, at a rate of {redrive.rate_per_s} a second"
