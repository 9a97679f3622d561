"""Results: workers that ack, bury and lose tasks, beside calls that wait for the results of these tasks."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NoResult, NotTaken, ResultTimeout, TaskFailed, TaskNotFound, UnknownSession
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, outlive, play, taken

NAME = "results"
COMMITTED = b"committed/"
"""Keys of the results, each written in the transaction of an ack."""
VALUE, FAILED, NONE, PENDING = "value", "failed", "none", "pending"
KEPT_S, SHORT_S = 1e6, 3.0
PROMPT_S = 2.0
HARMLESS = {"clock_skew_s", "watch_spurious", "not_committed"}
"""These faults delay no answer for long."""


@workload(clients=2, steps=3)
def results(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = simulation.random
    simulation.limit(VERB_BATCH=2, PAYLOAD_PIECE_BYTES_MAX=random.choice((8, limits.PAYLOAD_PIECE_BYTES_MAX)))
    is_calm = set(simulation.faults.active) <= HARMLESS
    if is_calm:  # a wait that no watch wakes is then late
        simulation.limit(LOOK_EVERY_S=10 * PROMPT_S)
    kind, partitions = random.choice(("fifottl", "utubettl", "fair")), random.choice((1, 1, 3))
    ids: list[str] = []
    result_ttl = random.choice((KEPT_S, KEPT_S, SHORT_S))
    queue = Tasks(NAME, kind, ttr=2, partitions=partitions)

    def ask(client: Client, q: TaskQueue) -> None:
        ttl = client.random.choice((None, None, None, 1))
        ids.append(q.put(client.db, "x", ttl=ttl, result_ttl=result_ttl).id)
        wait(client, q, ids[-1], client.random.choice((0, 1, 5)))

    def work(client: Client, q: TaskQueue) -> None:
        with suppress(UnknownSession), Session(client.db, ttr=3) as session:
            for step in range(3 * size.steps):
                if (task := taken(client, q, 1, session)) is not None:
                    client.pause(1.0)
                    end(client, q, task, f"{client.name}.{step}")

    def survive(client: Client, q: TaskQueue) -> None:
        outlive(client, q, partial(end, tag="survivor"))
        for id_ in ids:
            wait(client, q, id_, 0)
        client.runtime.sleep(SHORT_S + 2 * limits.CLOCK_SKEW_S + 3 * limits.SWEEP_EVERY_S)
        client.call(NAME, "left", result_ttl, lambda: run(client.db, partial(left, q)))

    roles = {
        "asker-": queue.repeating(2 * size.steps, ask),
        "worker-": queue.using(work),
        "watcher": queue.repeating(2 * size.steps, watch, 0.5, pauses_first=True),
        "operator": queue.repeating(size.steps, kick_and_drop, 1.0, pauses_first=True),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    kept = [results_are_kept, swept_when_over, *([told_at_once] if is_calm else [])]
    return [one_answer, acked_by_holders, ends_are_told, *kept, no_watch_left_behind]


def watch(client: Client, q: TaskQueue) -> None:
    found = [task.id for state in "rt!" for task in q.tasks(client.db, state, 9)]
    if found:
        wait(client, q, client.random.choice(found), client.random.choice((0, 5, 20)))


def kick_and_drop(client: Client, q: TaskQueue) -> None:
    """Kick two tasks, and delete or cancel another one."""
    q.kick(client.db, 2)
    found = list(q.tasks(client.db, client.random.choice("rt!"), 3))
    if found:
        verb, id_ = client.random.choice(("delete", "cancel")), found[0].id
        with suppress(TaskNotFound):
            client.call(NAME, verb, id_, partial(getattr(q, verb), client.db, id_))


def wait(client: Client, q: TaskQueue, id_: str, timeout_s: float) -> None:
    def answer() -> Answer:
        try:
            return Answer(VALUE, q.result(client.db, id_, timeout_s))
        except (TaskFailed, NoResult, ResultTimeout) as error:
            return answer_of(error)

    client.call(NAME, "wait", id_, answer, timeout_s=timeout_s)


def end(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
    """Ack the task, or bury or release it, or let its lease end."""
    dice = client.random.random()
    with suppress(NotTaken, TaskNotFound):
        if dice < 0.6:
            ack(client, q, task, tag)
        elif dice < 0.8:
            failure = Failure("Odd", f"{task.attempts} {tag}")
            bury = partial(q.bury, client.db, task, failure=failure)
            client.call(NAME, "bury", (task.id, failure.message), bury)
        elif dice < 0.9:
            q.release(client.db, task)


def ack(client: Client, q: TaskQueue, task: Task, tag: str) -> None:
    """Ack the task. The same transaction writes its result under a key of its own."""
    value = f"{task.attempts} {tag}"

    def body(tr: Transaction) -> None:
        q.ack(tr, task, result=value)
        tr[COMMITTED + task.id.encode()] = value.encode()

    client.call(NAME, "ack", (task.id, value), lambda: run(client.db, body))


# Checkers.


class Answer(NamedTuple):
    """The answer of a wait: a value, the message of a failure, the reason of none, or the state."""

    kind: str
    told: Any


def answer_of(error: TaskFailed | NoResult | ResultTimeout) -> Answer:
    if isinstance(error, TaskFailed):
        failure = error.failure  # type: ignore[attr-defined]
        return Answer(FAILED, None if failure is None else failure.message)
    if isinstance(error, NoResult):
        return Answer(NONE, error.reason)  # type: ignore[attr-defined]
    return Answer(PENDING, error.state)  # type: ignore[attr-defined]


def waits_of(trace: Trace, kind: str) -> Iterator[Operation]:
    return (op for op in trace.of(NAME, "wait") if op.done and op.result.kind == kind)


def one_answer(trace: Trace, db: Database) -> Iterator[str]:
    """Check that each wait returned the value that an ack committed, and not before that ack began."""
    committed = {
        row.key[len(COMMITTED) :].decode(): row.value.decode() for row in db.get_range_startswith(COMMITTED)
    }
    acks = {op.argument[1]: op for op in trace.of(NAME, "ack")}
    for wait in waits_of(trace, VALUE):
        value = wait.result.told
        if committed.get(wait.argument) != value:
            yield f"{wait.client} was told {value!r}, and {committed.get(wait.argument)!r} was committed"
        if value in acks and wait.before(acks[value]):
            yield f"{wait.client} was told {value!r} before its ack"


def acked_by_holders(trace: Trace, db: Database) -> Iterator[str]:
    """Check that the committed result of a task is that of its last attempt."""
    last: dict[str, int] = {}
    for op in trace.of(NAME, "take"):
        if op.done and op.result:
            last[op.result.id] = max(last.get(op.result.id, 0), op.result.attempts)
    for row in db.get_range_startswith(COMMITTED):
        id_, attempt = row.key[len(COMMITTED) :].decode(), int(row.value.decode().partition(" ")[0])
        if attempt < last.get(id_, 0):
            yield f"the attempt {attempt} of {id_} stored a result, and the last one is {last[id_]}"


def ends_are_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a failure, a deletion and a state were told only where there was one."""
    buried = {op.argument[1]: op for op in trace.of(NAME, "bury")}
    for wait in waits_of(trace, FAILED):
        burial = buried.get(wait.result.told)
        if burial is None or burial.argument[0] != wait.argument or wait.before(burial):
            yield f"{wait.client} was told the failure {wait.result.told!r} of {wait.argument}"
    ended = {op.argument for name in ("delete", "cancel") for op in trace.of(NAME, name)}
    for wait in waits_of(trace, NONE):
        if ("deleted" in wait.result.told or "cancelled" in wait.result.told) and wait.argument not in ended:
            yield f"{wait.client} was told of {wait.argument}: {wait.result.told}"
    for wait in waits_of(trace, PENDING):
        if wait.result.told == "buried":
            yield f"{wait.client} waited for the buried task {wait.argument}"


