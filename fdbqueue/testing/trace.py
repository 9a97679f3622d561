"""The trace: the events of a simulation, in order. The same seed gives the same trace.

An *event* is a tuple of plain values. An *operation* is one call of a client; its begin and end are numbers
of events. If the client died in the call, the operation has no end: it may have happened or not.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fdbqueue.core.database import Database
from fdbqueue.core.limits import RETRY_DELAY_FIRST_S, RETRY_DELAY_GROWTH, RETRY_DELAY_MAX_S
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.operate.verify.values import Verification
from fdbqueue.operate.verify.verify import AnyQueue, verify

TraceEvent = tuple[float, str, str, tuple[Any, ...]]  # virtual seconds, client, event, details


@dataclass(slots=True)
class Operation:
    """One call of a client: `name` (such as enqueue) with `argument`, on the queue `subject`."""

    client: str
    subject: str
    name: str
    argument: Any
    began: int
    began_s: float
    ended: int | None = None
    ended_s: float | None = None
    result: Any = None
    error: BaseException | None = field(default=None, compare=False)
    timeout_s: float | None = None
    """The time for which the call waits at most; None if it is not known."""

    @property
    def done(self) -> bool:
        """True if the call returned a result."""
        return self.ended is not None and self.error is None

    @property
    def unknown(self) -> bool:
        """True if the client died in the call: it may have happened once, or not at all."""
        return self.ended is None

    def before(self, other: "Operation") -> bool:
        """True if this call had ended when `other` began."""
        return self.ended is not None and self.ended < other.began


@dataclass(slots=True)
class Footprint:
    """The reads and writes of one commit, and its outcome."""

    who: str
    number: int
    at_s: float
    outcome: str
    keys_read: int
    keys_written: int
    size_bytes: int
    reads: list[tuple[str, bytes, Any]] = field(default_factory=list)
    writes: list[tuple[str, bytes, Any]] = field(default_factory=list)
    operation: Operation | None = None


@dataclass(slots=True)
class Trace:
    """Events, operations, transactions and counts of one run; with `detailed`, also all keys."""

    detailed: bool = False
    events: list[TraceEvent] = field(default_factory=list, init=False)
    operations: list[Operation] = field(default_factory=list, init=False)
    transactions: list[Footprint] = field(default_factory=list, init=False)
    faults: Counter[str] = field(default_factory=Counter, init=False)
    virtual_s: float = field(default=0.0, init=False)

    def note(self, at_s: float, who: str, what: str, *particulars: Any) -> None:
        self.events.append((at_s, who, what, particulars))

    def fault(self, at_s: float, who: str, name: str) -> None:
        self.faults[name] += 1
        self.events.append((at_s, who, "fault", (name,)))

    def begin(
        self, at_s: float, client: str, subject: str, name: str, argument: Any, timeout_s: float | None = None
    ) -> Operation:
        operation = Operation(client, subject, name, argument, len(self.events), at_s, timeout_s=timeout_s)
        self.operations.append(operation)
        self.note(at_s, client, f"{name} {subject}", argument)
        return operation

    def end(self, at_s: float, operation: Operation, result: Any, error: BaseException | None = None) -> None:
        operation.ended, operation.ended_s = len(self.events), at_s
        operation.result, operation.error = result, error
        self.note(at_s, operation.client, f"{operation.name} {operation.subject} ended", result, repr(error))

    def committed(self, footprint: Footprint) -> None:
        self.transactions.append(footprint)
        self.note(
            footprint.at_s,
            footprint.who,
            f"transaction {footprint.outcome}",
            footprint.keys_read,
            footprint.keys_written,
            footprint.size_bytes,
        )

    def of(self, subject: str, *names: str) -> list[Operation]:
        """Return the operations on `subject`, with one of `names` if given, in order of their beginning."""
        return [op for op in self.operations if op.subject == subject and (not names or op.name in names)]

    def hash(self) -> str:
        """Return a hash that is equal for equal traces, in any process."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(repr(event).encode())
        return digest.hexdigest()


def longest_pause_s(refusals: int) -> float:
    """The longest pause before the next attempt, with `refusals` refused ones before the last one."""
    return min(RETRY_DELAY_FIRST_S * RETRY_DELAY_GROWTH**refusals, RETRY_DELAY_MAX_S)


@dataclass(frozen=True)
class Commit:
    """A committed transaction, and the client that has sent it."""

    version: int
    read_version: int | None
    """None for a transaction that has read nothing."""
    client: str
    """The thread that has committed it."""
    machine: str
    number: int
    """The number of the transaction on its machine."""
    verb: str
    """The call of the workload that it belongs to, if it belongs to one."""
    now_us: int
    """The time of the commit, by the clock of its machine."""
    may_be_lost: bool = False
    """True if it waits for no flush of its own: a power cut may undo it."""
    event: int = 0
    """The number of events in the trace before it."""

    def __str__(self) -> str:
        called = f" in {self.verb}" if self.verb else ""
        return f"commit {self.version}, transaction {self.number} of {self.client}{called}"


class Hearer(Protocol):
    """Hears of each commit, in their order."""

    def committed(self, store: Store, request: CommitRequest, commit: Commit) -> None:
        """`request` is the last commit of the store. No other thread has run since."""


class Watch(Hearer, Protocol):
    """Judges one run: its commits, then its trace, and then what the run has left."""

    def handed(self, token: bytes, machine: str) -> None:
        """The machine gets the lock of an element with this token."""

    def begin(self, queues: Sequence[Any]) -> None:
        """The clients begin. `queues`: queues over subspaces, which a checker has named."""

    def clients_ended(self) -> None:
        """All clients have ended or died."""

    def violations(self, trace: Trace) -> Iterable[str]:
        """A sentence for each broken promise of the commits and answers."""

    def outlived(self) -> Iterable[str]:
        """A sentence for each entry of a clean run with which fresh processes do not get on."""

    def close(self) -> None:
        """End threads that are left."""


# The verification at the end of a run: every key under the root, and queues over subspaces.


@dataclass(frozen=True)
class Sound:
    queues: Sequence[AnyQueue]

    def __call__(self, _: Trace, database: Database) -> Iterator[str]:
        for queue in self.queues:
            yield from told(verify(database, queue))


def sound(*queues: AnyQueue) -> Callable[[Trace, Database], Iterator[str]]:
    """Check that a verification of queues over subspaces finds nothing. The root is always verified. A watch
    knows such queues by this checker.
    """
    return Sound(queues)


def unsound(database: Database, root: Any = DEFAULT_ROOT) -> list[str]:
    """Verify everything under the root, and tell the findings."""
    return list(told(verify(database, root=root)))


def told(*verifications: Verification) -> Iterator[str]:
    """Tell the findings, a sentence each."""
    for verification in verifications:
        for finding in verification.findings:
            where = "the root" if finding.queue is None else finding.queue
            yield f"verify, {finding.flaw} in {where}: {finding.text} (key {finding.key.hex()})"
