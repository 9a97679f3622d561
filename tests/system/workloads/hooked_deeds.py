"""The handler of the workload `hooked`, which runs in the transaction of the ack, and the hooks."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from fdbqueue.core.database import run
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.hooks import Event, Hooks
from fdbqueue.fleet.outcomes import Bury, Done, Retry, Snooze
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.hooked_checks import BURIED, DEFERRED, DONE, FAILED, MARKS, NAME, NEVER, Told

Log = Counter[str]
"""The events of one worker, by name."""
TIMEOUT_S = 0.5
TOO_SLOW_S = 4.5
SNOOZED_S = 1.0
CONTENDED = b"contended"


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


def marks_of(told: Told, tr: Transaction) -> list[bytes]:
    """The marks of an attempt that are stored now."""
    at = b"/%s/%d" % (told.data.encode(), told.attempt)
    asked = {what: tr.snapshot.get(MARKS + what + at) for what in (DONE, DEFERRED, FAILED, BURIED)}
    return [what for what, value in asked.items() if value.present()]
