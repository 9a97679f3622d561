"""Watches: programs beside a simulation that hear of each commit, and judge the run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.store import Store
from fdbqueue.testing.trace import Trace


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
