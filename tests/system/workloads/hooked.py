"""Workers with transactional handlers and hooks: tasks move on with their acks, events follow commits."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Backoff, Bury, Done, Retry, Snooze
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.engine import Faults
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.workloads.common import cramped, values_of
from tests.system.workloads.fleet import ended, work_until_empty
from tests.system.workloads.stage import counted_and_found, play

TTR_S = 2.0
SESSION_TTR_S = 3.0
LIVES = 2
Log = Counter[str]
"""The events of one worker, by name."""
TIMEOUT_S = 0.5
TOO_SLOW_S = 4.5
SNOOZED_S = 1.0
CONTENDED = b"contended"
NAME, SECOND = "hooked", "second"
MARKS = b"marks/"
DONE, DEFERRED, FAILED, BURIED, NEVER, END = b"done", b"deferred", b"failed", b"buried", b"never", b"end"
OUTCOMES = {DONE: "succeeded", DEFERRED: "snoozed", FAILED: "retried", BURIED: "buried"}
"""The event of an attempt that ended with this mark."""
TALLIED = {
    "succeeded": "done",
    "retried": "failed",
    "snoozed": "snoozed",
    "buried": "buried",
    "cancelled": "cancelled",
    "lease_lost": "lost",
}


@workload(clients=2, steps=4)
def hooked(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3)
    timeout_s = simulation.random.choice((None, TIMEOUT_S))

    def produce(client: Client) -> None:
        first, _ = opened(client)
        for value in values_of(client, size.steps):
            client.call(NAME, "put", value, partial(first.put, client.db, value))
            client.pause(0.5)

    def work(client: Client) -> None:
        for _ in range(LIVES):
            first, second = opened(client)
            log = Log()
            worker = Worker(
                client.db,
                first,
                partial(handle, client, first, second),
                hooks=hooks(client, log),
                transactional=True,
                threads=2,
                attempts=4,
                backoff=Backoff(first_s=0.2, cap_s=1.0),
                timeout_s=timeout_s,
                grace_s=5.0,
                session_ttr_s=SESSION_TTR_S,
                overtake=0,
            )
            worker.start()
            client.runtime.sleep(client.random.uniform(1, 8))
            at_once = client.random.random() < 0.2
            worker.stop(at_once=at_once)
            ended(worker)
            client.call(NAME, "tally", at_once, partial(told_and_tallied, log, worker))

    def survive(client: Client) -> None:
        first, second = opened(client)
        first.kick(client.db, 1_000)
        finish(client, first, partial(pass_on, second), hooks(client, Log()))
        finish(client, second, partial(mark, END), Hooks())
        for q in (first, second):
            client.call(NAME, "audit", None, partial(run, client.db, partial(counted_and_found, q)))

    play(simulation, size, {"producer-": produce, "worker-": work}, {"survivor": survive})
    return [exact_statistics(NAME), no_watch_left_behind, *checks(simulation.faults)]


def told_and_tallied(log: Log, worker: Worker) -> tuple[Log, Tally]:
    return Log(log), worker.status().tally


def opened(client: Client) -> tuple[TaskQueue, TaskQueue]:
    first, second = (
        TaskQueue.create(client.db, name, "fifottl", ttr=TTR_S, if_not_exists=True) for name in (NAME, SECOND)
    )
    return first, second


def pass_on(second: TaskQueue, tr: Transaction, task: HeldTask) -> None:
    second.put(tr, task.data)
    mark(DONE, tr, task)


def finish(client: Client, q: TaskQueue, handler: Callable[..., object], hooks: Hooks) -> None:
    worker = Worker(
        client.db,
        q,
        handler,
        hooks=hooks,
        transactional=True,
        attempts=float("inf"),
        session_ttr_s=SESSION_TTR_S,
        overtake=0,
    )
    work_until_empty(worker)


# Calls.


def handle(client: Client, first: TaskQueue, second: TaskQueue, tr: Transaction, task: HeldTask) -> None:
    """Read and write a key that all handlers share, by chance; then do one of the deeds, at the timeout or
    long before it.
    """
    if client.random.random() < 0.3:
        tr.set(CONTENDED, bytes(tr.get(CONTENDED).value or b"")[-8:] + b".")
    client.runtime.sleep(client.random.choice((0, 0, 0.01, TIMEOUT_S - 0.003)))
    client.random.choice(DEEDS)(Attempt(client, first, second, tr, task))


@dataclass(frozen=True)
class Attempt:
    """One try of a handler's transaction, with a method for each deed."""

    client: Client
    first: TaskQueue
    second: TaskQueue
    tr: Transaction
    task: HeldTask

    def moves_on(self) -> None:
        """Put the task into the second queue, in the transaction of its ack."""
        self.second.put(self.tr, self.task.data)
        mark(DONE, self.tr, self.task)

    def moves_with_the_effect(self) -> None:
        raise Done(lambda tr: replace(self, tr=tr).moves_on())

    def ends(self) -> None:
        """End the lease by a verb in the transaction: the worker adds no ack."""
        self.client.random.choice((self.first.ack, self.first.delete))(self.tr, self.task)
        self.moves_on()

    def defers(self) -> None:
        if self.client.random.random() < 0.5:
            self.first.defer(self.tr, self.task, delay=0.1)
        else:
            self.first.release(self.tr, self.task, delay=0.1)
        mark(DEFERRED, self.tr, self.task)

    def returns(self) -> None:
        self.first.release(self.tr, self.task, delay=0.1, failure=Failure("Odd", "by a verb"))
        mark(FAILED, self.tr, self.task)

    def buries(self) -> None:
        self.first.bury(self.tr, self.task)
        mark(BURIED, self.tr, self.task)

    def fails(self) -> None:
        """Raise, after writes that must not happen."""
        self.second.put(self.tr, f"{self.task.data}, which failed")
        mark(NEVER, self.tr, self.task)
        raise self.client.random.choice((ValueError("odd"), Retry(0.1), Snooze(SNOOZED_S), Bury("never")))

    def is_too_slow(self) -> None:
        mark(NEVER, self.tr, self.task)
        self.client.runtime.sleep(TOO_SLOW_S)