def results_are_kept(trace: Trace, _: Database) -> Iterator[str]:
    """Check, where results are kept for long, that each wait that began after an ack was told its value."""
    acks = [op for op in trace.of(NAME, "ack") if op.done]
    if not any(op.argument == KEPT_S for op in trace.of(NAME, "left")):
        return
    for ack in acks:
        for wait in trace.of(NAME, "wait"):
            if (
                wait.done
                and wait.argument == ack.argument[0]
                and ack.before(wait)
                and wait.result.kind != VALUE
            ):
                yield f"{wait.client} was told {wait.result} after the ack of {wait.argument}"


def swept_when_over(trace: Trace, _: Database) -> Iterator[str]:
    for op in trace.of(NAME, "left"):
        if op.argument == SHORT_S and op.result:
            yield f"{op.result} keys of results are left"


def told_at_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a wait ended soon after the ack, or the burial, of its task."""
    ends = [op for name in ("ack", "bury") for op in trace.of(NAME, name) if op.done]
    for wait in (op for op in trace.of(NAME, "wait") if op.done and op.result.kind != PENDING):
        told = [op for op in ends if op.argument == (wait.argument, wait.result.told)]
        for op in told:
            assert op.ended_s is not None
            assert wait.ended_s is not None
            if wait.ended_s > max(op.ended_s, wait.began_s) + PROMPT_S:
                yield f"{wait.client} was told {wait.result} late, of {op.name} {op.argument}"


def left(q: TaskQueue, tr: Transaction) -> int:
    """Return the number of keys of results."""
    keys = SharedKeys(q.contents)
    return len(tr.snapshot.get_range(keys.results.start, keys.result_times.stop).to_list())
