"""What the life cycle asks of a discipline.

A discipline keeps the index of ready tasks (`keys.ready`, and `keys.beside` if it needs more) and answers
which of them is next. It is told of every task that becomes ready or taken, or is so no longer, several at a
time, so that it can issue its reads together; a keyed discipline moves its pointers then, and counts how many
of a key are taken. It knows nothing of time, leases, or statistics.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from fdbqueue.seam import Transaction
from fdbqueue.tasks.keys import Record


class Discipline(Protocol):
    def place(self, record: Record) -> bytes:
        """Where the task stands among those ready, and among those buried; ends in its id."""

    def enter(self, tr: Transaction, records: Sequence[Record]) -> None:
        """They have become ready."""

    def leave(self, tr: Transaction, records: Sequence[Record]) -> None:
        """They were ready."""

    def hold(self, tr: Transaction, records: Sequence[Record]) -> None:
        """They have been taken."""

    def free(self, tr: Transaction, records: Sequence[Record]) -> None:
        """They were taken. Told before those of them that are ready again enter."""

    def first(self, tr: Transaction, limit: int) -> Iterable[Record]:
        """Ask, by snapshot, which to take next; iterating waits. All of them may be taken together."""

    def claim(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Add a read-conflict key for what taking `records` relies on besides the tasks themselves."""