DEEDS: Sequence[Callable[[Attempt], None]] = (
    Attempt.moves_on,
    Attempt.moves_on,
    Attempt.moves_with_the_effect,
    Attempt.ends,
    Attempt.defers,
    Attempt.returns,
    Attempt.buries,
    Attempt.fails,
    Attempt.fails,
    Attempt.is_too_slow,
)


def mark(what: bytes, tr: Transaction, task: HeldTask) -> None:
    """Count that this attempt has ended like this."""
    tr.add(b"%s%s/%s/%d" % (MARKS, what, task.data.encode(), task.attempts), b"\x01")


def hooks(client: Client, log: Log) -> Hooks:
    """Hooks that look for the marks of their attempt, and fail now and then."""

    def hook(event: Event) -> None:
        log[event.name] += 1
        task, error = event.task, None if event.error is None else str(event.error)
        told = Told(task.data, task.attempts, error, task.failures, event.delay_s)
        client.call(NAME, event.name, told, partial(run, client.db, partial(marks_of, told)))
        if client.random.random() < 0.2:
            raise ValueError("a hook failed")

    return Hooks(**{field.name: hook for field in fields(Hooks)})


# Checkers.


class Told(NamedTuple):
    """An event, as a hook is told of it: of its task the data, the attempt and the failures before it; the
    text of its error, and its delay.
    """

    data: str
    attempt: int
    error: str | None
    failures: int
    delay_s: float


def marks_of(told: Told, tr: Transaction) -> list[bytes]:
    """The marks of an attempt that are stored now."""
    at = b"/%s/%d" % (told.data.encode(), told.attempt)
    asked = {what: tr.snapshot.get(MARKS + what + at) for what in (DONE, DEFERRED, FAILED, BURIED)}
    return [what for what, value in asked.items() if value.present()]


def checks(faults: Faults) -> Iterator[Checker]:
    yield from (each_moves_once, failed_handlers_write_nothing, told_after_the_commit, told_once, tallied)
    yield from (snoozed_without_a_failure, *(() if "clock_skew_s" in faults.active else (snoozed_in_time,)))
    if "die" not in faults.active:
        yield each_end_is_told


def marks(database: Database, what: bytes) -> dict[tuple[str, int], int]:
    """The number of marks by task and attempt."""
    found = {}
    for row in database.get_range_startswith(MARKS + what + b"/"):
        _, data, attempt = row.key[len(MARKS) :].decode().split("/")
        found[data, int(attempt)] = row.value[0]
    return found


