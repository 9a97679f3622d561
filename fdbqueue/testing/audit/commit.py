"""A commit of a simulated transaction, and its step: the values of each key before and after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Values(NamedTuple):
    """The values of a key before and after a commit; None for a key that is not there."""

    before: bytes | None
    after: bytes | None


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


@dataclass(frozen=True)
class Step:
    """The keys of one queue, or of the root, that a commit has changed."""

    commit: Commit
    changes: Mapping[bytes, Values]
    cleared: Sequence[tuple[bytes, bytes]] = ()
    """The ranges that it has cleared."""
    unseen: Sequence[bytes] = ()
    """The changed keys with values that other commits have written since its read version."""
    kept: Sequence[bytes] = ()
    """The keys that it has written with the values that they had."""

    def is_cleared(self, key: bytes) -> bool:
        """True if the commit has cleared a range with the key."""
        return any(begin <= key < end for begin, end in self.cleared)