def each_moves_once(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each task has left the first queue and the second one with one effect each."""
    for what in (DONE, END):
        ended: Counter[str] = Counter()
        for (data, _), count in marks(database, what).items():
            ended[data] += count
        puts = {op.argument: op for op in trace.of(NAME, "put")}
        for data, count in ended.items():
            if count != 1 or data not in puts:
                yield f"{count} effects {what.decode()} of {data!r}"
        for data, op in puts.items():
            if op.done and not ended[data]:
                yield f"lost before its effect {what.decode()}: {data!r}"


def failed_handlers_write_nothing(_: Trace, database: Database) -> Iterator[str]:
    for data, attempt in marks(database, NEVER):
        yield f"attempt {attempt} of {data!r} failed, and its writes are there"


def events(trace: Trace) -> Iterator[Operation]:
    return (op for op in trace.of(NAME) if isinstance(op.argument, Told))


def told_after_the_commit(trace: Trace, _: Database) -> Iterator[str]:
    """Check that an outcome without an error was committed when it was told, and is that of the handler."""
    for op in events(trace):
        if not op.done or op.name in ("started", "lease_lost"):
            continue
        wanted = [] if op.argument.error is not None else [op.name]
        may_be_exhausted = op.name == "buried" and not op.result
        if [OUTCOMES[what] for what in op.result] != wanted and not may_be_exhausted:
            yield f"{op.name} was told of {op.argument}, and the handler has committed {op.result}"


def after_a_snooze(trace: Trace) -> Iterator[tuple[Operation, Operation, Operation]]:
    """Attempts that a handler has put off: the begin of each, its end, and the begin of the next one."""
    known = {(op.argument.data, op.argument.attempt, op.name): op for op in events(trace)}
    for (data, attempt, name), op in known.items():
        began, later = known.get((data, attempt, "started")), known.get((data, attempt + 1, "started"))
        if name == "snoozed" and op.argument.error is not None and began is not None and later is not None:
            yield began, op, later


def snoozed_without_a_failure(trace: Trace, _: Database) -> Iterator[str]:
    for began, _op, later in after_a_snooze(trace):
        if later.argument.failures > began.argument.failures:
            yield f"{later.argument} failed more often than {began.argument}, which put the task off"


def snoozed_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that a task that was put off begins after the delay. For clocks that agree."""
    for began, op, later in after_a_snooze(trace):
        if later.began_s < began.began_s + op.argument.delay_s:
            yield f"{later.argument} began {later.began_s - began.began_s:.3f} s after {op.argument} did"


def told_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each attempt is told to begin once, and to end at most once, after that."""
    began: Counter[tuple[str, int]] = Counter()
    over: Counter[tuple[str, int]] = Counter()
    for op in events(trace):
        at = op.argument.data, op.argument.attempt
        (began if op.name == "started" else over)[at] += 1
        # A task without an attempt left is buried before the handler is called, and a lease may end. If it
        # ends before the burial, that one raises NotTaken, which is told.
        is_exhausted = op.name == "buried" and op.argument.error is None
        never_began = (is_exhausted or op.name == "lease_lost") and not began[at]
        if over[at] > 1 or (began[at] != 1 and not never_began):
            yield f"{op.name} of {at} is event {over[at]}, after {began[at]} begins"


def each_end_is_told(trace: Trace, database: Database) -> Iterator[str]:
    """Check that a hook was told of each outcome that a handler has committed. For runs without deaths."""
    if any(op.argument for op in trace.of(NAME, "tally")):
        return  # a handler that was stopped at once may have committed all the same
    told = {(op.argument.data, op.argument.attempt, op.name) for op in events(trace)}
    mine = {op.argument for op in trace.of(NAME, "put")}
    for what, name in OUTCOMES.items():
        for data, attempt in marks(database, what):
            if (data, attempt, name) not in told and data in mine:
                yield f"no hook was told that attempt {attempt} of {data!r} has {name}"


def tallied(trace: Trace, _: Database) -> Iterator[str]:
    """Check that the tally of a worker has the events that its hooks were told of."""
    for op in trace.of(NAME, "tally"):
        if not op.done:
            continue
        told, tally = op.result
        if any(told[name] != getattr(tally, field) for name, field in TALLIED.items()):
            yield f"{op.client} told its hooks of {dict(told)}, and has {tally}"
